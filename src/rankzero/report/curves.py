"""Metrics as charts: which go together, and where their lines lie. Geometry alone; the template makes SVG of it.

A chart's text is no part of its SVG, which is stretched to the page's width: on a phone it is as legible as elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankzero.report.series import MEANS, Piece, Series, means, pieces
from rankzero.report.ticks import Axis, linear, logarithmic, memory, of_memory, padded, plain
from rankzero.wording import counted

WIDTH, HEIGHT = 1000, 300
"""Of a chart in its own units."""
COLOURS = 6
"""As many dashes there are."""
_MOST_CHARTS, _MOST_NAMED = 24, 200
"""What is beyond the one is named, up to the other."""
_MOST_ROWS = 20
_MOST_DOTS = 20
_FAR = 10
"""Times the value that nineteen of twenty stay below, from which on an axis counts in factors."""

_TOGETHER: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Loss", (("loss", "train"), ("eval_loss", "eval"))),
    ("Accuracy and macro F1", (("accuracy", "accuracy"), ("macro_f1", "macro F1"))),
    ("Reward accuracy", (("train_reward_accuracy", "train"), ("reward_accuracy", "eval"))),
    ("Reward margin", (("train_reward_margin", "train"), ("reward_margin", "eval"))),
    ("Rewards, train", (("train_reward_chosen", "chosen"), ("train_reward_rejected", "rejected"))),
    ("Rewards, eval", (("reward_chosen", "chosen"), ("reward_rejected", "rejected"))),
    ("Learning rate", (("learning_rate", ""),)),
    ("Gradient norm", (("grad_norm", ""),)),
    ("Tokens a second", (("tokens_per_second", ""),)),
    ("Loss scale", (("loss_scale", ""),)),
    ("Load balancing loss", (("router_aux_loss", ""),)),
    ("Load of experts", (("expert_load_max", "most"), ("expert_load_min", "least"))),
    ("Slowest rank, times the others", (("slowest_rank_slowdown", ""),)),
)
"""Charts that have a name: title, and the metrics in it with their words."""
_NOT_DRAWN = frozenset({"epoch", "tokens", "supervised_tokens", "time", "perplexity", "overflows", "slowest_rank"})
"""Counts, clocks, names, and what another curve says."""
NAMED = _NOT_DRAWN | {key for _, members in _TOGETHER for key, _ in members}
"""Metrics that are known here."""


@dataclass(frozen=True, slots=True)
class Line:
    """What is drawn of one series. Paths are in the chart's units, made of numbers alone."""

    label: str
    colour: int
    dash: int
    """How the line is broken, 0 for not at all: colours alone do not tell lines apart to everyone, or on paper."""
    path: str
    faint: bool
    """Noise behind its mean."""
    dots: str
    """Points so few that each is marked."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at a place along an axis, in per cent from the left or the top."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, its axes, and the same as tables."""

    key: str
    title: str
    log: bool
    lines: tuple[Line, ...]
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    starts: tuple[Mark, ...]
    """Where a later start went on."""
    averaged: str
    """Steps that each point of a line stands for; "" where all are drawn."""
    spans: tuple[tuple[str, str, str, str, str], ...]
    """(label, first, last, lowest, highest) of each series."""
    rows: tuple[tuple[str, ...], ...]
    """Some steps, and what each series has there."""

    @property
    def labels(self) -> tuple[tuple[str, int, int], ...]:
        """Names, colours and dashes of the legend; one line needs none."""
        named = tuple((line.label, line.colour, line.dash) for line in self.lines if not line.faint)
        return named if len(named) > 1 else ()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A series of a chart, and what its line looks like. A dash comes back with the same colour after 36 runs of one
    line, or 18 of two; the first lines are told apart by their dashes alone."""

    label: str
    colour: int
    dash: int
    series: Series


_Group = tuple[str, str, list[_Drawn]]
"""Title, key and lines of a chart."""
Undrawn = tuple[str, str, str, str, str]
"""(metric, first, last, lowest, highest) of one that has no chart."""
Runs = Sequence[tuple[str, Mapping[str, Series]]]
"""(name, metrics) of each."""


def charts(runs: Runs, starts: Sequence[int] = ()) -> tuple[list[Chart], list[Undrawn]]:
    """A chart of each metric, those with names first, and what has none: of very many, all but the first ones. Where
    runs are several, each has a colour; `starts`: steps that later starts of the one run went on from."""
    made, left = _split(runs)
    return [_chart(title, key, drawn, starts) for title, key, drawn in made], _undrawn(left)


def _undrawn(left: Sequence[_Group]) -> list[Undrawn]:
    rows = []
    for title, key, drawn in left:
        for one in drawn:
            _, *ends = _span(one, _writer(key))
            rows.append((_label(title, one.label), *ends))
    more = len(rows) - _MOST_NAMED
    return [*rows[:_MOST_NAMED], *([(f"and {more:,} more", "", "", "", "")] if more > 0 else [])]  # type: ignore[list-item]


def _split(runs: Runs) -> tuple[list[_Group], list[_Group]]:
    """What is drawn, and what is not: what is not whole, and what comes after the last chart."""
    several = len(runs) > 1
    made, left = list[_Group](), list[_Group]()
    for title, members in [*_TOGETHER, *_others(metrics for _, metrics in runs)]:
        drawn = [
            _Drawn(
                _label(name if several else "", word),
                colour=(number if several else place) % COLOURS,
                dash=((number + number // COLOURS) * len(members) + place) % COLOURS,
                series=metrics[key],
            )
            for number, (name, metrics) in enumerate(runs)
            for place, (key, word) in enumerate(members)
            if key in metrics and metrics[key].finite()
        ]
        if drawn:
            fits = len(made) < _MOST_CHARTS and all(one.series.whole for one in drawn)
            (made if fits else left).append((title, members[0][0], drawn))
    return made, left


def _others(metrics: Iterable[Mapping[str, Series]]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """A chart for each metric that has none: what later versions and hooks add is shown, too."""
    rest = dict.fromkeys(key for one in metrics for key in one if key not in NAMED)
    return [(_titled(key), ((key, ""),)) for key in rest]


def _titled(key: str) -> str:
    words = key.removesuffix("_bytes").replace("_", " ").replace("/", " ").strip()
    return words[:1].upper() + words[1:]


def _label(run: str, word: str) -> str:
    return f"{run}, {word}" if run and word else run or word


def _chart(title: str, key: str, drawn: Sequence[_Drawn], starts: Sequence[int]) -> Chart:
    write = _writer(key)
    finite = [one.series.finite() for one in drawn]
    steps = [step for points in finite for step, _ in points]
    values = [value for points in finite for _, value in points]
    across = linear(min(steps), max(steps), plain, whole=True)
    up = of_memory(min(values), max(values)) if write is memory else _vertical(values)
    averages = [means(one.series) for one in drawn]
    lines: list[Line] = []
    for one, average in zip(drawn, averages, strict=True):
        every = pieces(one.series)
        if average:
            lines.append(Line(one.label, one.colour, 0, _path(every, across, up), faint=True, dots=""))
        dots = _dots(every, across, up) if len(one.series) <= _MOST_DOTS else ""
        through = average or every
        lines.append(Line(one.label, one.colour, one.dash, _path(through, across, up), faint=False, dots=dots))
    going_on = [step for step in starts if across.low < step < across.high]
    return Chart(
        key=key,
        title=title,
        log=up.log,
        lines=tuple(lines),
        x_marks=_marks(across, upright=False),
        y_marks=_marks(up, upright=True),
        starts=tuple(Mark(round(100 * across.share(step), 2), f"continued after step {step:,}") for step in going_on),
        averaged=_averaged(one.series for one, average in zip(drawn, averages, strict=True) if average),
        spans=tuple(_span(one, write) for one in drawn),
        rows=_rows(drawn, write),
    )


def _writer(key: str) -> Callable[[float], str]:
    return memory if key.endswith("_bytes") else written


def _averaged(drawn: Iterable[Series]) -> str:
    """Of how many steps each point of these lines is the mean; "" where there are none."""
    steps = sorted(math.ceil((max(series.steps) - min(series.steps)) / MEANS) for series in drawn)
    if not steps:
        return ""
    return counted(steps[-1], "step") if steps[0] == steps[-1] else f"{steps[0]:,} to {counted(steps[-1], 'step')}"


def _vertical(values: Sequence[float]) -> Axis:
    """Linear, unless few values lie so far above the rest that it would hide them."""
    ordered = sorted(values)
    lowest, highest, usual = ordered[0], ordered[-1], ordered[int(0.95 * (len(ordered) - 1))]
    if lowest > 0 and highest > _FAR * usual:
        return logarithmic(lowest, highest, plain)
    return padded(lowest, highest, plain)


def _path(every: Sequence[Piece], across: Axis, up: Axis) -> str:
    """SVG: one move for each piece, then lines."""
    drawn = []
    for piece in every:
        places = [_place(step, value, across, up) for step, value in piece]
        drawn.append("M" + "L".join(places) if len(places) > 1 else f"M{places[0]}h0")
    return "".join(drawn)


def _dots(every: Sequence[Piece], across: Axis, up: Axis) -> str:
    """SVG: a line of no length at each point, whose round ends are the dot."""
    return "".join(f"M{_place(step, value, across, up)}h0" for piece in every for step, value in piece)


def _place(step: float, value: float, across: Axis, up: Axis) -> str:
    return f"{WIDTH * across.share(step):.1f} {HEIGHT * (1 - up.share(value)):.1f}"


def _span(one: _Drawn, write: Callable[[float], str]) -> tuple[str, str, str, str, str]:
    """The last value as it is, which may be nan; else of the finite ones."""
    values, last = [value for _, value in one.series.finite()], one.series.values[-1]
    first, lowest, highest = write(values[0]), write(min(values)), write(max(values))
    return one.label, first, write(last) if math.isfinite(last) else "nan", lowest, highest


def _rows(drawn: Sequence[_Drawn], write: Callable[[float], str]) -> tuple[tuple[str, ...], ...]:
    """Up to some twenty steps, the first and the last among them."""
    columns = [dict(one.series.finite()) for one in drawn]
    steps = sorted({step for column in columns for step in column})
    rarest = min((sorted(column) for column in columns), key=len)
    chosen = rarest if 2 < len(rarest) <= _MOST_ROWS else steps
    every = max(1, -(-len(chosen) // _MOST_ROWS))
    shown = sorted({*chosen[::every], steps[0], steps[-1]})
    return tuple(
        (f"{step:,}", *(write(column[step]) if step in column else "" for column in columns)) for step in shown
    )


def written(value: float) -> str:
    """A value by itself: four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Bars:
    """How many rows are of which length."""

    path: str
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    rows: tuple[tuple[str, str], ...]


