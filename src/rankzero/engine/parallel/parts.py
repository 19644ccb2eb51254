"""A rank's part of a tensor: equal numbers of rows, of which the last ranks may have fewer. Knows nothing of models.

This is how FSDP2 cuts parameters; a number without dimensions is not cut. What an optimizer keeps for each weight is
cut as its weight is.
"""

from __future__ import annotations

from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rankzero.engine.device import Device
from rankzero.engine.distributed import World


@torch.no_grad()
def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, or the tensor itself; shares memory and has no gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


class Cut:
    """How tensors are cut among the ranks of `world`, and where their parts travel."""

    def __init__(self, world: World, device: Device) -> None:
        """A collective."""
        self.device = device.torch_device
        self._rank, self._world_size = world.rank, world.world_size
        self._meshes = {
            kind: init_device_mesh(kind, (world.world_size,)) for kind in dict.fromkeys((device.kind, "cpu"))
        }

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks in one row, on the device that computes."""
        return self._meshes[self.device.type]

    def mine(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a whole tensor, sharing its memory. Not a collective."""
        if not whole.ndim:
            return whole
        start = self._first_row(whole.shape)
        return whole[start : start + self._rows(whole.shape)]

    def begin(self, shape: torch.Size) -> int:
        """The place of the first element of this rank's part in the whole tensor."""
        return self._first_row(shape) * prod(shape[1:]) if shape else 0

    def _rows(self, shape: torch.Size) -> int:
        return -(-shape[0] // self._world_size)

    def _first_row(self, shape: torch.Size) -> int:
        return min(self._rank * self._rows(shape), shape[0])

    def spread(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """This rank's part of a tensor of `shape` as a DTensor that stays where the part is. Not a collective."""
        if not shape:
            return part
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._meshes[part.device.type]
        return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def gather(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The whole tensor on the device that computes, on every rank. A collective."""
        spread = self.spread(part.to(self.device), shape)
        return spread.full_tensor() if isinstance(spread, DTensor) else spread
