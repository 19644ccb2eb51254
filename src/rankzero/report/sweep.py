"""The page of a sweep: its history, which fields matter, and every trial as a line through the fields' axes.

Knows plain values alone: who searches, and how, is said by whoever asks for the page.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankzero.redaction import Redactor
from rankzero.report.curves import HEIGHT, WIDTH, Mark, written
from rankzero.report.page import render_page
from rankzero.report.ticks import Axis, linear, logarithmic, padded, plain

_MOST_NAMES = 12
_TEXT_LONGEST = 24


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial, as the page has it."""

    number: int
    state: str
    """In words."""
    value: float | None
    """None where it has no result."""
    complete: bool
    fields: Mapping[str, object]
    """What was set, by the field's name: numbers for ranges, else text."""
    run: str
    """Where its run's page is, relative to this one."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One field's axis."""

    name: str
    kind: Literal["numbers", "names"]
    log: bool = False


@dataclass(frozen=True, slots=True)
class SweepPage:
    """All that the page says."""

    name: str
    metric: str
    higher_is_better: bool
    method: str
    dimensions: tuple[Dimension, ...]
    trials: tuple[TrialRow, ...]
    planned: int
    importances: Mapping[str, float]
    best: int | None


@dataclass(frozen=True, slots=True)
class History:
    """What each trial scored, and the best so far."""

    dots: str
    """Completed trials."""
    early: str
    """Last evaluations of those that ended early."""
    best: str
    log: bool
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Pillar:
    """One axis of the parallel coordinates."""

    name: str
    at: float
    """Per cent from the left."""
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Thread:
    """One trial through all axes. `rank` is 0 for the best, then 1 to 4 by quarters."""

    path: str
    rank: int
    text: str


def sweep_page(sweep: SweepPage) -> str:
    """The page as HTML."""
    done = [trial for trial in sweep.trials if trial.complete]
    best = next((trial for trial in sweep.trials if trial.number == sweep.best), None)
    pillars, threads = coordinates(sweep)
    names = [dimension.name for dimension in sweep.dimensions]
    order = sorted(sweep.trials, key=lambda trial: (not trial.complete, _worse(sweep, trial), trial.number))
    rows = [
        (
            str(trial.number),
            "" if trial.value is None else written(trial.value),
            *(_words(trial.fields.get(name)) for name in names),
            f"{trial.state}: {trial.cause}" if trial.cause else trial.state,
            trial.run,
        )
        for trial in order
    ]
    facts = [
        ("Best", "" if best is None or best.value is None else f"{written(best.value)} (trial {best.number})"),
        ("Compared by", f"{sweep.metric}, {'higher' if sweep.higher_is_better else 'lower'} is better"),
        ("Trials", f"{len(sweep.trials)} of {sweep.planned}"),
        ("With a result", str(len(done))),
        ("Chosen by", sweep.method),
    ]
    return render_page(
        "sweep.html.jinja",
        title=sweep.name,
        sweep=sweep,
        facts=[(name, value) for name, value in facts if value],
        chosen=[] if best is None else [(name, _words(best.fields.get(name))) for name in names],
        history=history(sweep),
        importances=[(name, share, f"{100 * share:.1f} %") for name, share in sweep.importances.items()],
        pillars=pillars,
        threads=threads,
        heads=("Trial", sweep.metric, *names, "How it ended", "Run"),
        rows=rows,
    )


