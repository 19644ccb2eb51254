"""The row shapes that are read: which one a row is meant for, and what it says. Knows no format, only where they are.

A format is a file of this package that exports FORMAT, and its name in spec/row_formats.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from rankzero.data.rows.formats.detection import Detector, listed
from rankzero.data.rows.formats.format import ASKING, SEEN, Format, Noted, Result, Row, Writer
from rankzero.data.rows.formats.json_text import TwiceReadError
from rankzero.data.rows.formats.judged import JUDGED, judged
from rankzero.data.rows.formats.turn_loss import untrained_row
from rankzero.data.rows.problems import RowProblem, kind
from rankzero.errors import Problem
from rankzero.spec.row_formats import ROW_FORMATS
from rankzero.spec.tasks import Trains

__all__ = [
    "FORMATS",
    "WRITERS",
    "Noted",
    "Result",
    "Row",
    "check_columns",
    "convert",
    "detect",
    "read_keys",
    "reason",
    "rename",
]


def _load(name: str) -> Format:
    format_: Format = import_module(f"{__name__}.{name}").FORMAT
    assert format_.name == name, f"{format_.name} is registered as {name}"
    return format_


FORMATS: dict[str, Format] = {name: _load(name) for name in ROW_FORMATS}
WRITERS: dict[str, Writer] = {writer.name: writer for format_ in FORMATS.values() for writer in format_.writers}

_DETECTOR = Detector(tuple(FORMATS.values()))
_ALL_READS = frozenset[str]().union(*(format_.reads for format_ in FORMATS.values()))
_FIRST = {format_.first_for: name for name, format_ in FORMATS.items() if format_.first_for is not None}
_ALIASES = {ours: names for format_ in FORMATS.values() for ours, names in format_.aliases.items()}


def convert(row: object, line: int, wanted: str = "auto", trains: Trains | None = None) -> tuple[str, Result]:
    """The name of the row's format and the row as a conversation, or all that is wrong with it. `trains`: what the task
    does, if one is known: of a row that could be two things it is the one that the task trains."""
    if not isinstance(row, dict):
        what = f"the line is {kind(row)}, not an object"
        return wanted, [RowProblem(line, "not an object", what, f"accepted are{_DETECTOR.shapes}")]
    if wanted == "auto" and trains in _FIRST and _has_needs(row, _FIRST[trains]):
        wanted = _FIRST[trains]
    name = detect(row, line) if wanted == "auto" else _asserted(row, line, wanted)
    if isinstance(name, RowProblem):
        return wanted, [name]
    format_ = FORMATS[name]
    try:
        return name, _read(row, line, format_)
    except TwiceReadError as error:
        return name, [RowProblem(line, error.reason, str(error), error.hint)]


def _read(row: Row, line: int, format_: Format) -> Result:
    result = format_.to_conversation(row, line)
    if len(row) > 1 and not row.keys().isdisjoint(format_.unread):
        unread = [key for key in row if key in format_.unread and row[key]]
        if unread:
            result = [*(result if isinstance(result, list) else ()), _unread(unread, line)]
    untrained = untrained_row(row)
    if untrained is not None and untrained not in format_.reads:
        result = [*(result if isinstance(result, list) else ()), _not_trained(untrained, line)]
    if format_.learns_answers and not row.keys().isdisjoint(JUDGED):
        result = judged(row, result, line, format_.reads)
    return result


def detect(row: Row, line: int) -> str | RowProblem:
    """The format that the row's keys call for. A key whose value is null counts as absent."""
    return _DETECTOR.detect(row, line)


def reason(row: Row, name: str) -> str:
    """Why the row is read as `name`: `alpaca: keys instruction, input, output`."""
    read = FORMATS[name].reads - {"id", "conversation_id"}
    return f"{name}: keys {', '.join(key for key in row if key in read and row[key] is not None)}"


def _unread(keys: list[str], line: int) -> RowProblem:
    what = f"the row has {listed(keys)}, which is not read yet"
    asked = "write it into the question as the model is to see it, or " if keys[0] in ASKING - SEEN else ""
    return RowProblem(line, f"`{keys[0]}` is not read", what, f"{asked}remove the key to train without it")


def _not_trained(key: str, line: int) -> RowProblem:
    what = f"`{key}` says that the row is not trained"
    return RowProblem(line, "row that is not to be trained", what, "remove the row, or the key to train on it")


def _asserted(row: Row, line: int, wanted: str) -> str | RowProblem:
    if _has_needs(row, wanted):
        return wanted
    what = f"the row is not in format {wanted}: its keys are {listed(row)}"
    return RowProblem(line, "not in the stated format", what, f"expected: {FORMATS[wanted].shape}")


def _has_needs(row: Row, name: str) -> bool:
    return any(all(row.get(key) is not None for key in need) for need in FORMATS[name].needs)


def rename(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with our names for its keys. Keys that are not named keep theirs."""
    values = {ours: row[theirs] for ours, theirs in columns.items() if theirs in row}
    gone = set(columns.values()) | values.keys()
    for ours in values:
        # Said outright which column it is: the other names for the same thing are no question any more.
        gone.update(name for name in _ALIASES.get(ours, ()) if name not in values)
    return {**{key: value for key, value in row.items() if key not in gone}, **values}


def read_keys(row: Row, columns: Mapping[str, str], name: str) -> set[str]:
    """The row's own keys that are read of it in the format of that name, once it is renamed."""
    renamed, reads = rename(row, columns), FORMATS[name].reads
    named = {ours: theirs for ours, theirs in columns.items() if theirs in row}
    theirs = {theirs for ours, theirs in named.items() if ours in reads}
    return theirs | {key for key in row if key in reads and key in renamed and key not in named}


def check_columns(name: str, columns: Mapping[str, str], seen: Collection[str] | None = None) -> tuple[Problem, ...]:
    """Everything that is wrong with a column map of format `name` ("auto": of any): names that the format does not
    read, and, where the columns of the data are `seen`, names that are not among those."""
    known = _ALL_READS if name == "auto" else FORMATS[name].reads
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
