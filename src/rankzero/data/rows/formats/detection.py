"""Which format a row is meant for, from its keys alone. Reads no values but to tell apart what keys cannot.

Keys that stand for a whole row shape decide: each format has such marks (`messages`, `prompt` with `completion` …).
Rows that have those of two shapes are a question, never a choice. Names that are common in many places are claimed by
formats, in the order of their registration and each beside certain marks alone. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankzero.data.rows.formats.format import SEEN, Claim, Format, Keys, Row
from rankzero.data.rows.formats.guess import as_field, as_flag, labelled_texts, likely_columns
from rankzero.data.rows.problems import RowProblem


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a row's marks say, whatever else it has."""

    claims: tuple[tuple[str, Claim], ...]
    """Formats that may claim the row in spite of its marks."""
    name: str | None
    marks: Keys
    """Those that say something."""
    possible: str | None
    """The first of the formats of whose marks the row has all, and others besides."""


class Detector:
    """Tells these formats apart."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self._formats = formats
        self._of_marks = {marks: format_.name for format_ in formats for marks in format_.marks}
        self._marks: Keys = frozenset[str]().union(*self._of_marks)
        self._claims = tuple((format_.name, claim) for format_ in formats for claim in format_.claims)
        self._verdicts: dict[Keys, _Verdict] = {}
        self.shapes = "".join(f"\n    {format_.shape}" for format_ in formats)
        pairs = (claim.keys for _, claim in self._claims if len(claim.keys) == 2)
        short = [keys for keys in (*self._of_marks, *pairs) if len(keys) <= 2]
        self.telling = sorted(frozenset[str]().union(*short))
        """Keys that make a shape, alone or with one other, whatever their values are."""

    def detect(self, row: Row, line: int) -> str | RowProblem:
        """The name of the format that the row's keys call for. A key whose value is null counts as absent."""
        there = row.keys() & self._marks
        marks = frozenset([key for key in there if row[key] is not None])
        verdict = self._verdicts.get(marks) or self._of(marks)
        if verdict.claims and len(there) != len(row):
            keys = {key for key in row if row[key] is not None}
            for name, claim in verdict.claims:
                if claim.keys <= keys:
                    found = claim.judge is None or claim.judge(row, keys, line)
                    if found:
                        return name if found is True else found
        if verdict.name is not None:
            return verdict.name
        for format_ in self._formats:
            if format_.settles is not None and format_.settles(row, verdict.marks):
                return format_.name
        if verdict.possible is not None:
            return ambiguous(row, line, verdict.marks, verdict.possible)
        return self._no_match(row, marks, line)

    def _of(self, marks: Keys) -> _Verdict:
        """Worked out once for all rows with these marks."""
        telling = marks
        for format_ in self._formats:
            if format_.only_together and not marks >= format_.only_together:
                telling -= format_.only_together
        verdict = _Verdict(
            tuple((name, claim) for name, claim in self._claims if marks <= claim.beside),
            self._of_marks.get(telling),
            telling,
            next((format_.name for format_ in self._formats if any(of <= telling for of in format_.marks)), None),
        )
        self._verdicts[marks] = verdict
        return verdict

    def _no_match(self, row: Row, marks: Keys, line: int) -> RowProblem:
        accepted = f"accepted are{self.shapes}"
        for format_ in self._formats:
            problem = None if format_.near_miss is None else format_.near_miss(row, marks, line)
            if problem is not None:
                return replace(problem, hint=problem.hint or accepted)
        # Of keys that make a shape: what stands beside them, as `system` does, is not what the row lacks.
        aliases = (names for format_ in self._formats for names in format_.aliases.values())
        nulls = sorted(key for key in self._marks.union(*aliases) - SEEN if key in row and row[key] is None)
        what = f"the row's keys are {listed(row)}" + (f"; {listed(nulls)} is null" if nulls else "")
        likely = {} if nulls else likely_columns(row, self.telling)
        if likely:
            accepted = f"likely: {as_flag(likely)} (in a run spec, data.train: [{{path: …, {as_field(likely)}}}])"
        elif not nulls and len(labelled := labelled_texts(row) or ()) > 1:
            accepted = f"task classify puts one text into a class: join {listed(labelled)} as `text`"
        return RowProblem(line, "unknown row shape", what, accepted)


def ambiguous(row: Row, line: int, present: Iterable[str], possible: str) -> RowProblem:
    """That the keys which are `present` mean two things, one of which is the format `possible`."""
    present = frozenset(present)
    return RowProblem(
        line,
        "ambiguous row",
        f"the row has {listed(key for key in row if key in present)}: which is to be trained?",
        f"say so for the file: data.train: [{{path: …, format: {possible}}}]",
    )


def listed(keys: Mapping[str, Any] | Iterable[str]) -> str:
    """Names of keys in a sentence, bounded."""
    names = list(keys)
    shown = [f"`{key[:40]}`" for key in names[:12]]
    return (", ".join(shown) + (", …" if len(names) > 12 else "")) or "none"
