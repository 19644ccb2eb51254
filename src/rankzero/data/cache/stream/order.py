"""The order of a stream's rows: which shards are read side by side, and which of their rows make a window. Pure.

An epoch is all shards in a random order, each as often as its source's weight says. OPEN_SHARDS of them are read side
by side; one that ends makes room for the next. A window takes the same number of rows from each, one shard after the
other, and is shuffled as a whole. All of it follows from the seed, the listing and what is in the shards, and goes on
from the cursor of any window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rankzero.data.order import Indices, permutation, uniform

OPEN_SHARDS = 4
"""Read side by side. More would mix better, and a start that goes on would read more that it only skips."""

_WINDOWS, _SHARDS, _THINNED = 1 << 40, -(1 << 40), -(1 << 50)
"""Streams of random numbers that nothing else uses; the last two count down, by epoch and by shard."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Piece:
    """A shard's place in an epoch."""

    shard: int
    share: float = 1.0
    """Of its rows, which ones follows from the seed; 1: all."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A shard that is being read."""

    place: int
    """In the order of the epoch."""
    rows: int = 0
    """How many of it were taken, or passed over."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a window begins."""

    window: int = 0
    """How many were before it, over all epochs."""
    epoch: int = 0
    next_place: int = 0
    """The first shard of the epoch's order that was not begun."""
    open: tuple[Reading, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        readings = [[reading.place, reading.rows] for reading in self.open]
        return {"window": self.window, "epoch": self.epoch, "next_place": self.next_place, "open": readings}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cursor:
        """Read what `as_json` gave."""
        readings = tuple(Reading(int(place), int(rows)) for place, rows in value["open"])
        return cls(int(value["window"]), int(value["epoch"]), int(value["next_place"]), readings)


def epoch_order(weights: Sequence[float], *, seed: int, epoch: int) -> list[Piece]:
    """The shards of an epoch in their order. `weights[i]`: how often an epoch has the rows of shard i; of what is left
    over of a whole number, that share of its rows."""
    pieces = []
    for shard, weight in enumerate(weights):
        pieces += [Piece(shard)] * int(weight)
        if weight > int(weight):
            pieces.append(Piece(shard, weight - int(weight)))
    return [pieces[i] for i in permutation(len(pieces), seed=seed, stream=_SHARDS - epoch)]


def shuffled(n_rows: int, window: int, *, seed: int) -> Indices:
    """The order of the `n_rows` rows that are left of a window."""
    return permutation(n_rows, seed=seed, stream=_WINDOWS + window)


@dataclass(slots=True)
class _Open(Generic[Row]):
    place: int
    piece: Piece
    taken: int
    rows: Iterator[Row]
    takes_part: bool = False
    """Whether any row of it has, of those read here."""


class Draw(Generic[Row]):
    """Windows one after the other. `order_of(epoch)`: the shards of an epoch; `read(shard, skip)`: a shard's rows
    behind the first `skip`."""

    def __init__(
        self,
        order_of: Callable[[int], Sequence[Piece]],
        read: Callable[[int, int], Iterator[Row]],
        *,
        seed: int,
        window_rows: int,
    ) -> None:
        self._order_of, self._read = order_of, read
        self._seed, self._window_rows = seed, window_rows

    def parts(self, cursor: Cursor) -> Iterator[tuple[Cursor, int, Iterator[Row]]]:
        """For each window from `cursor` on and each shard in it: where the window begins, the shard, its rows.

        The rows of a part are to be taken, all of them, before the next part is asked for. Ends where no row
        takes part in an epoch.
        """
        while True:
            epoch = _Epoch(self, self._order_of(cursor.epoch), cursor)
            while epoch.fill():
                begins = epoch.cursor
                for shard, rows in epoch.window():
                    yield begins, shard, rows
            if not epoch.has_rows:
                return
            cursor = Cursor(epoch.cursor.window, cursor.epoch + 1)

    def begin(self, order: Sequence[Piece], reading: Reading) -> _Open[Row]:
        """A shard from where it is read on."""
        piece = order[reading.place]
        return _Open(reading.place, piece, reading.rows, self._read(piece.shard, reading.rows))

    def take(self, shard: _Open[Row], count: int) -> Iterator[Row]:
        """Of a shard's next `count` rows those that take part; `taken` counts all."""
        piece = shard.piece
        for _ in range(count):
            row = next(shard.rows, None)
            if row is None:
                return
            number, shard.taken = shard.taken, shard.taken + 1
            if piece.share == 1 or uniform(number, seed=self._seed, stream=_THINNED - piece.shard) < piece.share:
                shard.takes_part = True
                yield row

    def shares(self, shards: int) -> list[int]:
        """How many rows of a window each of so many shards has."""
        share, more = divmod(self._window_rows, shards)
        return [share + (number < more) for number in range(shards)]


class _Epoch(Generic[Row]):
    """An epoch on its way."""

    def __init__(self, draw: Draw[Row], order: Sequence[Piece], cursor: Cursor) -> None:
        self._draw, self._order = draw, order
        self._open = [draw.begin(order, reading) for reading in cursor.open]
        self._next_place, self._window, self._number = cursor.next_place, cursor.window, cursor.epoch
        self.has_rows = bool(cursor.open)
        """Whether any takes part; of what was read before this start, that is not known."""

    @property
    def cursor(self) -> Cursor:
        """Where the next window begins."""
        readings = tuple(Reading(shard.place, shard.taken) for shard in self._open)
        return Cursor(self._window, self._number, self._next_place, readings)

    def fill(self) -> bool:
        """Begin shards while there is room. Returns whether any is open."""
        while len(self._open) < OPEN_SHARDS and (shard := self._following()) is not None:
            self._open.append(shard)
        return bool(self._open)

    def window(self) -> Iterator[tuple[int, Iterator[Row]]]:
        """The shards of the next window, with their rows."""
        left = []
        for shard, wanted in zip(self._open, self._draw.shares(len(self._open)), strict=True):
            current: _Open[Row] | None = shard
            while current is not None:
                before = current.taken
                yield current.piece.shard, self._draw.take(current, wanted)
                wanted -= current.taken - before
                self.has_rows |= current.takes_part
                if not wanted:
                    left.append(current)
                    break
                current = self._following()  # it has ended
        self._open = left
        self._window += 1

    def _following(self) -> _Open[Row] | None:
        if self._next_place == len(self._order):
            return None
        self._next_place += 1
        return self._draw.begin(self._order, Reading(self._next_place - 1))
