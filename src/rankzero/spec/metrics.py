"""What evaluations measure: which way is better, and the one formula that is not a mean. Pure."""

from __future__ import annotations

from collections.abc import Sequence

HIGHER_IS_BETTER = frozenset({"accuracy", "macro_f1"})


def is_better(metric: str, value: float, than: float | None) -> bool:
    """Whether a value is a new best. NaN never is."""
    if value != value:
        return False
    return than is None or (value > than if metric in HIGHER_IS_BETTER else value < than)


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
