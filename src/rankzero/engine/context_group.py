"""Ranks that have the same passes and a slice each of their tokens, and how they collect what the others have.

Knows processes and tensors; what a slice is, data/batches/collators/sliced.py knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rankzero.data.batches.collators.sliced import Gather
from rankzero.engine.distributed import LONGEST_WAIT, World, all_gather_into, reduce_scatter_into


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """This rank's place among those with the same passes."""

    number: int
    size: int
    gather: Gather


def context_group(world: World, size: int) -> ContextGroup | None:
    """The group of `size` neighbouring ranks that this one is of; None where each is alone. A collective of all ranks,
    whose number `size` divides."""
    if size == 1:
        return None
    # Every rank has to make every group.
    groups = [
        dist.new_group(list(range(first, first + size)), timeout=LONGEST_WAIT)
        for first in range(0, world.world_size, size)
    ]
    gather = partial(_gather, group=groups[world.rank // size], size=size)
    return ContextGroup(world.rank % size, size, gather)


def _gather(own: torch.Tensor, *, group: dist.ProcessGroup, size: int) -> torch.Tensor:
    gathered: torch.Tensor = _Gather.apply(own, group, size)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather, and backward a reduce-scatter: in float32, as one process adds up what a key is given by queries."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup, size: int) -> torch.Tensor:
        ctx.group = group
        gathered = own.new_empty(size, *own.shape)
        all_gather_into(gathered.view(-1), own.reshape(-1), group=group)
        return gathered

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        of_all = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        own = of_all.new_empty(of_all.shape[1:])
        reduce_scatter_into(own.view(-1), of_all.reshape(-1), group=ctx.group)
        return own.to(gradient.dtype), None, None
