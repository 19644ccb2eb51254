"""Adapters over linear layers as one step forward and one backward. Knows peft's layers and tensors.

peft's layer copies its input in float32, drops, rounds again, and keeps copies for the backward pass. Here the input is
kept once, as the layer got it; what is dropped is found again by place (model/dropout.py), as bits; and both scales,
that of the adapter and the 1 / (1 - p) of dropout, are those of a small product:

    out = result + s D(x) Aᵀ Bᵀ,  where D sets to 0 and s = scaling / (1 - p)
    dB = s dOᵀ (D(x) Aᵀ),  dA = s (dO B)ᵀ D(x),  dx = s D(dO B A)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora.layer import Linear

from rankzero.model.dropout import PlacedDropout, Share, kept


def fuse_adapters(model: torch.nn.Module) -> int:
    """Let peft's adapters on linear layers compute so, whatever holds the base's weights. How many there are."""
    layers = [module for module in model.modules() if type(module) is Linear]
    for layer in layers:
        layer.__class__ = FusedAdapter
    return len(layers)


class FusedAdapter(Linear):  # type: ignore[misc]
    """peft's adapter on a linear layer. What it is not made for (DoRA, merged or several adapters, dropout of which
    nobody knows the places) is computed by peft."""

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
        result: torch.Tensor = self.base_layer(x)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.lora_A[name].weight.dtype
        rule = _Rule(self.scaling[name], share, dtype)
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        adapted: torch.Tensor = _Adapt.apply(result, x, a, b, keys, rule)  # type: ignore[no-untyped-call]
        return adapted

    def _only_adapter(self) -> str | None:
        """Its name, where it is a plain one that is in use and all there is."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return None
        plain = type(self.lora_A[names[0]]) is torch.nn.Linear and self.lora_B[names[0]].bias is None
        return names[0] if plain else None


@dataclass(frozen=True, slots=True)
class _Rule:
    scaling: float
    share: Share | None
    """What is dropped; None: nothing."""
    dtype: torch.dtype
    """Of the products."""

    @property
    def scale(self) -> float:
        return self.scaling if self.share is None else self.scaling * self.share.factor


class _Adapt(torch.autograd.Function):
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
            given = _dropped(x.to(rule.dtype), _bits(x, keys, rule)).reshape(-1, x.shape[-1])
            inner = given @ a.to(rule.dtype).T
            delta = torch.addmm(result.reshape(-1, len(b)).to(rule.dtype), inner, b.to(rule.dtype).T, alpha=rule.scale)
        ctx.save_for_backward(x, a, b, keys, inner)
        ctx.rule = rule
        # No view: models that add to what a layer returns, in place, could not be differentiated.
        adapted: torch.Tensor = torch.ops.aten._unsafe_view(delta.to(result.dtype), result.shape)
        return adapted

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, a, b, keys, inner = ctx.saved_tensors
        rule: _Rule = ctx.rule
        bits = _bits(x, keys, rule)
        of_output = gradient.reshape(-1, len(b)).to(rule.dtype)
        of_inner = (of_output @ b.to(rule.dtype)).mul_(rule.scale)
        given = _dropped(x.to(rule.dtype), bits).reshape(-1, x.shape[-1])
        of_b = (of_output.T @ inner).to(b.dtype).mul_(rule.scale)
        of_a = (of_inner.T @ given).to(a.dtype)
        of_x = None
        if ctx.needs_input_grad[1]:
            of_x = _dropped((of_inner @ a.to(rule.dtype)).view(x.shape), bits).to(x.dtype)
        return gradient, of_x, of_a, of_b, None, None


def _bits(x: torch.Tensor, keys: torch.Tensor | None, rule: _Rule) -> torch.Tensor | None:
    """All bits of values that are kept, and none of others, in integers as large as a value of a product."""
    if keys is None or rule.share is None:
        return None
    return kept(keys, x.shape[-1], rule.share).to(_INTEGERS[rule.dtype.itemsize])


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _dropped(values: torch.Tensor, bits: torch.Tensor | None) -> torch.Tensor:
    return values if bits is None else values.view(bits.dtype).bitwise_and(bits).view(values.dtype)
