"""Other names for a row's keys, as the spec gives them. Pure; knows no files."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from rankzero.data.rows.formats.format import Row
from rankzero.data.rows.formats.query_response import ALIASES
from rankzero.errors import Problem


def rename(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with our names for its keys. Keys that are not named keep theirs."""
    values = {ours: row[theirs] for ours, theirs in columns.items() if theirs in row}
    gone = set(columns.values()) | values.keys()
    for ours in values:
        # Said outright which column it is: the other names for the same thing are no question any more.
        gone.update(name for name in ALIASES.get(ours, ()) if name not in values)
    return {**{key: value for key, value in row.items() if key not in gone}, **values}


def check_columns(
    name: str, columns: Mapping[str, str], known: Collection[str], seen: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """Everything that is wrong with a column map: names that the format does not `know`, and, where the columns of
    the data are `seen`, names that are not among those."""
    problems = []
    for ours, theirs in columns.items():
        if ours not in known:
            near = difflib.get_close_matches(ours, known, n=1)
            what = f"`{ours}` is no name of format {name}" if name != "auto" else f"`{ours}` is no name of any format"
            hint = f"did you mean {near[0]}?" if near else f"names are {', '.join(sorted(known))}"
            problems.append(Problem(what, f"columns.{ours}", hint))
        if seen is not None and theirs not in seen:
            near = difflib.get_close_matches(theirs, list(seen), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the data has {', '.join(list(seen)[:12])}"
            problems.append(Problem(f"the data has no column `{theirs}`", f"columns.{ours}", hint))
    twice = {theirs for theirs in columns.values() if list(columns.values()).count(theirs) > 1}
    for theirs in sorted(twice):
        ours_all = ", ".join(ours for ours in columns if columns[ours] == theirs)
        problems.append(Problem(f"`{theirs}` is given two names: {ours_all}", "columns", "a column has one meaning"))
    return tuple(problems)
