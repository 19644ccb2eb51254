"""The collectives that training uses, over sizes: whether they bring what they should, and how fast.

Bandwidths follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Of S bytes in t seconds among n ranks,
algorithm bandwidth is S/t. Bus bandwidth is that times 2(n-1)/n for all-reduce, (n-1)/n for all-gather and all-to-all,
and 1 for broadcast: what the slowest link carries, whatever n is. S is a rank's buffer; of all-gather the
gathered one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rankzero.engine.distributed import World, all_gather_into, any_rank, broadcast_object, gather_objects

SIZES = {"cpu": (2**16, 2**20, 2**24), "cuda": (2**20, 2**24, 2**28)}
"""Bytes, by kind of device: messages where latency counts up to those where bandwidth does. A bucket of gradients has
2**26."""
_SECONDS = 0.2
"""How long one measurement takes, about."""
_MOST_REPEATS = 50
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One collective of one size, as its slowest rank saw it."""

    operation: str
    bytes: int
    seconds: float
    bus_bandwidth: float
    """Bytes per second."""
    right: bool
    """Whether every rank got the values that it should have got."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A collective ready to be called, and what is to come of the first call."""

    call: Callable[[], object]
    right: Callable[[], bool]
    factor: float


def measure(world: World, device: torch.device, sizes: tuple[int, ...]) -> Iterator[Measured]:
    """Each collective over each size, the same on every rank. A collective itself; needs more than one process."""
    for operation, make in _CASES.items():
        for size in sizes:
            case = make(world, size // _FLOAT // world.world_size or 1, device)
            case.call()
            right = not any_rank(not case.right(), device)
            once = _seconds(case.call, 1, device)
            repeats = broadcast_object(max(1, min(_MOST_REPEATS, int(_SECONDS / max(once, 1e-9)))))
            seconds = max(gather_objects(_seconds(case.call, repeats, device)))
            whole = max(1, size // _FLOAT // world.world_size) * world.world_size * _FLOAT
            yield Measured(operation, whole, seconds, case.factor * whole / seconds, right)


def _seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Of one call, on the average, from when all ranks are there."""
    dist.barrier()
    _wait(device)
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - begun) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _parts(values: list[float], count: int, device: torch.device) -> Tensor:
    """(ranks, count), every row of one value."""
    return torch.tensor(values, device=device)[:, None].expand(-1, count).contiguous()


def _all_reduce(world: World, count: int, device: torch.device) -> _Case:
    ranks = world.world_size
    buffer = torch.full((ranks * count,), float(world.rank + 1), device=device)

    def right() -> bool:
        good = bool((buffer == ranks * (ranks + 1) / 2).all())
        buffer.zero_()  # sums of sums would grow for ever
        return good

    return _Case(lambda: dist.all_reduce(buffer), right, 2 * (ranks - 1) / ranks)


def _all_gather(world: World, count: int, device: torch.device) -> _Case:
    ranks = world.world_size
    mine = torch.full((count,), float(world.rank), device=device)
    every = torch.empty(ranks * count, device=device)
    expected = _parts([float(rank) for rank in range(ranks)], count, device).flatten()
    return _Case(lambda: all_gather_into(every, mine), lambda: torch.equal(every, expected), (ranks - 1) / ranks)


def _broadcast(world: World, count: int, device: torch.device) -> _Case:
    buffer = torch.full((world.world_size * count,), 7.0 if world.is_main else 0.0, device=device)
    return _Case(lambda: dist.broadcast(buffer, src=0), lambda: bool((buffer == 7.0).all()), 1.0)


def _all_to_all(world: World, count: int, device: torch.device) -> _Case:
    ranks, rank = world.world_size, world.rank
    mine = _parts([float(rank * ranks + other) for other in range(ranks)], count, device).flatten()
    got = torch.empty(ranks * count, device=device)
    expected = _parts([float(other * ranks + rank) for other in range(ranks)], count, device).flatten()
    return _Case(lambda: dist.all_to_all_single(got, mine), lambda: torch.equal(got, expected), (ranks - 1) / ranks)


_CASES: dict[str, Callable[[World, int, torch.device], _Case]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "broadcast": _broadcast,
    "all-to-all": _all_to_all,
}
