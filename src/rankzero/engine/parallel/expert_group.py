"""Ranks that hold the experts of a model together, and how rows travel between them. Knows processes and tensors; what
rows are, model/expert_exchange.py knows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.parallel.parts import Cut


class ExpertGroup:
    """This rank's place among `size` neighbouring ones, whose number divides that of all."""

    def __init__(self, world: World, device: Device, size: int) -> None:
        """A collective of all ranks."""
        self.number, self.size = world.rank % size, size
        self.groups = world.world_size // size
        """How many such groups there are: as many ranks hold each expert."""
        self.cut = Cut(world, device, among=size)
        self._peers = self.cut.mesh.get_group("parts")
        self.holders = self.cut.mesh.get_group("copies")
        """The ranks that hold the same experts as this one."""

    def counts(self, sent: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._peers)
        return received

    def rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        given: torch.Tensor = _Exchange.apply(rows, sent, received, self._peers)  # type: ignore[no-untyped-call]
        return given


class _Exchange(torch.autograd.Function):
    """Backward, the gradient of each row goes back to where the row came from."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _travel(rows, sent, received, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _travel(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


def _travel(rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    given = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(given, rows.contiguous(), received, sent, group=group)
    return given
