"""What a check found, and whether it may pass. Knows what was counted; nothing of how, and prints nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankzero.data.inspect.duplicates import Duplicates, Place
from rankzero.data.inspect.statistics import Counts
from rankzero.data.rows.chunks import DAMAGE
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import LocatedProblem, ProblemLog, RowProblem
from rankzero.errors import DataError, Problem, UsageError
from rankzero.wording import counted

if TYPE_CHECKING:
    from rankzero.data.images.check import ImageReport

UNTRAINABLE = "untrainable"
"""The reason of what is wrong with all rows together."""
NO_TASK = "no task trains on both"


@dataclass(frozen=True, slots=True)
class Sample:
    """A chat row as it was read, with its file and the directory that its images are below."""

    path: str
    row: Conversation
    image_root: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. Problems beyond those kept are in the log's `reasons` as counts."""

    files: tuple[str, ...]
    """Those that could be read, and looked at."""
    counts: Counts
    log: ProblemLog
    duplicates: Duplicates = field(default_factory=Duplicates)
    images: ImageReport | None = None
    quarantined: int | None = None
    """Rows that were set aside; None where that was not asked for."""
    samples: tuple[Sample, ...] = ()
    untrainable: tuple[Problem, ...] = ()
    """Why nothing can be trained although rows can be read."""

    @property
    def ok(self) -> bool:
        """Whether every file and every row can be read, and training would take them."""
        return self.problem_count == 0

    @property
    def problem_count(self) -> int:
        """All problems, kept or not."""
        return self.log.total + len(self.untrainable)

    @property
    def problems(self) -> list[LocatedProblem]:
        """The first problems, in the order of the files."""
        return self.log.kept

    @property
    def damaged(self) -> bool:
        """Whether a file as a whole is bad, which no number of bad rows that may be excuses."""
        return any(located.problem.line == 0 or located.problem.reason in DAMAGE for located in self.log.kept)

    def passes(self, tolerance: Tolerance) -> bool:
        """Whether what is bad is within what may be, and something good is left."""
        if self.ok or self.untrainable:
            return self.ok
        return not self.damaged and self.counts.readable > 0 and tolerance.allows(self.counts.bad, self.counts.rows)

    def error(self) -> DataError:
        """All problems, or their counts and examples where they are too many to read."""
        return DataError([*(self.log.error().problems if self.log.total else ()), *self.untrainable])

    def raise_if_bad(self) -> None:
        """Raise DataError with what `error` says."""
        if not self.ok:
            raise self.error()

    def where(self, place: Place) -> str:
        """`train.jsonl:812`."""
        source, line = place
        return f"{self.files[source]}:{line}"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.duplicates
        return {
            "ok": self.ok,
            "files": list(self.files),
            **self.counts.as_json(),
            "duplicates": {
                "copies": found.copies,
                "in_train_and_eval": found.leaks,
                "examples": [
                    {"copy": self.where(copy), "of": self.where(first)}
                    for copy, first in (*found.leak_examples, *found.copy_examples)
                ],
            },
            "decoded_images": None if self.images is None else self.images.as_json(),
            "quarantined": self.quarantined,
            "problem_count": self.problem_count,
            "problems_by_reason": dict(self.reasons.most_common()),
            "problems": [
                {
                    "file": path or None,
                    "line": problem.line or None,
                    "column": column(problem.what),
                    "reason": problem.reason,
                    "what": problem.what,
                    "hint": problem.hint or None,
                }
                for path, problem in self.listed()
            ],
        }

    @property
    def reasons(self) -> Counter[str]:
        """How many problems there are of each reason."""
        return self.log.reasons + Counter({UNTRAINABLE: len(self.untrainable)})

    def listed(self) -> Iterator[tuple[str, RowProblem]]:
        """The problems that are kept, each with where it is; first those of all rows together."""
        for problem in self.untrainable:
            yield problem.where, RowProblem(0, UNTRAINABLE, problem.what, problem.hint)
        for located in self.log.kept:
            yield located.path, located.problem


def untrainable(counts: Counts, files: Sequence[str]) -> tuple[Problem, ...]:
    """Why nothing can be trained although rows can be read."""
    if counts.rows and not counts.readable and not counts.bad:
        reasons = ", ".join(f"{rows:,} by {name.replace('_', ' ')}" for name, rows in counts.dropped.most_common())
        return (Problem(f"no row is left: all are left out ({reasons})"),)
    if counts.tokens is not None and counts.tokens.examples and not counts.tokens.kept:
        reasons = ", ".join(f"{rows:,} × {name}" for name, rows in counts.tokens.dropped.most_common())
        return (Problem(f"no example has a trained token: all are dropped ({reasons})", hint="raise the length limit"),)
    if counts.tokens is None and 0 < counts.preferences < counts.examples:  # a task knows which of them are bad rows
        others = f"{counted(counts.examples - counts.preferences, 'example')} without"
        what = f"{counted(counts.preferences, 'example')} with a chosen and a rejected answer, {others}: {NO_TASK}"
        return (Problem(what, ", ".join(files), "keep them in files of their own: pairs are for task dpo"),)
    return ()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How many rows may be bad: a number, or a share of all rows."""

    rows: int = 0
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> Tolerance:
        """`20` or `0.5%`. Raises UsageError."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
        if match and match[2] and float(match[1]) <= 100:
            return cls(percent=float(match[1]))
        if match and not match[2] and match[1].isdigit():
            return cls(int(match[1]))
        hint = "20 allows twenty bad rows, 0.5% one in two hundred"
        raise UsageError(f"{text!r} is no number of rows", where="--max-bad", hint=hint)

    def allows(self, bad: int, rows: int) -> bool:
        """Whether so many bad rows may be."""
        return bad <= self.rows if self.percent is None else bad * 100 <= self.percent * rows

    def __str__(self) -> str:
        return f"{self.rows:,}" if self.percent is None else f"{self.percent:g}%"


def column(what: str) -> int | None:
    """The column (or, of damaged text, the byte) that a problem names."""
    match = re.search(r"\bat (?:column|byte) (\d+)|^byte (\d+) ", what)
    return None if match is None else int(match[1] or match[2])
