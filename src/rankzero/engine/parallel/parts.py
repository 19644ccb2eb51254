"""A rank's part of a tensor: equal numbers of rows, of which the last ranks may have fewer. Knows nothing of models.

This is how FSDP2 cuts parameters among all ranks; a number without dimensions is not cut. What an optimizer keeps for
each weight is cut as its weight is. Experts are cut among the ranks of a group, and every group has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from rankzero.engine.device import Device
from rankzero.engine.distributed import World


@torch.no_grad()
def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, or the tensor itself; shares memory and has no gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


class Cut:
    """How tensors are cut among ranks, and where their parts travel."""

    def __init__(self, world: World, device: Device, *, among: int | None = None) -> None:
        """`among`: so many neighbouring ranks have the parts of a tensor, and the next ones have the same again; None:
        all of them. A collective."""
        self.device = device.torch_device
        self._ranks = among or world.world_size
        self.copies = world.world_size // self._ranks
        """So many ranks have each part."""
        self._rank = world.rank % self._ranks
        shape: tuple[int, ...] = (world.world_size,)
        names: tuple[str, ...] = ("parts",)
        self._placements: list[Placement] = [Shard(0)]
        if among is not None:
            shape, names = (world.world_size // among, among), ("copies", "parts")
            self._placements = [Replicate(), Shard(0)]
        self._meshes = {
            kind: init_device_mesh(kind, shape, mesh_dim_names=names) for kind in dict.fromkeys((device.kind, "cpu"))
        }

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks on the device that computes: in one row, or in as many as there are copies."""
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
        return -(-shape[0] // self._ranks)

    def _first_row(self, shape: torch.Size) -> int:
        return min(self._rank * self._rows(shape), shape[0])

    def spread(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """This rank's part of a tensor of `shape` as a DTensor that stays where the part is. Not a collective."""
        if not shape:
            return part
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._meshes[part.device.type]
        return DTensor.from_local(part, mesh, self._placements, run_check=False, shape=shape, stride=stride)

    def gather(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The whole tensor on the device that computes, on every rank. A collective."""
        spread = self.spread(part.to(self.device), shape)
        return spread.full_tensor() if isinstance(spread, DTensor) else spread

    def has_cut(self, tensor: DTensor) -> bool:
        return any(tensor.device_mesh == mesh for mesh in self._meshes.values())


class Uncut:
    """Stands for a `Cut` where every rank has all of a tensor."""

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def mine(self, whole: torch.Tensor) -> torch.Tensor:
        return whole

    def begin(self, shape: torch.Size) -> int:
        return 0

    def spread(self, part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return part


def cut_of(tensor: DTensor, cuts: Iterable[Cut]) -> Cut:
    """The one of `cuts` that a tensor is of."""
    return next(cut for cut in cuts if cut.has_cut(tensor))
