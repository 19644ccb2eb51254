"""Gradients of trained embeddings in half precision on a CPU, where torch adds them up in that precision.

A sum of bfloat16 values in bfloat16 ends where it is some 256 times what is added: the gradient of a token that comes
up often would lack most of itself. GPUs add up in float32. Knows no model's name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.functional import embedding


def sum_embeddings(model: torch.nn.Module) -> int:
    """Let the gradients of all embeddings be added up in float32. How many there are."""
    found = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    for module in found:
        kind: Any = type(module)
        if not issubclass(kind, SummedEmbedding):
            module.__class__ = _summed(kind)
    return len(found)


class SummedEmbedding(torch.nn.Embedding):
    """Stands between a model's own kind of embedding, which may scale what it looks up, and torch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        rounds = weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16)
        plain = self.max_norm is None and not self.scale_grad_by_freq and not self.sparse
        if not (rounds and plain and weight.requires_grad and torch.is_grad_enabled()):
            return super().forward(input)
        found: torch.Tensor = _Lookup.apply(weight, input, self.padding_idx)  # type: ignore[no-untyped-call]
        return found


@cache
def _summed(kind: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found."""
    bases = (SummedEmbedding,) if kind is torch.nn.Embedding else (kind, SummedEmbedding)
    return type(kind.__name__, bases, {"__module__": kind.__module__})


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, padding: int | None) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.dtype, ctx.padding = weight.shape, weight.dtype, padding
        return embedding(ids, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        total = torch.zeros(ctx.shape, dtype=torch.float32)
        total.index_add_(0, ids.reshape(-1), gradient.reshape(-1, ctx.shape[-1]).float())
        if ctx.padding is not None:
            total[ctx.padding] = 0
        return total.to(ctx.dtype), None, None
