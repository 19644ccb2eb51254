"""The weights of a full fine-tune as they were before its first step, beside those that move: what preferences are
compared with where there are no adapters to leave out. Knows how a module may be spread, and nothing of losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_AT_ONCE = 1 << 24
"""Values that are moved at a time, so that two that change places need no third place of their size."""


class ReferenceWeights:
    """A copy of the weights that are trained, in the precision that the model computes with and cut as they are.

    What is loaded before a checkpoint's weights take its place is the same at every start, so nothing of it is saved.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._kept = {p: _own(p).detach().clone() for p in module.parameters() if p.requires_grad}
        cut = {(kept.dtype, kept.device): kept for p, kept in self._kept.items() if isinstance(p, DTensor)}
        # Made now: memory that runs out half way would leave weights of two models.
        self._between = {of: kept.new_empty(_AT_ONCE) for of, kept in cut.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model computes with them. No gradients are to be asked for."""
        changed: list[torch.nn.Parameter] = []
        try:
            self._forget_what_is_whole()
            for parameter in self._kept:
                self._change_places(parameter)
                changed.append(parameter)
            yield
        finally:
            self._forget_what_is_whole()
            for parameter in changed:
                self._change_places(parameter)

    @torch.no_grad()
    def _change_places(self, parameter: torch.nn.Parameter) -> None:
        if not isinstance(parameter, DTensor):
            parameter.data, self._kept[parameter] = self._kept[parameter], parameter.data
            return
        # FSDP gathers from memory of its own, which a part has to stay in.
        own, kept = _own(parameter).view(-1), self._kept[parameter].view(-1)
        for begin in range(0, own.numel(), _AT_ONCE):
            one, other = (values[begin : begin + _AT_ONCE] for values in (own, kept))
            between = self._between[one.dtype, one.device][: one.numel()]
            between.copy_(one)
            one.copy_(other)
            other.copy_(between)

    def _forget_what_is_whole(self) -> None:
        """What a pass has gathered and left whole would be computed with again."""
        if isinstance(self._module, FSDPModule):
            self._module.reshard()
        torch.clear_autocast_cache()


def _own(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
