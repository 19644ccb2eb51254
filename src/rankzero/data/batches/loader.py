"""From a tokenised data set to a rank's work: the step's rows, its passes, their tensors. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from rankzero.data.batches.ahead import Ahead
from rankzero.data.batches.collators.text import Collator, MicroBatch
from rankzero.data.batches.plan import by_length, divide_among_ranks, micro_batches, packed_batches
from rankzero.data.cache.joined import Rows, longest_sequences, sizes_in_passes
from rankzero.data.cache.stream.rows import RowStream
from rankzero.data.order import Indices, permutation

__all__ = ["Batches", "Collated", "Epochs", "MicroBatch", "Steps", "Streamed", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """This rank's part of a step (or of an evaluation), and the totals over all ranks."""

    passes: list[Indices]
    """Rows of each pass. An empty one is a pass that only keeps step with the other ranks."""
    rows: Indices
    tokens: int
    supervised: int
    loss_weight: float
    """What the losses of the trained tokens are multiplied by, summed up: their number where all count in full."""
    epoch: float = 0.0
    """Of a step: how many epochs are done behind it."""
    ended: int | None = None
    """Of a step: the epoch, counted from 1, that is done with it."""
    stream: dict[str, Any] | None = None
    """Of a stream's step: where the stream goes on behind it."""


class Collated(Protocol):
    """Rows of which passes are made."""

    @property
    def dataset(self) -> Rows:
        """What the row numbers of the step under way are of."""
        ...

    def collated(self, passes: list[Indices], device: torch.device) -> Generator[MicroBatch]:
        """The tensors of passes of the step under way."""
        ...

    def half_of_the_largest(self, work: Work) -> int | None:
        """Half the tokens that a device has of the largest of these passes; None where each is a single row, and none
        can be smaller."""
        ...

    def limit_passes(self, max_tokens: int) -> None:
        """Cut smaller from now on. What ranks do together counts passes, so all of them do this at the same step."""
        ...

    def cut_again(self, work: Work) -> Work:
        """The same in passes as they are cut now."""
        ...


class Steps(Collated, Protocol):
    """The global batches of a run, one after the other."""

    waits: bool
    """Whether rows may not be here when their step is due."""

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Go on from what the last step of an earlier start had in `Work.stream`."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...

    def ready(self) -> bool:
        """Whether the rows of the next step are here. Raises RankzeroErrors where they will never be."""
        ...

    def step(self, done: int) -> Work:
        """The step behind `done` finished ones."""
        ...


