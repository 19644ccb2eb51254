"""Adapters over linear layers as one step forward and one backward. Knows peft's layers and tensors.

peft's layer copies its input in float32, drops, rounds again, and keeps copies for the backward pass. Here the input is
kept once, as the layer got it; what is dropped is found again by place (model/dropout.py), as bits; and both scales,
that of the adapter and the 1 / (1 - p) of dropout, are those of a small product:

    out = x Wᵀ + s D(x) Aᵀ Bᵀ,  where D sets to 0 and s = scaling / (1 - p)
    dB = s dOᵀ (D(x) Aᵀ),  dA = s (dO B)ᵀ D(x),  dx = dO W + s D(dO B A)

Where the base is a frozen linear layer in the precision of the products, its own are part of the step, and the
adapter's are added in place: a sum of two tensors of activations costs as much as reading three. What holds its weights
otherwise (in 4 or 8 bits, in another precision) computes them itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from peft.tuners.lora.layer import Linear, LoraLayer

from rankzero.model import cpu_products
from rankzero.model.dropout import PlacedDropout, Share, alone, by_kernel, kept


def fuse_adapters(model: torch.nn.Module) -> int:
    """Let peft's adapters on linear layers compute so, whatever holds the base's weights. How many there are."""
    kinds = {Linear, _over_4_bits()}
    layers = [module for module in model.modules() if type(module) in kinds]
    for layer in layers:
        kind: Any = type(layer)
        layer.__class__ = _fused(kind)
    return len(layers)


def _over_4_bits() -> Any:
    """peft's class for layers of bitsandbytes; None where there can be none, as nothing has imported it."""
    return getattr(sys.modules.get("peft.tuners.lora.bnb"), "Linear4bit", None)


@cache
def _fused(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (FusedAdapter, kind), {"__module__": kind.__module__})


class FusedAdapter(torch.nn.Module, LoraLayer):  # type: ignore[misc]
    """What takes the place of an adapter's own computing. What it is not made for (DoRA, merged or several adapters,
    dropout of which nobody knows the places) is computed by peft."""

    base_layer: Any
    lora_A: Any
    lora_B: Any
    lora_dropout: Any
    lora_variant: Any
    scaling: Any
    active_adapters: Any

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        name = self._only_adapter()
        dropout = None if name is None else self.lora_dropout[name]
        drops = dropout is not None and self.training and not isinstance(dropout, torch.nn.Identity)
        keys, share = None, None
        if drops and isinstance(dropout, PlacedDropout):
            keys, share = dropout.keys(x), dropout.share
        if name is None or args or kwargs or (drops and keys is None):
            given: torch.Tensor = super().forward(x, *args, **kwargs)
            return given
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.lora_A[name].weight.dtype
        rule = _Rule(self.scaling[name], share, dtype)
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        adapted: torch.Tensor
        if self._takes_part(x, dtype):
            weight, bias = self.base_layer.weight, self.base_layer.bias
            ours = type(self.base_layer) is cpu_products.Linear and self.base_layer.multiplies(x, dtype)
            rule = replace(rule, own_products=ours)
            adapted = _Linear.apply(x, weight, bias, a, b, keys, rule)  # type: ignore[no-untyped-call]
        else:
            rule = replace(rule, in_place=not self.base_layer._forward_hooks)
            adapted = _Adapt.apply(self.base_layer(x), x, a, b, keys, rule)  # type: ignore[no-untyped-call]
        return adapted

    def _takes_part(self, x: torch.Tensor, dtype: torch.dtype) -> bool:
        """Whether the base is nothing but frozen products in this precision, which nobody listens to."""
        base = self.base_layer
        if type(base) not in _PLAIN or base._forward_hooks or base._forward_pre_hooks:
            return False
        held = [base.weight] if base.bias is None else [base.weight, base.bias]
        return x.dtype is dtype and all(one.dtype is dtype and not one.requires_grad for one in held)

    def _only_adapter(self) -> str | None:
        """Its name, where it is a plain one that is in use and all there is."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return None
        plain = type(self.lora_A[names[0]]) in _PLAIN and self.lora_B[names[0]].bias is None
        return names[0] if plain else None


_PLAIN = (torch.nn.Linear, cpu_products.Linear)


@dataclass(frozen=True, slots=True)
class _Rule:
    scaling: float
    share: Share | None
    """What is dropped; None: nothing."""
    dtype: torch.dtype
    """Of the products."""
    in_place: bool = False
    """Nobody else has what the base computed."""
    own_products: bool = False
    """Of the base's weights: model/cpu_products.py's, not torch's."""

    @property
    def scale(self) -> float:
        return self.scaling if self.share is None else self.scaling * self.share.factor


