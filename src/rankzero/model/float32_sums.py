"""Gradients that many tokens have a part in, in half precision: added up in float32. Knows no model's name.

In some of its kernels torch adds up in the precision of what it is given there: for rows of a table that are looked up,
and for a LayerNorm's weight and bias. A sum of bfloat16 values in bfloat16 ends where it is some 256 times what is
added: the gradient of a token that comes up often, or of a bias that all tokens share, would lack most of itself. GPUs
add up in float32, but for what is looked up by an index: the biases of experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn.functional import embedding, layer_norm


def sum_in_float32(model: torch.nn.Module, device_kind: str = "cpu") -> int:
    """Let the gradients of all layers that would round their sums on this kind of device be added up in float32,
    wherever they are trained. How many there are."""
    found = 0
    for module in model.modules():
        part = _part_for(module)
        if part is not None and (device_kind == "cpu" or part is SummedBiases):
            kind: Any = type(module)
            module.__class__ = _summed(kind, part)
            found += 1
    return found


def _part_for(module: torch.nn.Module) -> Any:
    """What takes the place of its own computing; None where nothing does."""
    if isinstance(module, SummedEmbedding | SummedLayerNorm | SummedBiases):
        return None
    if isinstance(module, torch.nn.Embedding):
        return SummedEmbedding
    if type(module) is torch.nn.LayerNorm:
        return SummedLayerNorm
    return SummedBiases if _expert_biases(module) else None


def _rounds(weight: torch.Tensor) -> bool:
    """Whether the gradient of this weight would be added up in half precision."""
    return weight.device.type == "cpu" and _is_half(weight)


def _is_half(weight: torch.Tensor) -> bool:
    """Whether it has a gradient in half precision."""
    half = weight.dtype in (torch.bfloat16, torch.float16)
    return half and weight.requires_grad and torch.is_grad_enabled()


@contextmanager
def lent(layer: torch.nn.Module, **weights: torch.Tensor) -> Iterator[None]:
    """For the duration a layer computes with these weights in the place of its own."""
    own = layer._parameters
    layer.__dict__["_parameters"] = {**own, **weights}
    try:
        yield
    finally:
        layer.__dict__["_parameters"] = own


class SummedEmbedding(torch.nn.Embedding):
    """Stands between a model's own kind of embedding, which may scale what it looks up, and torch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plain = self.max_norm is None and not self.scale_grad_by_freq and not self.sparse
        return looked_up(self.weight, input, self.padding_idx) if plain else super().forward(input)


def looked_up(weight: torch.Tensor, ids: torch.Tensor, padding: int | None = None) -> torch.Tensor:
    """Rows of `weight` by number; their gradients are added up in float32. That of row `padding` is 0."""
    if not _rounds(weight):
        return embedding(ids, weight, padding)
    found: torch.Tensor = _Lookup.apply(weight, ids, padding)  # type: ignore[no-untyped-call]
    return found


class SummedLayerNorm(torch.nn.LayerNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rounds = any(_rounds(weight) for weight in self.parameters(recurse=False))
        if torch.compiler.is_compiling() or not rounds:
            return super().forward(input)  # a compiler makes kernels of its own, which add up in float32
        normed: torch.Tensor = _LayerNorm.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )
        return normed


class SummedBiases(torch.nn.Module):
    """Experts whose biases are looked up, each expert's for each token that visits it."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        held = {name: self._parameters[name] for name in _expert_biases(self)} if _looks_up(self) else {}
        with lent(self, **{name: bias.float() for name, bias in held.items() if bias is not None and _is_half(bias)}):
            return super().forward(*inputs, **named)


def _looks_up(experts: torch.nn.Module) -> bool:
    """Whether they are computed all at once. Where one comes after the other (eager), torch adds up an expert's bias in
    float32 itself, and a float32 one would meet weights in half precision. Experts of a model's own code do not say
    how they compute: on GPUs they are left as they are."""
    way = getattr(getattr(experts, "config", None), "_experts_implementation", None)
    if way is None:
        return all(held.device.type == "cpu" for held in experts.parameters(recurse=False))
    return bool(way != "eager")


def _expert_biases(module: torch.nn.Module) -> list[str]:
    """Of a module that holds those of all experts in one tensor; the weights that they belong to lie beside them."""
    held = dict(module.named_parameters(recurse=False))
    return [
        name
        for name, bias in held.items()
        if bias.ndim == 2
        and name.endswith("_bias")
        and (of := held.get(name.removesuffix("_bias"))) is not None
        and of.ndim == 3
    ]


class _LayerNorm(torch.autograd.Function):
    """As torch's, whose backward pass is in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        shape: tuple[int, ...],
        eps: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight, bias)
        ctx.shape, ctx.eps = shape, eps
        return layer_norm(input, shape, weight, bias, eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        held = ctx.saved_tensors
        with torch.enable_grad():
            wide: list[Any] = [None if one is None else one.detach().float().requires_grad_() for one in held]
            normed = layer_norm(wide[0], ctx.shape, wide[1], wide[2], ctx.eps)
        asked = [one for one, needed in zip(wide, ctx.needs_input_grad, strict=False) if one is not None and needed]
        found = iter(torch.autograd.grad(normed, asked, gradient.float()))
        given = [
            next(found).to(one.dtype) if one is not None and needed else None
            for one, needed in zip(held, ctx.needs_input_grad, strict=False)
        ]
        return *given, None, None


@cache
def _summed(kind: type[Any], part: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found. `part` stands between a model's own kind, which
    may do more, and torch's."""
    bases = (part,) if issubclass(part, kind) else (kind, part) if part is SummedEmbedding else (part, kind)
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