class Batches:
    """Plans and collates. Every rank holds the whole plan, so totals need no communication."""

    def __init__(
        self,
        dataset: Rows,
        collator: Collator,
        *,
        rank: int,
        world_size: int,
        max_tokens: int,
        pass_cost: int,
        same_passes: bool,
        slices: int = 1,
    ) -> None:
        """`max_tokens`: of a pass, on one device. `same_passes`: every rank runs as many passes as the one with the
        most, because passes are collectives. `slices`: so many neighbouring ranks have the same passes, and each of
        them, by its collator, a slice of their tokens."""
        self.dataset = dataset
        self._collator = collator
        self._slices, self._group, self._groups = slices, rank // slices, world_size // slices
        self._max_tokens, self._pass_cost = max_tokens * slices, pass_cost
        self._same_passes = same_passes
        self._borders: Sequence[int] = ()
        self._at_once = 1
        self._sizes = sizes_in_passes(dataset, packed=collator.packed)
        self._longest = longest_sequences(dataset)
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)
        self._ahead: Ahead[_Pass, MicroBatch] = Ahead(partial(_collated, dataset, collator), same=_same_pass)
        """Knows the rows, not this plan: without a cycle, all of it goes, thread and maps, with whoever holds it."""

    def cut_by(self, borders: Sequence[int], at_once: int = 1) -> None:
        """Have rows that are longer than one of these ascending lengths share no pass with those that are not, and
        passes without padding come in a number that fits so many at a time."""
        self._borders, self._at_once = borders, at_once

    def step(self, *, seed: int, epoch: int, step_in_epoch: int, size: int) -> Work:
        """The global batch of a step, a function of (seed, epoch, step) alone, and this rank's passes through it."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self.dataset), seed=seed, stream=epoch)
        return self._divide(self._order[step_in_epoch * size : (step_in_epoch + 1) * size])

    def everything(self) -> Work:
        """All rows once, for an evaluation."""
        return self._divide(np.arange(len(self.dataset), dtype=np.int64))

    def half_of_the_largest(self, work: Work) -> int | None:
        sizes = [self._sizes[rows] for rows in work.passes if len(rows) > 1]
        if not sizes:
            return None
        largest = max(int(size.sum() if self._collator.packed else size.max() * len(size)) for size in sizes)
        return largest // (2 * self._slices)

    def limit_passes(self, max_tokens: int) -> None:
        self._max_tokens = min(self._max_tokens, max_tokens * self._slices)

    def cut_again(self, work: Work) -> Work:
        return replace(work, passes=self._divide(work.rows).passes)

    def rounds(self, rows: Indices) -> int:
        """Passes through these rows of the rank that has the most: how often ranks can meet between passes."""
        return max(len(self._passes(share)) for share in self._shares(rows))

    def _shares(self, rows: Indices) -> list[Indices]:
        return divide_among_ranks(rows, self._sizes, self._groups)

    def _divide(self, rows: Indices) -> Work:
        lengths = self.dataset.lengths
        passes = self._passes(self._shares(rows)[self._group])
        if self._same_passes:
            passes += [np.empty(0, dtype=np.int64)] * (self.rounds(rows) - len(passes))
        return Work(
            passes=passes,
            rows=rows,
            tokens=int(lengths[rows].sum()),
            supervised=int(self.dataset.supervised[rows].sum()),
            loss_weight=float(self.dataset.loss_weights[rows].sum()),
        )

    def _passes(self, share: Indices) -> list[Indices]:
        return [rows for part in by_length(share, self._longest, self._borders) for rows in self._cut(part)]

    def _cut(self, share: Indices) -> list[Indices]:
        if self._collator.packed:
            return packed_batches(share, self._sizes, max_tokens=self._max_tokens, at_once=self._at_once)
        return micro_batches(share, self._sizes, max_tokens=self._max_tokens, pass_cost=self._pass_cost)

    def collated(
        self, passes: list[Indices], device: torch.device, then: Callable[[], list[Indices]] = list
    ) -> Generator[MicroBatch]:
        """The tensors of these passes, each made while the one before it is computed. `then`: the passes that are asked
        for next; the first of them is made while the last of these is computed."""

        def first_of_the_next() -> _Pass | None:
            following = then()
            return (following[0], device) if following else None

        return self._ahead.each([(rows, device) for rows in passes], first_of_the_next)

    def collate(self, rows: Indices, device: torch.device) -> MicroBatch:
        """The tensors of one pass."""
        return _collated(self.dataset, self._collator, (rows, device))


_Pass = tuple[Indices, torch.device]
"""Rows of a pass, and where its tensors are to be."""


def _collated(dataset: Rows, collator: Collator, asked: _Pass) -> MicroBatch:
    rows, device = asked
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own; pinning would else open the first GPU
    return collator(dataset, rows, device) if len(rows) else collator.idle(device)


def _same_pass(one: _Pass, other: _Pass) -> bool:
    return one[1] == other[1] and np.array_equal(one[0], other[0])


class Epochs:
    """Steps over rows that are all here, epoch after epoch: the last step of one may hold fewer rows."""

    waits = False

    def __init__(self, batches: Batches, *, seed: int, size: int, steps_per_epoch: int, total_steps: int) -> None:
        self._batches, self._seed, self._size, self._steps_per_epoch = batches, seed, size, steps_per_epoch
        self._total_steps = total_steps
        self._next: tuple[int, Work] | None = None
        """The step that is asked for next, if all goes as usual."""
        self._done = 0

    @property
    def dataset(self) -> Rows:
        return self._batches.dataset

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Where a run goes on follows from the number of the step."""

    def close(self) -> None:
        """Nothing is held."""

    def ready(self) -> bool:
        return True

    def step(self, done: int) -> Work:
        self._done = done
        if self._next is not None and self._next[0] == done:
            return self._next[1]
        return self._planned(done)

    def _planned(self, done: int) -> Work:
        epoch, step_in_epoch = divmod(done, self._steps_per_epoch)
        work = self._batches.step(seed=self._seed, epoch=epoch, step_in_epoch=step_in_epoch, size=self._size)
        ended, left = divmod(done + 1, self._steps_per_epoch)
        return replace(work, epoch=(done + 1) / self._steps_per_epoch, ended=None if left else ended)

    def collated(self, passes: list[Indices], device: torch.device) -> Generator[MicroBatch]:
        return self._batches.collated(passes, device, self._next_passes)

    def _next_passes(self) -> list[Indices]:
        """Those of the step behind the one under way."""
        following = self._done + 1
        if following >= self._total_steps:
            return []
        if self._next is None or self._next[0] != following:
            self._next = following, self._planned(following)
        return self._next[1].passes

    def half_of_the_largest(self, work: Work) -> int | None:
        return self._batches.half_of_the_largest(work)

    def limit_passes(self, max_tokens: int) -> None:
        self._next = None  # it may be cut larger
        self._batches.limit_passes(max_tokens)

    def cut_again(self, work: Work) -> Work:
        return self._batches.cut_again(work)


class Streamed:
    """Steps over a stream: each takes the next `size` rows, which are a small data set of their own."""

    waits = True

    def __init__(
        self, open_: Callable[[dict[str, Any] | None], RowStream], make: Callable[[Rows], Batches], *, size: int
    ) -> None:
        """`open_`: the stream as it goes on from what `Work.stream` was. `make`: what plans and collates these rows."""
        self._open, self._make, self._size = open_, make, size
        self._rows: RowStream | None = None
        self._batches: Batches | None = None
        self._limit: int | None = None

    @property
    def dataset(self) -> Rows:
        return self._under_way.dataset

    def begin(self, saved: dict[str, Any] | None) -> None:
        self._rows = self._open(saved)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def ready(self) -> bool:
        return self._stream.ready(self._size)

    def step(self, done: int) -> Work:
        taken = self._stream.take(self._size)
        self._batches = self._make(taken.rows)
        if self._limit is not None:
            self._batches.limit_passes(self._limit)
        work = self._under_way.everything()
        return replace(work, epoch=taken.epoch, ended=taken.ended, stream=taken.position.as_json())

    def collated(self, passes: list[Indices], device: torch.device) -> Generator[MicroBatch]:
        return self._under_way.collated(passes, device)

    def half_of_the_largest(self, work: Work) -> int | None:
        return self._under_way.half_of_the_largest(work)

    def limit_passes(self, max_tokens: int) -> None:
        self._limit = max_tokens if self._limit is None else min(self._limit, max_tokens)
        if self._batches is not None:  # an evaluation may come to this before the first step
            self._batches.limit_passes(max_tokens)

    def cut_again(self, work: Work) -> Work:
        return self._under_way.cut_again(work)

    @property
    def _stream(self) -> RowStream:
        if self._rows is None:
            raise ValueError("the stream was not begun")
        return self._rows

    @property
    def _under_way(self) -> Batches:
        if self._batches is None:
            raise ValueError("no step was taken yet")
        return self._batches
