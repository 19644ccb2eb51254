"""A check report as one HTML page that needs nothing else: no script, no network, plots as inline SVG.

What the page says is in report.html.jinja, how it looks and how values are made harmless in `rankzero.html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from jinja2 import Template

from rankzero.data.inspect.report import CheckReport, column
from rankzero.data.inspect.report_text import detected_by, percent
from rankzero.data.inspect.serving import Comparison
from rankzero.data.inspect.statistics import Bin, Spread, by_count, histogram
from rankzero.html.page import count, environment

_MOST_NAMES = 30
_MOST_PROBLEMS = 300


def report_html(report: CheckReport, comparison: Comparison | None = None, title: str = "Data check") -> str:
    """The whole page."""
    counts, found, images = report.counts, report.duplicates, report.images
    return _template().render(
        title=title,
        report=report,
        comparison=comparison,
        files=[(path,) for path in report.files],
        problems=[
            (path, problem.line or "", column(problem.what) or "", problem.reason, problem.what, problem.hint)
            for path, problem in islice(report.listed(), _MOST_PROBLEMS)
        ],
        openings=[] if counts.tokens is None else _quoted(counts.tokens.unopened),
        formats=[
            (name, count(rows), detected_by(counts, name) or "as stated") for name, rows in by_count(counts.formats)
        ],
        duplicates=[
            (kind, report.where(copy), report.where(first))
            for kind, places in (("also trained on", found.leak_examples), ("copy", found.copy_examples))
            for copy, first in places
        ],
        decoded=[
            (source, reason, count(number))
            for source, reasons in sorted({} if images is None else images.sources.items())
            for reason, number in by_count(reasons)
        ],
        differences=[] if comparison is None else _differences(comparison),
    )


@cache
def _template() -> Template:
    made = environment(__package__)
    made.globals["draw"] = draw
    made.filters |= {
        "by_count": by_count,
        "histogram": histogram,
        "most_common": _most_common,
        "percent_of": percent,
        "spread_rows": _spread_rows,
    }
    return made.get_template("report.html.jinja")


def _quoted(counter: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(repr(text), count(rows)) for text, rows in by_count(counter)[:10]]


def _most_common(counter: Mapping[str, int]) -> list[tuple[str, str]]:
    common = by_count(counter)
    rows = [(name, count(number)) for name, number in common[:_MOST_NAMES]]
    rest = common[_MOST_NAMES:]
    return [*rows, (f"{len(rest):,} more", count(sum(number for _, number in rest)))] if rest else rows


def _spread_rows(counters: Mapping[str, Mapping[int, int]]) -> list[tuple[str, ...]]:
    rows = []
    for name, counter in counters.items():
        if counter:
            spread = Spread.of(counter)
            whole = (spread.minimum, spread.p50, spread.p90, spread.p95, spread.p99, spread.maximum)
            rows.append((name, *map(count, whole), f"{spread.mean:,.1f}"))
    return rows


def _differences(comparison: Comparison) -> list[tuple[str, ...]]:
    return [
        (cause, count(number), first.meaning, f"{first.where}, turn {first.turn}", count(first.offset),
         repr(first.training), repr(first.serving))
        for cause, number in comparison.causes.most_common()
        for first in (comparison.first[cause],)
    ]  # fmt: skip


_WIDTH, _HEIGHT = 720, 240
_LEFT, _TOP, _BASE = 56, 12, 196
_MARK_EVERY = 64
"""Room that the mark under a bar needs."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bin's place, and what is written under it."""

    bin: Bin
    x: float
    y: float
    width: float
    height: float
    mark: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A histogram in the units of its view box."""

    bars: list[Bar]
    lines: list[tuple[float, str]]
    """Across: where, and what stands beside it."""
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    base: int = _BASE


def draw(bins: Sequence[Bin]) -> Drawn:
    """Bars for the bins, which are at least one."""
    highest = max(bin_.count for bin_ in bins)
    step, room = (_WIDTH - _LEFT) / len(bins), _BASE - _TOP
    every = max(1, -(-_MARK_EVERY * len(bins) // (_WIDTH - _LEFT)))
    bars = []
    for i, bin_ in enumerate(bins):
        height = max(room * bin_.count / highest, 1.0 if bin_.count else 0.0)
        mark = "" if i % every else f"{bin_.low:,}" + ("+" if bin_.high is None else "")
        place = (_LEFT + i * step + 1, _BASE - height, max(step - 2, 1), height)
        x, y, width, height = (round(value, 1) for value in place)
        bars.append(Bar(bin_, x, y, width, height, mark))
    halves = [(round(_BASE - room * part, 1), f"{round(highest * part):,}") for part in (0.5, 1.0)]
    return Drawn(bars, [*halves, (_BASE, "")])
