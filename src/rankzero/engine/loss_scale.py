"""The loss scale of float16: what a loss is multiplied by so that small gradients do not round to zero, and its growth.

It is numbers in a Position and nothing else: every rank has the same, since all see the same gradient norm, and a
checkpoint holds it to the last bit. Scales are powers of two, so that one changes no bit of a gradient where nothing
overflows or rounds to zero. After P. Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rankzero.engine.checkpoint import Position

FIRST_SCALE = 2.0**16
SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**24
CLEAN_STEPS = 2000
"""Steps without an overflow after which the scale is doubled."""


def with_loss_scale(position: Position, dtype: torch.dtype) -> Position:
    """A position to train on from in `dtype`: float16 has a scale, other precisions have none."""
    if dtype is not torch.float16:
        return replace(position, loss_scale=None, clean_steps=0)
    return position if position.loss_scale is not None else replace(position, loss_scale=FIRST_SCALE)


def after_overflow(position: Position) -> Position | None:
    """Half the scale; None where there is none, or where it cannot be halved any more."""
    if position.loss_scale is None or position.loss_scale <= SMALLEST_SCALE:
        return None
    return replace(position, loss_scale=position.loss_scale / 2, clean_steps=0, overflows=position.overflows + 1)


def after_step(position: Position) -> Position:
    """One more step without an overflow, and twice the scale after CLEAN_STEPS of them."""
    if position.loss_scale is None:
        return position
    clean = position.clean_steps + 1
    if clean < CLEAN_STEPS:
        return replace(position, clean_steps=clean)
    return replace(position, loss_scale=min(2 * position.loss_scale, LARGEST_SCALE), clean_steps=0)
