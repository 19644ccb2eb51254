"""A step of AdamW over bfloat16 weights as one kernel of Triton, where operations of torch would be sixty.

It is adamw_bfloat16.py's arithmetic in float32, with the same random numbers. Imported where Triton is installed. Knows
flat tensors and numbers; not where weights stand, nor whether a device can make it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_FIRST: tl.constexpr = tl.constexpr(0x7FEB352D)
_SECOND: tl.constexpr = tl.constexpr(0x846CA68B - 2**32)
_CUT: tl.constexpr = tl.constexpr(-0x10000)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What all elements of a weight share in a step: with its rate `lr`, that which Adam's update is multiplied with
    (`-lr / (1 - beta1^t)`), that which weights shrink by (`-lr * weight_decay`), and `1 - beta2^t`."""

    beta1: float
    beta2: float
    eps: float
    rate: float
    shrink: float
    unbias: float


@triton.jit
def _random(place, begin, second):  # type: ignore[no-untyped-def]
    bits = place + begin
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * _FIRST ^ second
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * _SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit
def _rounded(values, half):  # type: ignore[no-untyped-def]
    bits = values.to(tl.int32, bitcast=True) + half
    rounded = (bits & _CUT).to(tl.float32, bitcast=True)
    return tl.where(values != values, values, rounded).to(tl.bfloat16)  # NVIDIA's NaN, all bits set, would overflow


@triton.jit
def _nearest(values):  # type: ignore[no-untyped-def]
    """To even where two are as near, as a cast on a GPU does and Triton's interpreter does not."""
    return _rounded(values, 0x7FFF + ((values.to(tl.int32, bitcast=True) >> 16) & 1))


@triton.jit(do_not_specialize=["begin_m", "second_m", "begin_w", "second_w"])  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    weights, firsts, seconds, owed, gradients, count,
    begin_m, second_m, begin_w, second_w,
    beta1, beta2, eps, rate, shrink, unbias,
    KAHAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    w = tl.load(weights + place, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(firsts + place, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(seconds + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradients + place, mask=inside, other=0.0).to(tl.float32)
    m = m + (1 - beta1) * (g - m)
    v = v * beta2 + (1 - beta2) * g * g
    bits = _random(place, begin_m, second_m)
    tl.store(firsts + place, _rounded(m, (bits >> 16) & 0xFFFF), mask=inside)
    tl.store(seconds + place, _rounded(v, bits & 0xFFFF), mask=inside)
    change = m / (tl.sqrt(v / unbias) + eps) * rate + w * shrink
    if KAHAN:
        change += tl.load(owed + place, mask=inside, other=0.0).to(tl.float32)
        moved = _nearest(w + change)
        tl.store(owed + place, _nearest(w - moved.to(tl.float32) + change), mask=inside)
        tl.store(weights + place, moved, mask=inside)
    else:
        bits = _random(place, begin_w, second_w)
        tl.store(weights + place, _rounded(w + change, (bits >> 16) & 0xFFFF), mask=inside)


def move(
    weight: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    compensation: torch.Tensor | None,
    gradient: torch.Tensor,
    keys: tuple[tuple[int, int], tuple[int, int]],
    numbers: Numbers,
) -> None:
    """Move a weight, shape (N,) with N below 2^31, in bfloat16 like its moments and, with kahan, `compensation`.

    `keys`: for the moments and for the weight, what is added to an element's place and what is mixed in after, int32.
    """
    (begin_m, second_m), (begin_w, second_w) = keys
    kahan, count = compensation is not None, len(weight)
    _move[(triton.cdiv(count, _BLOCK),)](
        weight, *moments, compensation if kahan else weight, gradient, count,
        begin_m, second_m, begin_w, second_w,
        numbers.beta1, numbers.beta2, numbers.eps, numbers.rate, numbers.shrink, numbers.unbias,
        KAHAN=kahan, BLOCK=_BLOCK,
    )  # fmt: skip
