"""Products with float32 weights by oneDNN on AMD's CPUs with AVX-512. Knows no model's name.

torch multiplies bfloat16 by oneDNN and float32 by MKL, which does not count CPUs of AMD's among those with AVX-512
(MKL_VERBOSE=1 says what it takes one for). oneDNN uses what the CPU has. Which one multiplies follows from the CPU and
the shapes alone, never from a measurement: a run that goes on must compute as the one that it continues.
"""

from __future__ import annotations

from typing import Any

import torch

from rankzero.machine import cpu_features

_AMD_WITH_AVX512 = frozenset({"avx512f", "sse4a"})
"""No CPU of Intel's has SSE4a."""
_FEWEST = 1 << 20
"""Multiplications of a product that is worth the microseconds by which a call takes longer."""


def computes_by_onednn() -> bool:
    """Whether float32 is multiplied faster so on this machine, and torch has been built with it."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise") and cpu_features() >= _AMD_WITH_AVX512


def multiply_by_onednn(model: torch.nn.Module) -> int:
    """Let linear layers in float32 compute so, adapters' bases too, whether they are trained or not. How many there
    are."""
    layers = [
        module
        for module in model.modules()
        if type(module) is torch.nn.Linear
        and module.weight.dtype is torch.float32
        and module.weight.device.type == "cpu"
    ]
    for layer in layers:
        layer.__class__ = Linear
    return len(layers)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x Wᵀ + b, (…, in) to (…, out), of float32 on a CPU, and of which autograd sees nothing."""
    if x.numel() * len(weight) < _FEWEST:
        return torch.nn.functional.linear(x, weight, bias)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class Linear(torch.nn.Linear):
    """torch's layer, under torch's name, by which others look for it. What is not float32 is computed as before."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        in_float32 = input.dtype is self.weight.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
        if not in_float32 or input.device.type != "cpu" or input.ndim < 2:
            return super().forward(input)
        result: torch.Tensor = _Linear.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gradient_NO = gradient.flatten(0, -2)
        return (
            product(gradient, weight.T) if of_x else None,
            product(gradient_NO.T, x.flatten(0, -2).T) if of_weight else None,
            gradient_NO.sum(0) if of_bias else None,
        )
