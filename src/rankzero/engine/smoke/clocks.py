"""How far the hosts' clocks are from rank 0's: leases, logs of several nodes and certificates go by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rankzero.engine.distributed import World

ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Skew:
    """One rank's clock less rank 0's, in seconds."""

    rank: int
    offset: float
    uncertainty: float
    """Half of the fastest round trip."""


def clock_skews(
    world: World, ranks: Sequence[int], device: torch.device, *, clock: Callable[[], int] = time.time_ns
) -> list[Skew]:
    """Of each of `ranks` (one per host, without rank 0), known to rank 0 alone: Cristian's algorithm.

    Rank 0 asks, the other answers with its time, which is taken to be that of the middle of the round trip; the fastest
    of ROUNDS counts. All ranks call it with the same `ranks`. `clock` is in nanoseconds.
    """
    skews = []
    word = torch.zeros(1, dtype=torch.int64, device=device)
    for rank in ranks:
        if world.is_main:
            rounds = []
            for _ in range(ROUNDS):
                asked = clock()
                dist.send(word, dst=rank)
                dist.recv(word, src=rank)
                there, answered = int(word.item()), clock()
                rounds.append((answered - asked, there - (asked + answered) // 2))
            trip, offset = min(rounds)
            skews.append(Skew(rank, offset / 1e9, trip / 2e9))
        elif world.rank == rank:
            for _ in range(ROUNDS):
                dist.recv(word, src=0)
                word.item()  # until it is there
                word[0] = clock()
                dist.send(word, dst=0)
    return skews
