"""Products of linear layers on CPUs where torch's own choice is a slow one. Knows no model's name.

torch multiplies bfloat16 by oneDNN and float32 by MKL.

- AMD's CPUs with AVX-512: MKL does not count them among those that have it (MKL_VERBOSE=1 says what it takes one for).
  float32 is multiplied by oneDNN, which uses what the CPU has.
- Intel's since Sapphire Rapids where their tiles (AMX) are hidden, as virtual machines may have it: what is left for
  bfloat16 makes half as many products a second as float32 does. bfloat16 is widened to float32, which is exact, a part
  of the weight at a time; products are added up in float32, as they are by oneDNN, and the sum is rounded once.

Which one multiplies follows from the CPU and the shapes alone, never from a measurement: a run that goes on must
compute as the one that it continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rankzero.machine import cpu_features

_AMD_WITH_AVX512 = frozenset({"avx512f", "sse4a"})
"""No CPU of Intel's has SSE4a."""
_SLOW_IN_BFLOAT16 = frozenset({"avx512_bf16", "avx512_fp16"})
"""And neither SSE4a nor AMX. Not Cooper Lake, which has no avx512_fp16 and was not tried."""
_FEWEST = 1 << 20
"""Multiplications of a product that is worth the microseconds by which a call of oneDNN takes longer."""
_FEWEST_TOKENS = 64
"""Of a product for which a weight is widened; with fewer, reading it in 16 bits is what takes the time."""
_AT_ONCE = 1 << 22
"""Values of a weight that are widened at once: 16 MiB."""


def own_precisions() -> frozenset[str]:
    """float32 or bfloat16 where, on this machine's CPU, its products are made faster here than by torch."""
    features = cpu_features()
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if available and hasattr(torch.ops.mkldnn, "_linear_pointwise") and features >= _AMD_WITH_AVX512:
        return frozenset({"float32"})
    slow = features >= _SLOW_IN_BFLOAT16 and not features & {"sse4a", "amx_bf16"}
    return frozenset({"bfloat16"} if slow else ())


def multiply_faster(model: torch.nn.Module) -> int:
    """Let linear layers compute so where that is faster on this CPU, adapters' bases too, whether they are trained or
    not. How many there are."""
    precisions = frozenset(getattr(torch, name) for name in own_precisions())
    held = precisions | {torch.float32}  # which autocast rounds
    if not precisions:
        return 0
    layers: list[Any] = [
        module
        for module in model.modules()
        if type(module) is torch.nn.Linear and module.weight.dtype in held and module.weight.device.type == "cpu"
    ]
    for layer in layers:
        layer.__class__ = Linear
        layer.precisions = precisions
    return len(layers)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x Wᵀ + b on a CPU, of which autograd sees nothing: (…, in) in float32 or bfloat16 to (…, out) in the same, to
    which weights are rounded first."""
    if x.dtype is torch.float32:
        return _by_onednn(x, weight, bias)
    bias = None if bias is None else bias.to(x.dtype)
    tokens = x.numel() // max(1, x.shape[-1])
    with torch.autocast("cpu", enabled=False):
        if tokens < _FEWEST_TOKENS:
            return torch.nn.functional.linear(x, weight.to(x.dtype), bias)
        out = x.new_empty(*x.shape[:-1], len(weight))
        wide_NI, out_NO = x.reshape(tokens, -1).float(), out.view(tokens, -1)
        for rows, wide_oI in _widened(weight, x.dtype):
            part = wide_NI @ wide_oI.T
            out_NO[:, rows] = part if bias is None else part.add_(bias[rows])
    return out  # and no view of it: who is given one may not change it in place


def product_back(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """dO W: the gradient of `product`'s x, from that of what it gives, (…, out), to (…, in)."""
    if gradient.dtype is torch.float32:
        return _by_onednn(gradient, weight.T)
    tokens = gradient.numel() // max(1, gradient.shape[-1])
    with torch.autocast("cpu", enabled=False):
        if tokens < _FEWEST_TOKENS:
            return gradient @ weight.to(gradient.dtype)
        gradient_NO = gradient.reshape(tokens, -1)
        sum_NI = torch.zeros(tokens, weight.shape[1])
        for rows, wide_oI in _widened(weight, gradient.dtype):
            sum_NI.addmm_(gradient_NO[:, rows].float(), wide_oI)
    return sum_NI.to(gradient.dtype).view(*gradient.shape[:-1], -1)


def _of_weight(gradient_NO: torch.Tensor, x_NI: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """dOᵀ x, in the weight's precision."""
    if x_NI.dtype is torch.float32:
        return _by_onednn(gradient_NO.T, x_NI.T)
    with torch.autocast("cpu", enabled=False):
        if len(x_NI) < _FEWEST_TOKENS:
            return (gradient_NO.T @ x_NI).to(weight.dtype)
        wide_NI, sum_OI = x_NI.float(), torch.empty_like(weight)
        for rows in _rows(weight):
            sum_OI[rows] = gradient_NO[:, rows].float().T @ wide_NI
    return sum_OI


def _by_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.numel() * len(weight) < _FEWEST:
        return torch.nn.functional.linear(x, weight, bias)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _rows(weight: torch.Tensor) -> Iterator[slice]:
    """Of a weight, (out, in): some at a time."""
    at_once = max(1, _AT_ONCE // weight.shape[1])
    return (slice(first, first + at_once) for first in range(0, len(weight), at_once))


def _widened(weight: torch.Tensor, precision: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some rows of a weight at a time in float32, (o, in), rounded to `precision`; each until the next is asked for."""
    parts = list(_rows(weight))
    place = torch.empty(weight[parts[0]].shape)
    for rows in parts:
        part = weight[rows].to(precision)
        yield rows, place[: len(part)].copy_(part)


class Linear(torch.nn.Linear):
    """torch's layer, under torch's name, by which others look for it. What is in another precision is computed as
    before."""

    precisions: frozenset[torch.dtype]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        precision = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        if not self.multiplies(input, precision):
            return super().forward(input)
        result: torch.Tensor = _Linear.apply(input.to(precision), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result

    def multiplies(self, x: torch.Tensor, precision: torch.dtype) -> bool:
        """Whether a product with x in this precision is made here."""
        if precision not in self.precisions or x.device.type != "cpu" or x.ndim < 2:
            return False
        rounded = {precision, torch.float32} if torch.is_autocast_enabled("cpu") else {precision}
        return x.dtype in rounded and self.weight.dtype in rounded


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.bias_in = None if bias is None else bias.dtype
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gradient_NO = gradient.flatten(0, -2)
        return (
            product_back(gradient, weight) if of_x else None,
            _of_weight(gradient_NO, x.flatten(0, -2), weight) if of_weight else None,
            gradient_NO.sum(0, dtype=torch.float32).to(ctx.bias_in) if of_bias else None,
        )