def bars(part: object) -> Bars | None:
    """The histogram that data.json has of a part's rows: {"lengths": [[tokens from, tokens to, rows], …]}. None where
    it has none."""
    found = part.get("lengths") if isinstance(part, Mapping) else None
    bins = [one for one in found if _is_bin(one)] if isinstance(found, list) else []
    if not bins or not any(rows for _, _, rows in bins):
        return None
    across = linear(bins[0][0], max(bins[-1][1], bins[0][0] + 1), plain, whole=True)
    up = linear(0, max(rows for _, _, rows in bins), plain, whole=True)
    drawn = []
    for low, high, rows in bins:
        left, right, top = (WIDTH * across.share(low), WIDTH * across.share(high), HEIGHT * (1 - up.share(rows)))
        if rows:
            drawn.append(f"M{left:.1f} {HEIGHT}V{min(top, HEIGHT - 1):.1f}H{max(right - 1, left + 1):.1f}V{HEIGHT}Z")
    return Bars(
        path="".join(drawn),
        x_marks=_marks(across, upright=False),
        y_marks=_marks(up, upright=True),
        rows=tuple(
            (f"{low:,} to {high - 1:,}" if high > low + 1 else f"{low:,}", f"{rows:,}") for low, high, rows in bins
        ),
    )


def _is_bin(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(one) is int and 0 <= one < 2**53 for one in value)


def _marks(axis: Axis, *, upright: bool) -> tuple[Mark, ...]:
    places = ((100 - 100 * axis.share(at) if upright else 100 * axis.share(at), text) for at, text in axis.marks)
    return tuple(Mark(round(place, 2), text) for place, text in places)
