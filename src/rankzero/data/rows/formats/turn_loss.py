"""Whether a turn or a row is trained and how much a turn counts, as its keys say. Knows nothing of other keys, or of
the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rankzero.data.rows.problems import RowProblem, kind

_FLAGS = ("loss", "train", "training", "output_with_loss")
_WEIGHTS = ("weight", "loss_weight", "loss_scale")
LOSS_KEYS = frozenset({*_FLAGS, *_WEIGHTS})
"""Names under which turns say it: flags are true or false, weights are numbers, 0 is not trained."""
_LEAST, _MOST = 1e-12, 1e12
"""Losses are multiplied and summed up in float32, where what is beyond these becomes nothing, or no number."""


@dataclass(frozen=True, slots=True)
class TurnLoss:
    """What a turn says of its loss. `train`: None where it says nothing. `weight`: above 0."""

    train: bool | None = None
    weight: float = 1.0


_NOTHING_SAID = TurnLoss()


def read_loss(item: Mapping[str, Any], role: object, line: int, where: str) -> TurnLoss | RowProblem:
    """What the keys of a turn say of its loss, or what is wrong with them. A null says nothing."""
    if LOSS_KEYS.isdisjoint(item):
        return _NOTHING_SAID
    flags = {key: item[key] for key in _FLAGS if item.get(key) is not None}
    weights = {key: item[key] for key in _WEIGHTS if item.get(key) is not None}
    for key, value in flags.items():
        if not isinstance(value, bool):
            what = f"{where}.{key} is {kind(value)}, not true or false"
            hint = f'a turn is trained or it is not; a number is a weight: "loss_weight": {_shown(value)}'
            return RowProblem(line, "bad loss flag", what, hint)
    for key, value in weights.items():
        hint = "1 counts in full, 0.5 half, 0 is not trained"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            return RowProblem(line, "bad weight", f"{where}.{key} is {kind(value)}, not a number of at least 0", hint)
        if value and not _LEAST <= value <= _MOST:
            what = f"{where}.{key} is {kind(value)}, which is not 0 and not between {_LEAST:g} and {_MOST:g}"
            return RowProblem(line, "bad weight", what, f"{hint}; weights count by their ratio alone")
    said = {*flags.values(), *(value > 0 for value in weights.values())}
    if len(said) > 1 or len({float(value) for value in weights.values()}) > 1:
        keys = " and ".join(f"`{key}`" for key in (*flags, *weights))
        what = f"{where} has {keys}, which contradict each other"
        return RowProblem(line, "bad loss flag", what, "keep one of them")
    train = said.pop() if said else None
    if train and role != "assistant":
        what = f"{where} asks to train a {str(role)[:40]} turn"
        return RowProblem(line, "training another role", what, "only assistant turns can be asked for; remove the key")
    weight = float(next(iter(weights.values()), 1.0))
    return TurnLoss(train, weight if weight > 0 else 1.0)


def untrained_row(row: Mapping[str, Any]) -> str | None:
    """The key by which a whole row says that it is not trained. Only what can mean nothing else: a loss of 0.0 was
    measured, and other weights are their owner's."""
    if LOSS_KEYS.isdisjoint(row):
        return None
    flags = (key for key in _FLAGS if str(row.get(key)).lower() == "false")
    weights = (key for key in _WEIGHTS if str(row.get(key)) in ("0", "0.0"))  # tables of text have numbers as text
    return next(chain(flags, weights), None)


def _shown(value: object) -> str:
    return kind(value) if isinstance(value, (int, float)) else "0.5"
