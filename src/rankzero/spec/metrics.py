"""What evaluations measure: which way is better, and the one formula that is not a mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from rankzero.spec.run_spec import Metric

MEASURES: tuple[Metric, ...] = get_args(Metric)
"""The names of what evaluations measure, wherever numbers are kept by name."""
HIGHER_IS_BETTER = frozenset({"accuracy", "macro_f1"})


def is_better(metric: str, value: float, than: float | None) -> bool:
    """Whether a value is a new best. NaN never is."""
    if value != value:
        return False
    return than is None or (value > than if metric in HIGHER_IS_BETTER else value < than)


def becomes_best(metric: str, later: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
    """Whether a later evaluation takes the place of the best one so far: by the metric; where that is the same, by the
    lower eval_loss; where that is the same too, because it is later and so of a model that has seen more."""
    if best is None or metric not in best or later[metric] != best[metric]:
        return is_better(metric, later[metric], None if best is None else best.get(metric))
    return later["eval_loss"] <= best["eval_loss"] or best["eval_loss"] != best["eval_loss"]


def macro_f1(confusion: Sequence[Sequence[float]]) -> float:
    """Mean F1 over the classes that occur, as a target or as a prediction; `confusion[target][predicted]` counts.

    F1 of a class = 2 x hits / (rows of the class + rows predicted as it).
    """
    predicted: list[float] = [sum(column) for column in zip(*confusion, strict=True)]
    scores: list[float] = [
        2 * confusion[i][i] / (sum(confusion[i]) + predicted[i])
        for i in range(len(confusion))
        if sum(confusion[i]) + predicted[i]
    ]
    return sum(scores) / len(scores)