class _Linear(torch.autograd.Function):
    """A frozen linear layer, (out, in), and its adapter."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        keys: torch.Tensor | None,
        rule: _Rule,
    ) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            multiply = cpu_products.product if rule.own_products else torch.nn.functional.linear
            out_NO = multiply(x.reshape(-1, x.shape[-1]), weight, bias)
            saved, inner, b_here = _narrow(x, a, b, keys, rule)
            out_NO.addmm_(inner, b_here.T, alpha=rule.scale)
        ctx.save_for_backward(weight, *saved)
        ctx.rule, ctx.trained_in = rule, a.dtype
        return _shaped(out_NO, (*x.shape[:-1], len(b)))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        of_output_NO = gradient.reshape(-1, len(weight))
        x, a, b, keys, inner_Nr = saved
        mask = _mask(x, keys, ctx.rule)
        of_inner_Nr, of_a, of_b = _of_adapter(of_output_NO, x, mask, b, inner_Nr, ctx)
        of_x = None
        if ctx.needs_input_grad[0]:
            back = cpu_products.product_back if ctx.rule.own_products else torch.matmul
            of_x_NI = back(of_output_NO, weight)
            if mask is None:
                of_x_NI.addmm_(of_inner_Nr, a)
            else:
                of_x_NI.add_(_dropped((of_inner_Nr @ a).view(x.shape), mask).view_as(of_x_NI))
            of_x = of_x_NI.view(x.shape)
        return of_x, None, None, of_a, of_b, None, None


class _Adapt(torch.autograd.Function):
    """An adapter on what its base has computed."""

    @staticmethod
    def forward(
        ctx: Any,
        result: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        keys: torch.Tensor | None,
        rule: _Rule,
    ) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            saved, inner, b_here = _narrow(x, a, b, keys, rule)
            if rule.in_place and result.dtype is rule.dtype and result.is_contiguous() and result._base is None:
                result.view(-1, len(b)).addmm_(inner, b_here.T, alpha=rule.scale)
                ctx.mark_dirty(result)
            else:
                given = result.reshape(-1, len(b)).to(rule.dtype)
                adapted = torch.addmm(given, inner, b_here.T, alpha=rule.scale)
                result = _shaped(adapted.to(result.dtype), result.shape)
        ctx.save_for_backward(*saved)
        ctx.rule, ctx.trained_in = rule, a.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, a, b, keys, inner_Nr = ctx.saved_tensors
        mask = _mask(x, keys, ctx.rule)
        of_output_NO = gradient.reshape(-1, len(b)).to(ctx.rule.dtype)
        of_inner_Nr, of_a, of_b = _of_adapter(of_output_NO, x, mask, b, inner_Nr, ctx)
        of_x = None
        if ctx.needs_input_grad[1]:
            of_x = _dropped((of_inner_Nr @ a).view(x.shape), mask).to(x.dtype)
        return gradient, of_x, of_a, of_b, None, None


_Saved = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]
"""Input, A and B in the precision of the products, keys of what is dropped, D(x) Aᵀ."""


def _narrow(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, keys: torch.Tensor | None, rule: _Rule
) -> tuple[_Saved, torch.Tensor, torch.Tensor]:
    """What the backward pass needs; D(x) Aᵀ, (N, r); and B, (out, r), as it is multiplied."""
    a, b = a.to(rule.dtype), b.to(rule.dtype)
    inner_Nr = _dropped(x.to(rule.dtype), _mask(x, keys, rule)).reshape(-1, x.shape[-1]) @ a.T
    return (x, a, b, keys, inner_Nr), inner_Nr, b


def _of_adapter(
    of_output_NO: torch.Tensor,
    x: torch.Tensor,
    mask: _Mask,
    b: torch.Tensor,
    inner_Nr: torch.Tensor,
    ctx: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """From the gradient of the output: those of D(x) Aᵀ, of A and of B."""
    of_inner_Nr = (of_output_NO @ b).mul_(ctx.rule.scale)
    given_NI = _dropped(x.to(ctx.rule.dtype), mask).reshape(-1, x.shape[-1])
    of_b = (of_output_NO.T @ inner_Nr).to(ctx.trained_in).mul_(ctx.rule.scale)
    return of_inner_Nr, (of_inner_Nr.T @ given_NI).to(ctx.trained_in), of_b


def _shaped(made: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor in this shape, and no view: models that change in place what a layer returns could not be
    differentiated."""
    shaped: torch.Tensor = torch.ops.aten._unsafe_view(made, shape)
    return shaped


@dataclass(frozen=True, slots=True)
class _ByKernel:
    """A mask that is made as it is used, where that costs nothing."""

    keys: torch.Tensor
    share: Share


_Mask = torch.Tensor | _ByKernel | None
"""All bits of values that are kept, and none of others, in integers as large as a value of a product; None: all are."""


def _mask(x: torch.Tensor, keys: torch.Tensor | None, rule: _Rule) -> _Mask:
    if keys is None or rule.share is None:
        return None
    if by_kernel(x.device):
        return _ByKernel(keys, rule.share)
    return kept(keys, x.shape[-1], rule.share).to(_INTEGERS[rule.dtype.itemsize])


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _dropped(values: torch.Tensor, mask: _Mask) -> torch.Tensor:
    if isinstance(mask, _ByKernel):
        return alone(values, mask.keys, mask.share)
    return values if mask is None else values.view(mask.dtype).bitwise_and(mask).view(values.dtype)
