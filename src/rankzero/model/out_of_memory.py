"""An allocation that failed, on a device or on the host: known, survived, and gone round by computing less at once.
Knows nothing of what is computed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

import torch

from rankzero.errors import RankzeroError

Found = TypeVar("Found")

_CPU_WORDS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc")
"""How torch says it of a CPU, where it has no exception of its own for it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_WORDS)


class suppress_out_of_memory:  # noqa: N801 - used as a function is, like contextlib.suppress
    """Go on behind the block where an allocation failed in it. Other errors are raised."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return error is not None and is_out_of_memory(error)


def free_what_is_left() -> None:
    """Give back what the failed pass has left behind. Call it when its exception is gone, which holds its tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def out_of_memory_told(where: str, hint: str) -> Iterator[None]:
    """Raise RankzeroError where an allocation fails within."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RankzeroError("out of memory", where=where, hint=hint) from error


def largest_first(
    sizes: Sequence[int],
    kinds: Sequence[object],
    most: int,
    compute: Callable[[Sequence[int]], Found],
    lacking: Callable[[int], RankzeroError],
) -> Iterator[tuple[Sequence[int], Found]]:
    """What is computed of rows, and of which: up to `most` of one kind at once, the largest first, so that too little
    memory is found out early. Where it runs out, passes have half of what the one that failed had, at most. Raises
    `lacking` of a row that there is no memory for alone."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    limit = most * max(sizes, default=0)
    first = 0
    while first < len(order):
        size = sizes[order[first]]
        fitting = order[first : first + max(1, min(most, limit // max(1, size)))]
        batch = list(next(groupby(fitting, key=kinds.__getitem__))[1])
        found = None
        with suppress_out_of_memory():
            found = compute(batch)
        if found is None:
            free_what_is_left()
            if len(batch) == 1:
                raise lacking(batch[0])
            limit = len(batch) * size // 2
            continue
        yield batch, found
        first += len(batch)
