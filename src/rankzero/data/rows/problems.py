"""What is wrong with rows, counted and kept within bounds. Knows nothing of formats, tokenizers or printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rankzero.errors import DataError, Problem

KEPT = 1000
"""Problems kept whole; the rest are only counted. A file can have a million bad rows, nobody reads them."""

_SHOWN = 20
_SHOWN_PER_REASON = 5
_MOST_ALIKE = 2
"""Rows of a file with the same fault in the same words that are shown one by one."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One thing wrong with one row. `reason` is short and the same for every row with this fault: they are counted
    by it. `line` 0 is the file as a whole."""

    line: int
    reason: str
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class LocatedProblem:
    """A row problem with its file."""

    path: str
    problem: RowProblem

    def public(self) -> Problem:
        """As errors show it: `train.jsonl:812: what`."""
        row = self.problem
        return Problem(row.what, f"{self.path}:{row.line}" if row.line else self.path, row.hint)


def kind(value: object) -> str:
    """A JSON value in a sentence: `null`, `a list`, `3`."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


class ProblemLog:
    """Counts every problem by reason; keeps the first ones, and the first of every reason."""

    def __init__(self, keep: int = KEPT) -> None:
        self.keep = keep
        self.reasons: Counter[str] = Counter()
        self.kept: list[LocatedProblem] = []

    @property
    def total(self) -> int:
        """All problems, kept or not."""
        return self.reasons.total()

    def add(self, path: str, problems: Iterable[RowProblem]) -> None:
        """Count these, in file order, and keep them while there is room."""
        for problem in problems:
            self.reasons[problem.reason] += 1
            if len(self.kept) < self.keep or self.reasons[problem.reason] <= _SHOWN_PER_REASON:
                self.kept.append(LocatedProblem(path, problem))

    def error(self) -> DataError:
        """All problems as one error. Where they are too many to read: how many of which reason, and examples."""
        shown = self.kept
        lines: list[Problem] = []
        if self.total > _SHOWN:
            counts = ", ".join(f"{count} × {reason}" for reason, count in self.reasons.most_common())
            hint = "`rankzero data check run.yaml --json`, or of a file, lists every row; examples of each follow"
            lines.append(Problem(f"{self.total} problems: {counts}", hint=hint))
            shown = self._examples()
        hinted: set[str] = set()
        for problem in _once(shown):
            # The same hint under every line would hide what differs.
            lines.append(Problem(problem.what, problem.where) if problem.hint in hinted else problem)
            hinted.add(problem.hint)
        return DataError(lines)

    def _examples(self) -> list[LocatedProblem]:
        seen: Counter[str] = Counter()
        examples = []
        for located in self.kept:
            seen[located.problem.reason] += 1
            if seen[located.problem.reason] <= _SHOWN_PER_REASON:
                examples.append(located)
        return examples[:_SHOWN]


def _once(found: Iterable[LocatedProblem]) -> list[Problem]:
    """Problems as errors show them; what is wrong with many rows of a file in the same words is said once."""
    alike: dict[tuple[str, str, str], list[LocatedProblem]] = {}
    for located in found:
        row = located.problem
        alike.setdefault((located.path, row.what, row.hint), []).append(located)
    problems: list[Problem] = []
    for same in alike.values():
        shown = [located.public() for located in same]
        if len(same) > _MOST_ALIKE:
            also = ", ".join(str(located.problem.line) for located in same[1:])
            shown = [Problem(f"{shown[0].what} (also at {also})", shown[0].where, shown[0].hint)]
        problems += shown
    return problems
