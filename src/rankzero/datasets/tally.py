"""What became of every raw row, by named rules; nothing is lost without being counted. Knows nothing of files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

STATS = "stats.json"
"""Beside the rows that it counts."""
FAILED_STATS = "stats-failed.json"
"""Of the last run, where it wrote no rows."""

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Dropped:
    """A raw row that gives no training row. `rule` is short and the same for every row that it drops."""

    rule: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Converted:
    """The training rows of a raw row, as `messages` rows without images; their ids are endings of the raw row's."""

    rows: list[dict[str, Any]]
    steps: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of one split: rows_in = rows_used + rows_dropped, steps_in = steps_out + steps_dropped."""

    rows_in: int = 0
    rows_used: int = 0
    rows_dropped: Counter[str] = field(default_factory=Counter)
    dropped_examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    steps_in: int = 0
    """Of rows that become several training rows: attempts."""
    steps_out: int = 0
    steps_dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    """What was changed or left out inside rows that are used, by rule."""
    keys_not_read: Counter[str] = field(default_factory=Counter)
    """Of rows that are used, with those of their turns."""
    histograms: dict[str, Counter[str]] = field(default_factory=dict)
    """Of rows that are used."""
    written: Counter[str] = field(default_factory=Counter)
    """Training rows by file."""

    def histogram(self, name: str) -> Counter[str]:
        """The histogram of this name."""
        return self.histograms.setdefault(name, Counter())

    def drop(self, number: int, dropped: Dropped) -> None:
        """Count a raw row that gives nothing; the first of each rule are kept as examples."""
        self.rows_dropped[dropped.rule] += 1
        examples = self.dropped_examples.setdefault(dropped.rule, [])
        if len(examples) < _EXAMPLES:
            examples.append({"row": number, "what": dropped.what[:300]})

    def unconvert(self, steps: int, rule: str) -> None:
        """Steps of a row that was converted and cannot be used after all."""
        self.steps_out -= steps
        if steps:
            self.steps_dropped[rule] += steps

    def add(self, row: Tally, *, used: bool) -> None:
        """What was counted of one raw row. Of one that is not used, its steps alone: what is said of used rows is not
        said of it."""
        self.steps_in += row.steps_in
        self.steps_out += row.steps_out
        self.steps_dropped.update(row.steps_dropped)
        for name, counts in row.histograms.items():
            self.histogram(name).update(counts if used else ())
        self.notes.update(row.notes if used else ())
        self.keys_not_read.update(row.keys_not_read if used else ())

    @property
    def accounted(self) -> bool:
        """Whether the counts add up."""
        rows = self.rows_in == self.rows_used + self.rows_dropped.total()
        return rows and self.steps_in == self.steps_out + self.steps_dropped.total()

    def as_json(self) -> dict[str, Any]:
        """For `stats.json`."""
        return {
            "rows_in": self.rows_in,
            "rows_used": self.rows_used,
            "rows_dropped": dict(self.rows_dropped.most_common()),
            "dropped_examples": self.dropped_examples,
            **(self._steps() if self.steps_in else {}),
            "rows_out": self.written.total(),
            "written": dict(self.written),
            "changes_inside_rows": dict(self.notes.most_common()),
            "keys_not_read": dict(self.keys_not_read.most_common()),
            **{name: dict(sorted(counts.items(), key=_by_number)) for name, counts in self.histograms.items()},
        }

    def _steps(self) -> dict[str, Any]:
        dropped = dict(self.steps_dropped.most_common())
        return {"steps_in": self.steps_in, "steps_out": self.steps_out, "steps_dropped": dropped}


def _by_number(entry: tuple[str, int]) -> tuple[bool, int, str]:
    name = entry[0]
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)
