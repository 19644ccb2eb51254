"""Adapters on tensors that are packed: peft's own, with what it gets wrong over a parametrised tensor put right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch.nn.utils import parametrize

from rankzero.model.low_bits import is_held, tensor_outline


def over_packed_tensors(adapted: Any) -> None:
    """Let every adapter on a packed tensor work as it does on an unpacked one."""
    for module in adapted.modules():
        if isinstance(module, ParamWrapper) and is_held(module.get_base_layer(), module.parameter_name):
            module.__class__ = PackedTensorAdapter


class PackedTensorAdapter(ParamWrapper):  # type: ignore[misc]
    """peft's adapter on a tensor, over a packed one.

    Where a tensor is parametrised already, peft 0.21 leaves its own parametrisation behind after each forward pass, so
    that the adapter counts double in the second, and looks at the tensor before it adds itself to it, which is what the
    pass then reads from the cache.
    """

    def get_param(self) -> torch.Tensor:
        """A tensor of the shape, precision and place of the unpacked one: more is not asked of it."""
        return tensor_outline(self.get_base_layer(), self.parameter_name)

    @contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        held = self.get_base_layer().parametrizations[self.parameter_name]
        deltas = [_Delta(*self.get_delta_factors(name)) for name in active_adapters if name in self.lora_A]
        held.extend(deltas)
        try:
            with parametrize.cached():
                yield
        finally:
            del held[len(held) - len(deltas) :]


class _Delta(torch.nn.Module):
    """Adds scaling * left @ right to a tensor of shape (experts, …, …), in its precision."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.left, self.right, self.scaling = left, right, scaling

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return torch.baddbmm(weight, self.left, self.right, alpha=self.scaling)
