"""What evaluations measure: and which way is better. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rankzero.spec.tasks import TASKS

MEASURES = ("eval_loss", *dict.fromkeys(name for task in TASKS.values() for name in task.metrics))
"""The names of what evaluations measure, wherever numbers are kept by name."""
HIGHER_IS_BETTER = frozenset(
    name for task in TASKS.values() for name, better in task.metrics.items() if better == "higher"
)


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
