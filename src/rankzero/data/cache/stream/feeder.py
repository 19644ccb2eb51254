"""`python -m rankzero.data.cache.stream.feeder FD`: reads a stream's shards and tokenises ahead, one process a node.

Each window becomes a directory with a manifest, made whole or not at all, below one that this process has to itself.
The main rank of the node says which window is needed next; what lies before is deleted, and where there is no room for
more, this process waits. It ends with whoever started it. Knows nothing of ranks or steps.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby, takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankzero.data.cache.dataset import schema_of
from rankzero.data.cache.encode import EncodedChunk, Task, chunk_encoder
from rankzero.data.cache.segments import Tally, record_batch
from rankzero.data.cache.stream.order import Cursor, Draw, epoch_order
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.pool import ordered_map
from rankzero.data.read.network import Network, RealNetwork
from rankzero.data.rows.chunks import NumberedLine, count_in, pack
from rankzero.data.rows.problems import ProblemLog
from rankzero.errors import ConfigError, DataError, RankzeroError, StorageError
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import commit_directory, place_given_by, stage_name, storage_errors
from rankzero.run_dir.handover import write_error

FAILED = "failed.json"
"""In the directory: why there are no more windows."""
PART = "rows.arrow"
AHEAD_WINDOWS = 8
"""Made before anybody waits for them, room permitting: what is made and not used before a run stops is made again."""
CHUNK_BYTES = 1 << 20
"""Of rows that a worker gets at a time: a window is few of them, and each shard in it begins a new one."""
_END_SECONDS = 5.0
"""To end by itself, with its workers, once nobody needs it."""
_REMOVALS = 5
"""Tries to remove a directory in which a window is being made meanwhile."""
_BESIDE_ROWS = 1 << 13
"""What a chunk's rows, and the window's manifest, take on disk besides their values."""


def window_name(number: int) -> str:
    """The directory of a window, by its number since this process began."""
    return f"window-{number:08}"


class NotNeededError(Exception):
    """Whoever started this process is done with it, or gone."""


class Room:
    """The windows that lie on disk, how many they may be, and how much they may take together."""

    def __init__(self, directory: Path, cache_bytes: int, window_rows: int) -> None:
        self._directory, self._cache_bytes, self._window_rows = directory, cache_bytes, window_rows
        self._sizes: dict[int, int] = {}
        self._first, self._awaited, self._made = 0, -1, 0
        self.ended = False
        self._changed = threading.Condition()

    def need(self, first: int, awaited: int) -> None:
        """Nobody reads windows before `first` any more, and all up to `awaited` are waited for; -1: none."""
        with self._changed:
            self._first, self._awaited = first, awaited
            self._changed.notify()

    def wait(self, number: int, nbytes: int) -> None:
        """Until `nbytes` fit for the window of this number, which is being made. Raises ConfigError where they never
        will (all that lies there is needed, and this window too), StorageError where what is waited for was made and
        is gone, and NotNeededError."""
        with self._changed:
            while True:
                if self.ended:
                    raise NotNeededError
                self._drop()
                awaited = self._awaited >= number
                fits = sum(self._sizes.values()) + nbytes <= self._cache_bytes
                if fits and (awaited or len(self._sizes) < AHEAD_WINDOWS):
                    return
                if awaited and self._first <= min(self._sizes, default=number):
                    held = f"windows of {self._window_rows} rows do not fit: {self._cache_bytes / 1e9:g} GB hold too"
                    what = f"{held} few of them for one step"
                    hint = "raise it, or lower data.shuffle_buffer_size"
                    raise ConfigError(what, where="data.streaming_cache_gb", hint=hint)
                self._require_there()
                self._changed.wait()

    def end(self) -> None:
        """Nobody needs windows any more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def until_end(self) -> None:
        """Wait until nobody needs windows any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended)

    def made(self, number: int, nbytes: int) -> None:
        """A window lies there whole."""
        with self._changed:
            self._sizes[number], self._made = nbytes, number + 1

    def is_due(self) -> bool:
        """Whether somebody waits for a window that is not made yet, or nobody will ever."""
        with self._changed:
            return self.ended or self._awaited >= self._made

    def _require_there(self) -> None:
        places = [self._directory / window_name(number) for number in self._sizes if number <= self._awaited]
        if gone := [place for place in places if not place.is_dir()]:
            what = "rows of a stream were here, and somebody has removed them"
            hint = "rankzero cache prune leaves alone what is in use; give the same command again"
            raise StorageError(what, where=str(gone[0]), hint=hint)

    def _drop(self) -> None:
        for number in [number for number in self._sizes if number < self._first]:
            shutil.rmtree(self._directory / window_name(number), ignore_errors=True)
            del self._sizes[number]


@place_given_by("the variable RANKZERO_CACHE")
def feed(stream: Stream, cursor: Cursor, directory: Path, room: Room, *, workers: int, network: Network) -> None:
    """Make one window after the other, until nobody needs them. Never returns.

    Raises DataError with every bad row of the first window that has any, NotNeededError at its end, and as reading and
    writing do.
    """
    at_work: deque[tuple[Cursor, int]] = deque()
    tasks = takewhile(lambda _task: not room.ended, _tasks(stream, cursor, at_work, network, room.is_due))
    results = ordered_map(partial(chunk_encoder, stream.parts, stream.rules), tasks, workers)
    number, kept_in_epoch, epoch, dropped, passed = 0, 0, cursor, Counter[str](), Tally()
    for begins, found in groupby(_placed(results, at_work), key=lambda one: one[0]):
        if begins.epoch != epoch.epoch:
            if not kept_in_epoch and epoch.epoch > cursor.epoch:
                raise _nothing_left(dropped)
            epoch, kept_in_epoch, dropped = begins, 0, Counter()
        with WindowWriter(stream, directory, number, room) as window:
            for _begins, shard, chunk in found:
                window.add(chunk, shard)
            if window.commit(begins, passed):
                number, passed = number + 1, Tally()
            else:
                passed.add(window.tally)
        kept_in_epoch += window.rows
        dropped.update(window.tally.dropped)
    raise NotNeededError


def _nothing_left(dropped: Counter[str]) -> DataError:
    reasons = ", ".join(f"{count} × {reason}" for reason, count in dropped.items())
    hint = "`rankzero data check FILE` on one of its files lists what is left out and why"
    return DataError(f"no row of a whole epoch is left: all are dropped ({reasons})", where="data.train", hint=hint)


def _tasks(
    stream: Stream,
    cursor: Cursor,
    at_work: deque[tuple[Cursor, int]],
    network: Network,
    is_due: Callable[[], bool],
) -> Iterator[Task]:
    """A task is drawn shortly before it runs. Raises DataError once a whole epoch has none."""
    empty: set[int] = set()
    shares = _Shares(stream, cursor)

    def order_of(epoch: int) -> Any:
        return epoch_order(stream.weights, seed=stream.seed, epoch=epoch)

    def read(shard: int, skip: int) -> Iterator[NumberedLine]:
        taken = 0
        for row in stream.rows(shard, skip, network, is_due):
            yield row
            taken += 1
        shares.read[stream.shards[shard].source] += taken
        if not taken and not skip and shard not in empty:
            empty.add(shard)
            logging.getLogger("rankzero.data").warning("%s: there are no rows in it", stream.shards[shard].url)

    draw = Draw(order_of, read, seed=stream.seed, window_rows=stream.window_rows)
    for begins, shard, rows in draw.parts(cursor):
        shares.in_epoch(begins)
        for chunk in pack(rows, 0, CHUNK_BYTES):
            shares.kept[stream.shards[shard].source] += count_in(chunk)
            at_work.append((begins, shard))
            yield stream.task(chunk, shard, encode=True)
    if shares.read.total():
        raise DataError("the weights leave no row", where="data.train", hint="raise a weight")
    raise DataError("there are no rows in it", where="data.train", hint="are these the right files?")


class _Shares:
    """Of an epoch, how many rows of each source were read, and how many of them its weight has left."""

    def __init__(self, stream: Stream, cursor: Cursor) -> None:
        self.read, self.kept = Counter[int](), Counter[int]()
        self._stream, self._epoch = stream, cursor.epoch
        self._whole = not cursor.next_place
        """Whether all of the epoch is read here."""
        self._said: set[int] = set()

    def in_epoch(self, begins: Cursor) -> None:
        """A window begins. Once an epoch is done, sources are named of which it had nothing."""
        if begins.epoch == self._epoch:
            return
        for number, rows in sorted(self.read.items()) if self._whole else ():
            if rows and not self.kept[number] and number not in self._said:
                self._said.add(number)
                source = self._stream.sources[number]
                what = "%s: its weight of %g leaves none of its %d rows: raise it, or leave the source out"
                logging.getLogger("rankzero.data").warning(what, source.path, source.weight, rows)
        self.read, self.kept = Counter(), Counter()
        self._epoch, self._whole = begins.epoch, True


def _placed(
    results: Iterator[EncodedChunk], at_work: deque[tuple[Cursor, int]]
) -> Iterator[tuple[Cursor, int, EncodedChunk]]:
    for result in results:
        begins, shard = at_work.popleft()
        yield begins, shard, result


class WindowWriter:
    """One window on its way to disk."""

    def __init__(self, stream: Stream, directory: Path, number: int, room: Room) -> None:
        self._stream, self._directory, self._number, self._room = stream, directory, number, room
        self._staged = directory / stage_name(window_name(number))
        self._sources: dict[int, int] = {}
        """Numbers of shards, in the order in which the window first has them."""
        self._log, self.tally = ProblemLog(), Tally()
        with storage_errors(self._staged):
            self._staged.mkdir()
            self._file = pa.OSFile(str(self._staged / PART), "wb")
            self._writer = pa.ipc.new_file(self._file, schema_of(stream.rules.trains))

    def __enter__(self) -> WindowWriter:
        return self

    def __exit__(self, *_raised: object) -> None:
        with suppress(OSError):  # of a full disk, which was said
            self._file.close()
        shutil.rmtree(self._staged, ignore_errors=True)

    @property
    def rows(self) -> int:
        """Rows that are left so far."""
        return self.tally.totals["rows"]

    def add(self, chunk: EncodedChunk, shard: int) -> None:
        """Write the rows of a chunk, once there is room. After a bad row nothing is written: problems are gathered."""
        chunk.source = self._sources.setdefault(shard, len(self._sources))
        self._log.add(self._stream.shards[shard].url, chunk.problems)
        if self._log.total:
            return
        self.tally.count(chunk)
        if chunk.block is not None and len(chunk.block.lines):
            self._room.wait(self._number, self._file.tell() + chunk.block.nbytes + _BESIDE_ROWS)
            with storage_errors(self._staged):
                self._writer.write_batch(record_batch(chunk.block, chunk.source))

    def commit(self, begins: Cursor, passed: Tally) -> bool:
        """Give the window its name, where rows are left; returns whether they are. `passed`: of the windows since the
        last one, of which none were. Raises DataError where a file changed meanwhile, and with all bad rows."""
        for shard in self._sources:
            self._stream.shards[shard].require_same()
        if self._log.total:
            raise self._log.error()
        if not self.rows:
            return False
        with storage_errors(self._staged):
            self._writer.close()
            self._file.close()
        meta = {
            "parts": [PART],
            "stats": self.tally.stats().as_json(),
            "passed": passed.stats().as_json(),
            "sources": [self._stream.shards[shard].url for shard in self._sources],
            "cursor": begins.as_json(),
        }
        final = self._directory / window_name(self._number)
        commit_directory(self._staged, final, meta, durable=False)
        with storage_errors(final):
            self._room.made(self._number, sum(path.stat().st_size for path in final.iterdir()))
        return True


class _Said(logging.Handler):
    """Hands on what is to be said to the main rank of the node, which knows where it goes."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._connection.send((record.levelno, record.getMessage()))


