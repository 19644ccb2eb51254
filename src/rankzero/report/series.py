"""The numbers of metrics.jsonl by name, and few enough of them to draw. Knows no metric's meaning."""

from __future__ import annotations

import math
from array import array
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankzero.report.reading import as_number

MOST_SERIES = 100
"""That are kept whole, besides those that are named."""
COLUMNS = 300
"""Across a chart: of a long run, the lowest and the highest value of each column are drawn."""
_BRIEF = 16
MEANS = 100
"""Points of the line through the noise."""


@dataclass(slots=True)
class Series:
    """One metric over the steps that have it. NaN: the value was not finite."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    apart: int = 0
    """Values of earlier steps are of something else: no line joins them with those from here on."""
    whole: bool = True
    """Else it has no more than the first, the last, the lowest and the highest value, and some others."""

    def add(self, step: int, value: float) -> None:
        """The next value."""
        self.steps.append(step)
        self.values.append(value)
        if not self.whole and len(self) > _BRIEF:
            finite = [at for at, value in enumerate(self.values) if math.isfinite(value)]
            extremes = (
                {min(finite, key=self.values.__getitem__), max(finite, key=self.values.__getitem__)}
                if finite
                else set()
            )
            kept = sorted({*finite[:1], *extremes, len(self) - 1})
            self.steps = array("q", (self.steps[at] for at in kept))
            self.values = array("d", (self.values[at] for at in kept))

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, step: int) -> float | None:
        """The finite value of a step."""
        found = [value for at, value in self.finite() if at == step]
        return found[-1] if found else None

    def finite(self) -> list[tuple[int, float]]:
        """(step, value) without what was not finite."""
        return [(step, value) for step, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)]


def read_series(rows: Iterable[Mapping[str, Any]], named: Container[str]) -> dict[str, Series]:
    """Every metric that is a number, or null for one that was not finite, in the order of its first appearance. Of very
    many, only the first ones are whole, and those that are `named`."""
    found: dict[str, Series] = {}
    others = 0
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
            continue
        for name, value in row.items():
            finite = as_number(value)
            if name == "step" or (finite is None and value is not None):
                continue
            series = found.get(name)
            if series is None:
                others += name not in named
                series = found[name] = Series(whole=name in named or others <= MOST_SERIES)
            series.add(step, math.nan if finite is None else finite)
    return found


Piece = list[tuple[float, float]]
"""Points that a line joins."""


def pieces(series: Series) -> list[Piece]:
    """The line, in two where a value was not finite or others begin; at most two points for each of COLUMNS columns."""
    found: list[Piece] = []
    for part in _parts(series):
        if len(series) <= 2 * COLUMNS:
            found += _split(zip(part.steps, part.values, strict=True))
        else:
            found += _split(point for column in _columns(part, COLUMNS) for point in _extremes(column))
    return found


def means(series: Series) -> list[Piece]:
    """The mean of each of MEANS columns, at its middle; [] where there are too few points for one."""
    if len(series) <= 2 * MEANS:
        return []
    found: list[Piece] = []
    for part in _parts(series):
        points: Piece = []
        for column in _columns(part, MEANS):
            finite = [(step, value) for step, value in column if math.isfinite(value)]
            if finite:
                steps, values = zip(*finite, strict=True)
                points.append((math.fsum(steps) / len(steps), math.fsum(values) / len(values)))
        found += [points] if points else []
    return found


def _parts(series: Series) -> list[Series]:
    """Before others begin, and from there on."""
    both = Series(), Series()
    for step, value in zip(series.steps, series.values, strict=True):
        part = both[step >= series.apart]
        part.steps.append(step)
        part.values.append(value)
    return [part for part in both if part]


def _columns(series: Series, count: int) -> list[list[tuple[int, float]]]:
    first, last = min(series.steps), max(series.steps)
    width = (last - first) / count or 1
    columns: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for step, value in zip(series.steps, series.values, strict=True):
        columns[min(int((step - first) / width), count - 1)].append((step, value))
    return columns


def _extremes(column: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The lowest and the highest point in the order of their steps; a column without a finite one is a gap."""
    finite = [point for point in column if math.isfinite(point[1])]
    if not finite:
        return column[:1]
    both = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
    return sorted(both)


def _split(points: Iterable[tuple[int, float]]) -> list[Piece]:
    found: list[Piece] = [[]]
    for step, value in points:
        if math.isfinite(value):
            found[-1].append((step, value))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]
