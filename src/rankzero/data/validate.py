"""Every row of every file looked at, no tokenizer needed. Knows shapes and counts; nothing of templates."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankzero.data.pool import ordered_map, worker_count
from rankzero.data.problems import KEPT, LocatedProblem, ProblemLog, RowProblem
from rankzero.data.progress import Progress, no_progress
from rankzero.data.rows import parse
from rankzero.data.sources import NO_ROWS, Chunk, probe, read_all

if TYPE_CHECKING:  # workers need not load pydantic
    from rankzero.spec.run_spec import RowFormat, SourceSpec


@dataclass(slots=True)
class Counts:
    """What a chunk, or all of them, hold. Of chat rows, `roles` counts turns and `turns` rows by number of turns."""

    rows: int = 0
    blank: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    ignored_keys: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Sum up."""
        self.rows += other.rows
        self.blank += other.blank
        for name in ("formats", "roles", "turns", "ignored_keys"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. Problems beyond those kept are in `reasons` as counts."""

    files: tuple[str, ...]
    counts: Counts
    log: ProblemLog

    @property
    def ok(self) -> bool:
        """Whether every row can be read."""
        return self.log.total == 0

    @property
    def problems(self) -> list[LocatedProblem]:
        """The first problems, in the order of the files."""
        return self.log.kept

    def raise_if_bad(self) -> None:
        """One DataError with all problems, or with their counts and examples where they are too many to read."""
        if not self.ok:
            raise self.log.error()

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": self.ok,
            "files": list(self.files),
            "rows": self.counts.rows,
            "blank_lines": self.counts.blank,
            "formats": dict(self.counts.formats),
            "roles": dict(self.counts.roles),
            "turns": {str(turns): rows for turns, rows in sorted(self.counts.turns.items())},
            "ignored_keys": dict(self.counts.ignored_keys),
            "problem_count": self.log.total,
            "problems_by_reason": dict(self.log.reasons.most_common()),
            "problems": [
                {
                    "file": located.path,
                    "line": located.problem.line or None,
                    "reason": located.problem.reason,
                    "what": located.problem.what,
                    "hint": located.problem.hint or None,
                }
                for located in self.log.kept
            ],
        }


def check(
    sources: Sequence[SourceSpec],
    *,
    workers: int | None = None,
    progress: Progress = no_progress,
    keep: int = KEPT,
) -> CheckReport:
    """Look at every row. Bad rows and bad files are in the report; nothing is raised for them."""
    log = ProblemLog(keep)
    total = Counts()
    readable: list[SourceSpec] = []
    for source in sources:
        if problem := probe(source.path):
            log.add(source.path, [problem])
        else:
            readable.append(source)
    size = sum(os.path.getsize(source.path) for source in readable)
    rows: Counter[int] = Counter()
    tasks = ((chunk, readable[chunk.source].format) for chunk in read_all([source.path for source in readable]))
    for chunk in ordered_map(_checker, tasks, worker_count(size, workers)):
        total.add(chunk.counts)
        rows[chunk.source] += chunk.counts.rows
        log.add(readable[chunk.source].path, chunk.problems)
        progress(chunk.length)
    for index, source in enumerate(readable):
        if not rows[index]:
            log.add(source.path, [NO_ROWS])
    return CheckReport(tuple(source.path for source in sources), total, log)


@dataclass(frozen=True, slots=True)
class _Checked:
    source: int
    length: int
    counts: Counts
    problems: list[RowProblem]


def _checker() -> Callable[[tuple[Chunk, RowFormat]], _Checked]:
    return _check_chunk


def _check_chunk(task: tuple[Chunk, RowFormat]) -> _Checked:
    chunk, wanted = task
    parsed = parse(chunk, wanted)
    counts = Counts(parsed.rows, parsed.blank, parsed.formats, ignored_keys=parsed.ignored_keys)
    for conversation in parsed.conversations:
        if conversation.templated:
            counts.roles.update(message.role for message in conversation.messages)
            counts.turns[len(conversation.messages)] += 1
    return _Checked(chunk.source, len(chunk.data), counts, parsed.problems)