def history(sweep: SweepPage) -> History | None:
    """The chart of what was found when; None where nothing has a number yet."""
    points = [(trial.number, trial.value, trial.complete) for trial in sweep.trials if _finite(trial.value)]
    values = [float(value or 0) for _, value, _ in points]
    if not values:
        return None
    across = linear(0, max(sweep.planned - 1, points[-1][0], 1), plain, whole=True)
    ordered = sorted(values)
    spread = ordered[0] > 0 and ordered[-1] > 10 * ordered[len(ordered) // 2]
    up = (logarithmic if spread else padded)(ordered[0], ordered[-1], plain)

    def place(number: int, value: float) -> str:
        return f"{WIDTH * across.share(number):.1f} {HEIGHT * (1 - up.share(value)):.1f}"

    best: list[str] = []
    so_far: float | None = None
    for number, value, complete in points:
        if complete and value is not None:
            better = so_far is None or (value > so_far if sweep.higher_is_better else value < so_far)
            if so_far is not None and better:
                best.append(place(number, so_far))
            so_far = value if better else so_far
            best.append(place(number, so_far or 0.0))
    return History(
        dots="".join(f"M{place(number, value or 0)}h0" for number, value, complete in points if complete),
        early="".join(f"M{place(number, value or 0)}h0" for number, value, complete in points if not complete),
        best=f"M{'L'.join(best)}" if len(best) > 1 else "",
        log=up.log,
        x_marks=tuple(Mark(round(100 * across.share(at), 2), text) for at, text in across.marks),
        y_marks=tuple(Mark(round(100 - 100 * up.share(at), 2), text) for at, text in up.marks),
    )


def coordinates(sweep: SweepPage) -> tuple[list[Pillar], list[Thread]]:
    """The axes, the score last, and a line for each completed trial, the best drawn last. Empty where there is none."""
    done = [trial for trial in sweep.trials if trial.complete and _finite(trial.value)]
    if not done:
        return [], []
    score = Dimension(sweep.metric, "numbers")
    columns: list[tuple[Dimension, list[Any]]] = [
        *((one, [trial.fields.get(one.name) for trial in done]) for one in sweep.dimensions),
        (score, [trial.value for trial in done]),
    ]
    last = max(len(columns) - 1, 1)
    pillars, heights = [], []
    for index, (dimension, values) in enumerate(columns):
        marks, shares = _pillar(dimension, values)
        pillars.append(Pillar(dimension.name, round(100 * index / last, 2), marks))
        heights.append(shares)
    ranked = sorted(range(len(done)), key=lambda at: (_worse(sweep, done[at]), done[at].number))
    threads = []
    for rank, at in reversed(list(enumerate(ranked))):
        places = [f"{WIDTH * index / last:.1f} {HEIGHT * (1 - shares[at]):.1f}" for index, shares in enumerate(heights)]
        quarter = 0 if rank == 0 else 1 + min(3, 4 * rank // len(done))
        text = f"trial {done[at].number}: {sweep.metric} {written(done[at].value or 0.0)}"
        threads.append(Thread("M" + "L".join(places), quarter, text))
    return pillars, threads


def _pillar(dimension: Dimension, values: Sequence[Any]) -> tuple[tuple[Mark, ...], list[float]]:
    """Marks in per cent from the top, and how far up each value lies."""
    if dimension.kind == "names":
        names = list(dict.fromkeys(_words(value) for value in values))
        step = 1 / max(len(names) - 1, 1)
        height = {name: index * step if len(names) > 1 else 0.5 for index, name in enumerate(names)}
        shown = names if len(names) <= _MOST_NAMES else []
        return tuple(Mark(round(100 - 100 * height[name], 2), _cut(name)) for name in shown), [
            height[_words(value)] for value in values
        ]
    numbers = [float(value) for value in values]
    axis = _axis(min(numbers), max(numbers), log=dimension.log)
    marks = tuple(Mark(round(100 - 100 * axis.share(at), 2), text) for at, text in axis.marks)
    return marks, [axis.share(number) for number in numbers]


def _axis(low: float, high: float, *, log: bool) -> Axis:
    return logarithmic(low, high, plain) if log and low > 0 else linear(low, high, plain)


def _worse(sweep: SweepPage, trial: TrialRow) -> float:
    value = trial.value
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if sweep.higher_is_better else value


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _cut(words: str) -> str:
    """As much as there is room for, without secrets: a part of one would not be known again."""
    words = Redactor(os.environ)(words)
    return words if len(words) <= _TEXT_LONGEST else words[: _TEXT_LONGEST - 1] + "…"


def _words(value: object) -> str:
    """A value in full: by this it is told apart from others."""
    if value is None:
        return ""
    return written(float(value)) if isinstance(value, float) else str(value)
