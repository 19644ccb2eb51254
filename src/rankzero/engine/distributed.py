"""The processes of a run: who this one is, and the few collectives the loop needs. Knows nothing of models or data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rankzero.engine.device import Device
from rankzero.errors import ConfigError, PeerLostError, ServiceError
from rankzero.run_dir.handover import RENDEZVOUS_VARIABLE

LONGEST_WAIT = timedelta(minutes=30)
"""For a collective outside of `time_limit`: the main rank may be loading, hashing or writing by itself meanwhile."""
LONGEST_BACKGROUND_WAIT = timedelta(hours=24)
"""For work beside the steps, such as writing to a slow volume. That a peer is gone is noticed at once all the same."""
all_gather_into: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Each by its name since torch 2.13, or before; of one tensor that has the parts of all ranks."""


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among all of them, as torchrun (or rankzero's own launcher) set it."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Rank 0 saves and reports."""
        return self.rank == 0

    @property
    def spans_nodes(self) -> bool:
        """Whether there are processes elsewhere, which may have other files under the same names."""
        return self.world_size > self.local_world_size


def world_from_env(env: dict[str, str]) -> World:
    """RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Without RANK it is a single process: the others are left over
    from something else, as in a shell or an image. Raises ConfigError."""
    if "RANK" not in env:
        return World()
    values = {}
    for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1)):
        text = env.get(name, str(default))
        if not text.isdigit():
            raise ConfigError(f"{text!r} is not a number", where=f"environment {name}", hint="start with torchrun")
        values[name.lower()] = int(text)
    world = World(**values)
    if world.rank >= world.world_size:
        raise ConfigError(
            f"rank {world.rank} does not exist among {world.world_size} processes",
            where="environment RANK",
            hint="ranks count from 0; WORLD_SIZE is the number of processes over all nodes, not of nodes",
        )
    return world


@contextmanager
def process_group(world: World, device: Device, env: dict[str, str]) -> Iterator[None]:
    """Join the other processes for the duration. A single one joins nobody, but what it opens itself is closed. Raises
    ServiceError where rank 0's port is another program's."""
    if world.world_size == 1:
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        return
    with _meeting_place(env):
        dist.init_process_group(
            device.backend,
            init_method=env.get(RENDEZVOUS_VARIABLE, "env://"),
            rank=world.rank,
            world_size=world.world_size,
            timeout=LONGEST_WAIT,
            device_id=device.torch_device if device.kind == "cuda" else None,
        )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _meeting_place(env: dict[str, str]) -> Iterator[None]:
    """Around what opens it: whose port is taken has lost no peer."""
    try:
        yield
    except dist.DistError as error:
        if "EADDRINUSE" not in str(error):
            raise
        hint = "another program listens there: with host networking, one node of all runs fits on a host"
        where = f"MASTER_PORT {env.get('MASTER_PORT', '')}".strip()
        raise ServiceError("this port is taken on the host of rank 0", where=where, hint=hint) from error


def lost_a_peer(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone. gloo says so in words only."""
    if isinstance(error, dist.DistError | PeerLostError):
        return True
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and ("gloo" in text or "NCCL" in text)
        and any(
            word in text.lower() for word in ("connection", "broken pipe", "remote", "timed out", "timeout", "socket")
        )
    )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Collectives inside fail where a peer does not take part within this time: it is hung, or not reached any more."""
    _limit(timedelta(seconds=seconds))
    try:
        yield
    finally:
        _limit(LONGEST_WAIT)


def _limit(longest: timedelta) -> None:
    if dist.is_initialized():
        for group in distributed_c10d._world.pg_map:  # those of meshes and of DeepSpeed too
            if group not in _BACKGROUND:
                distributed_c10d._set_pg_timeout(longest, group)


_BACKGROUND: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()
"""Groups of work that goes on beside the steps: no `time_limit` is theirs."""


def background_group() -> dist.ProcessGroup | None:
    """All ranks once more, for another thread: its collectives neither meet those of the steps nor count against their
    time. A collective; None on a single process that joined nobody."""
    if not dist.is_initialized():
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=LONGEST_BACKGROUND_WAIT)
    _BACKGROUND.add(group)
    return group


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Element-wise sum, in place, the same on every rank afterwards."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def in_own_slot(values: list[float]) -> list[float]:
    """`values` in this rank's place among zeros for the others', rank by rank: a sum over ranks has everybody's."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    return [value if slot == rank else 0.0 for slot in range(ranks) for value in values]


def any_rank(wish: bool, device: torch.device) -> bool:
    """Whether one rank or more has this wish, the same on every rank."""
    if not dist.is_initialized():
        return wish
    return bool(sum_over_ranks(torch.tensor(float(wish), device=device)).item() > 0)


def broadcast_parameters(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give every rank rank 0's values: replicas start equal whatever their initialisation did."""
    if dist.is_initialized():
        for parameter in parameters:
            dist.broadcast(parameter.data, src=0)


def broadcast_object(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """Rank 0's `value`, on every rank. Small objects only: they are pickled between processes of one run."""
    if not dist.is_initialized():
        return value
    holder = [value]
    dist.broadcast_object_list(holder, src=0, group=group)
    return holder[0]


def gather_objects(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Every rank's `value`, in rank order, on every rank."""
    if not dist.is_initialized():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value, group=group)
    return gathered
