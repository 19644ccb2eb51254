"""Ranks that share a pass, as threads of one process: what each has reaches the others as in a process group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, TypeVar

import torch

from rankzero.data.batches.collators.sliced import Gather

_Result = TypeVar("_Result")
SECONDS = 300


class Together:
    """Some threads that meet."""

    def __init__(self, size: int) -> None:
        self._barrier, self._values = Barrier(size), [torch.empty(0)] * size

    def exchange(self, number: int, value: torch.Tensor) -> list[torch.Tensor]:
        self._values[number] = value
        self._barrier.wait(SECONDS)
        found = list(self._values)
        self._barrier.wait(SECONDS)
        return found

    def leave(self) -> None:
        """Have the others fail who wait."""
        self._barrier.abort()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, together: Together, number: int) -> torch.Tensor:
        ctx.place = together, number
        return torch.stack(together.exchange(number, own.detach()))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        together, number = ctx.place
        return torch.stack([of_other[number] for of_other in together.exchange(number, gradient)]).sum(0), None, None


def _gather(together: Together, number: int, own: torch.Tensor) -> torch.Tensor:
    gathered: torch.Tensor = _Gather.apply(own, together, number)
    return gathered


def in_slices(size: int, work: Callable[[int, Gather], _Result]) -> list[_Result]:
    """`work(number, gather)` of every slice at the same time."""
    together = Together(size)

    def one(number: int) -> _Result:
        try:
            return work(number, partial(_gather, together, number))
        except BaseException:
            together.leave()
            raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))
