"""Dropout by place as one kernel of Triton: a value is read, kept or not, scaled, and written.

It is dropout.py's operations on integers, bit by bit, of which a GPU would make two dozen kernels. Imported where
Triton is installed. Knows tensors and keys; not where values stand, nor whether a device can make it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_G: tl.constexpr = tl.constexpr(0x9E3779B9 - 2**32)
_FIRST: tl.constexpr = tl.constexpr(0x7FEB352D)
_SECOND: tl.constexpr = tl.constexpr(0x846CA68B - 2**32)


@triton.jit  # type: ignore[untyped-decorator]
def _drop(values, keys, out, channels, below, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    bits = tl.load(keys + token) ^ ((channel >> 1) * _G)
    bits = bits * _FIRST
    bits = bits ^ (bits >> 15)
    bits = bits * _SECOND
    half = tl.where((channel & 1) == 0, (bits << 16) >> 16, bits >> 16)
    at = token * channels + channel
    value = tl.load(values + at, mask=inside, other=0.0)
    kept = tl.where((half >> 1) < below, value.to(tl.float32) * scale, 0.0)
    tl.store(out + at, kept.to(value.dtype), mask=inside)


def dropped(values: torch.Tensor, keys: torch.Tensor, below: int, scale: float) -> torch.Tensor:
    """`values`, shape (…, C), in float32 or half of it: those whose number is `below` times `scale`, the others 0; keys
    of a shape that broadcasts to (…)."""
    values = values.contiguous()
    channels = values.shape[-1]
    keys, out = keys.expand(values.shape[:-1]).contiguous(), torch.empty_like(values)
    if values.numel():
        grid = (keys.numel(), triton.cdiv(channels, _BLOCK))
        _drop[grid](values, keys, out, channels, below, scale, BLOCK=_BLOCK)
    return out
