"""Norms in torch's own kernels, in the precision of their input. Knows what such a norm computes, and no model's name.

Written out, as transformers has it, an RMS norm is eight operations on all activations, four of them in float32, and as
many again backward: on a GPU a third of what a step reads and writes. What a layer computes is asked of the layer: one
that does something else to the same numbers (a weight plus one, a gate) stays as it is.

torch's own layers have the kernel; autocast on a GPU has them take and give float32, which each layer behind them then
rounds for itself. The kernels add up in float32 whatever they are given.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch.nn.functional import rms_norm

_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_PROBED = 8


def fuse_norms(model: torch.nn.Module) -> int:
    """Let norms with a weight compute so, wherever their input and it have one precision. How many there are."""
    found = [module for module in model.modules() if type(module) in _TORCHS_OWN or is_rms_norm(module)]
    for norm in found:
        kind: Any = type(norm)
        norm.__class__ = _fused(kind)
    return len(found)


class FusedNorm(torch.nn.Module):
    """What takes the place of a norm's own computing."""

    weight: torch.Tensor | None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if weight is None or weight.dtype is not hidden.dtype:  # for which there is no kernel
            return self._as_before(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._normed(hidden, weight)

    def _as_before(self, hidden: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = super().forward(hidden)
        return given

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, _epsilon(self))


class FusedAsItIs(FusedNorm):
    """Of a layer that has a kernel, and lacks its precision alone."""

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._as_before(hidden)


_TORCHS_OWN = (torch.nn.LayerNorm, torch.nn.RMSNorm)


@cache
def _fused(kind: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found."""
    part = FusedAsItIs if kind in _TORCHS_OWN else FusedNorm
    return type(kind.__name__, (part, kind), {"__module__": kind.__module__})


def _epsilon(norm: torch.nn.Module) -> float | None:
    return next((value for name in _EPSILONS if isinstance(value := getattr(norm, name, None), float)), None)


def is_rms_norm(module: torch.nn.Module) -> bool:
    """Whether numbers, some as small as its epsilon, become what an RMS norm makes of them."""
    plain = not isinstance(module, torch.nn.RMSNorm | FusedNorm) and not list(module.children())
    held = dict(module.named_parameters(recurse=False))
    if not plain or held.keys() != {"weight"} or held["weight"].ndim != 1 or _epsilon(module) is None:
        return False
    if list(module.buffers(recurse=False)) or len(inspect.signature(module.forward).parameters) != 1:
        return False
    made_with = {name: value for name, value in vars(module).items() if isinstance(value, int | float | str)}
    kind: Any = type(module)
    return _computes_one(kind, tuple(sorted((made_with | {"training": True}).items())))


@cache
def _computes_one(kind: type[Any], made_with: tuple[tuple[str, Any], ...]) -> bool:
    probe: Any = torch.nn.Module.__new__(kind)
    torch.nn.Module.__init__(probe)
    vars(probe).update(made_with)
    epsilon, draw = _epsilon(probe) or 0.0, torch.Generator().manual_seed(0)
    weight = torch.rand(_PROBED, generator=draw) + 0.5
    hidden = torch.randn(3, _PROBED, generator=draw) * torch.tensor([[1.0], [30.0], [epsilon**0.5]])
    probe.weight = torch.nn.Parameter(weight, requires_grad=False)
    try:
        given = probe(hidden)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # it needs more than an RMS norm has
        return False
    same = isinstance(given, torch.Tensor) and given.shape == hidden.shape and given.dtype is hidden.dtype
    return same and torch.allclose(given, rms_norm(hidden, (_PROBED,), weight, epsilon), rtol=1e-5, atol=1e-6)
