"""Rows that are good one by one, and whether a run can train on all of them together: classes, hold-out and weights.

Knows what rows are tied by and labelled with, no tokens; what is refused, and in which words, the cache decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankzero.data.cache.dataset import Indices, RowLabels
from rankzero.data.cache.encode import ties_of
from rankzero.data.cache.labels import classes_of
from rankzero.data.cache.selection import components
from rankzero.data.cache.training_data import parted_rows, weighted_rows
from rankzero.data.rows.conversation import Conversation
from rankzero.errors import DataError, Problem
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Together:
    """What a run asks of all its rows."""

    classifies: bool
    labels: tuple[str, ...] | None
    fraction: float | None
    """Of rows to hold out."""
    seed: int

    @classmethod
    def of(cls, spec: RunSpec) -> Together:
        """As the spec says it."""
        fraction = getattr(spec.data.eval, "fraction", None)
        return cls(spec.task_section.trains == "label", spec.data.labels, fraction, spec.train.seed)


@dataclass(slots=True)
class SeenRows:
    """Rows that training would keep, in the order of the files: of a chunk, or of all files."""

    files: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    ties: array[int] = field(default_factory=lambda: array("q"))
    tie_counts: array[int] = field(default_factory=lambda: array("q"))
    codes: array[int] = field(default_factory=lambda: array("i"))
    names: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def add_rows(self, file: int, rows: Sequence[Conversation]) -> None:
        """Those of a chunk. Their images are told apart by name: what they hold, only tokenising reads."""
        for row in rows:
            ties = ties_of(file, row, row.images)
            self.files.append(file)
            self.lines.append(row.line)
            self.ties.extend(ties)
            self.tie_counts.append(len(ties))
            label = None if row.label is None else str(row.label)
            self.codes.append(-1 if label is None else self.names.setdefault(label, len(self.names)))

    def add(self, other: SeenRows) -> None:
        """Those of another chunk behind these."""
        places = [self.names.setdefault(name, len(self.names)) for name in other.names]
        self.files.extend(other.files)
        self.lines.extend(other.lines)
        self.ties.extend(other.ties)
        self.tie_counts.extend(other.tie_counts)
        self.codes.extend([-1 if code < 0 else places[code] for code in other.codes])

    @property
    def groups(self) -> Indices:
        """Equal for rows that must not be split between train and eval."""
        offsets = np.concatenate([[0], np.cumsum(np.asarray(self.tie_counts, dtype=np.int64))]).astype(np.int64)
        return components(offsets, np.asarray(self.ties, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some of them, as what looks at labels is given rows."""

    seen: SeenRows
    rows: Indices
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def label_names(self) -> RowLabels:
        """The label of each."""
        return RowLabels(tuple(self.seen.names), np.asarray(self.seen.codes, dtype=np.int32)[self.rows])

    def where(self, i: int) -> str:
        """`train.jsonl:812`."""
        row = int(self.rows[i])
        return f"{self.paths[self.seen.files[row]]}:{self.seen.lines[row]}"


def refused(
    train: SeenRows,
    evaluation: SeenRows,
    wanted: Together,
    source_of: Sequence[int],
    weights: Sequence[float],
    paths: Sequence[str],
) -> tuple[Problem, ...]:
    """Why training would not take these rows together. `source_of` and `paths` are of each file, `weights` of each
    source."""
    rows = np.arange(len(train), dtype=np.int64)
    held_out = ChosenRows(evaluation, np.arange(len(evaluation), dtype=np.int64), paths)
    try:
        if wanted.fraction is not None:
            rows, others = parted_rows(train.groups, wanted.seed, wanted.fraction)
            held_out = ChosenRows(train, others, paths)
        if any(weight != 1 for weight in weights):
            sources = np.array(source_of, dtype=np.int64)[np.asarray(train.files, dtype=np.int64)[rows]]
            rows = rows[weighted_rows(sources, weights, wanted.seed)]
        if wanted.classifies:
            classes_of(ChosenRows(train, rows, paths), held_out, wanted.labels)
    except DataError as error:
        return error.problems
    return ()