def _listen(connection: Connection, room: Room, directory: Path) -> None:
    """Hear what is needed, until the other end is closed, by whatever. What is stuck then is left."""
    with suppress(EOFError, OSError):
        while True:
            room.need(*connection.recv())
    room.end()
    time.sleep(_END_SECONDS)
    _remove(directory)
    os._exit(0)


def _remove(directory: Path) -> None:
    """Delete it, though a window may be being made in it meanwhile."""
    for _ in range(_REMOVALS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return


def _as_ours(error: Exception) -> tuple[RankzeroError, str]:
    if isinstance(error, RankzeroError):
        return error, ""
    return RankzeroError(f"internal error: {type(error).__name__}: {error}"), traceback.format_exc()


def main() -> None:
    """Serve whoever is at the other end of the connection."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the rank that started this one answers them
    connection: Connection = Connection(int(sys.argv[1]))
    stream, cursor, directory, workers = connection.recv()
    logger = logging.getLogger("rankzero")
    logger.addHandler(_Said(connection))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    room = Room(directory, stream.cache_bytes, stream.window_rows)
    threading.Thread(target=_listen, args=(connection, room, directory), daemon=True).start()
    try:
        feed(stream, cursor, directory, room, workers=workers, network=RealNetwork())
    except NotNeededError:
        pass
    except Exception as error:
        known, trace = _as_ours(error)
        write_error(directory / FAILED, known, trace, Redactor(os.environ))
        room.until_end()
    _remove(directory)


if __name__ == "__main__":
    main()
