"""A stream's rows on one rank: windows that the feeder has made, taken from in their shuffled order.

All ranks of a node read the same windows, by memory map; the first of them starts the feeder and tells it what is no
longer needed. Knows nothing of steps but how many rows each takes.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rankzero.cache.uses import use
from rankzero.data.cache.dataset import Indices, TokenizedDataset, verify_bytes
from rankzero.data.cache.embedded import require_embedded
from rankzero.data.cache.job import CODE_VERSION
from rankzero.data.cache.joined import JoinedRows
from rankzero.data.cache.labels import label_codes
from rankzero.data.cache.stream.feeder import FAILED, window_name
from rankzero.data.cache.stream.order import Cursor, epoch_order, shuffled
from rankzero.data.cache.stream.plan import Stream
from rankzero.errors import ConfigError, DataError, RankzeroError
from rankzero.run_dir.atomic import place_given_by, read_manifest, storage_errors
from rankzero.run_dir.handover import read_error
from rankzero.spec.diff import differ
from rankzero.spec.names import PLAIN_NOTE

COUNTED = ("rows_in", "rows", "truncated")
_LOCK = ".lock"
_END_SECONDS = 10.0
_logger = logging.getLogger("rankzero.data")


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where a stream goes on: the window under way, and how many of its rows were taken."""

    fingerprint: str = ""
    window_rows: int = 0
    cursor: Cursor = Cursor()
    taken: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of all windows before it: rows_in, rows, truncated, and dropped by reason."""
    code_version: int = 0
    """Of the code that made the window's tokens; 0: of one that did not note it."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "fingerprint": self.fingerprint,
            "window_rows": self.window_rows,
            "cursor": self.cursor.as_json(),
            "taken": self.taken,
            "counts": dict(self.counts),
            "code_version": self.code_version,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamPosition:
        """Read what `as_json` gave."""
        cursor = Cursor.from_json(value["cursor"])
        noted = value.get("code_version", 0)
        return cls(value["fingerprint"], value["window_rows"], cursor, value["taken"], dict(value["counts"]), noted)

    def under(self, stream: Stream) -> StreamPosition:
        """As this stream goes on from it: where the data are others, with the next epoch; where windows have another
        size, or another version made their tokens, which may leave them other rows, with the beginning of the one that
        was under way."""
        here = StreamPosition(stream.fingerprint, stream.window_rows, code_version=CODE_VERSION)
        if not self.fingerprint:
            return here
        if differ(self.fingerprint, stream.fingerprint) is not False:  # of an earlier version: accepted as others
            anew = Cursor(self.cursor.window + 1, self.cursor.epoch + 1)
            return replace(here, cursor=anew, counts=self.counts)
        same = (self.window_rows, self.code_version) == (here.window_rows, here.code_version)
        return replace(here, cursor=self.cursor, taken=self.taken if same else 0, counts=self.counts)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step takes."""

    rows: JoinedRows
    position: StreamPosition
    """Behind these rows."""
    epoch: float
    """How many epochs are done by then; of the one under way, the share of its shards that are read to their ends."""
    ended: int | None
    """The epoch, counted from 1, behind which the last of these rows lie, where that is the first time; else None."""


@dataclass(frozen=True, slots=True)
class _Window:
    number: int
    dataset: TokenizedDataset
    order: Indices
    cursor: Cursor
    counts: Counter[str]
    passed: Counter[str]
    """Of the windows since the one before, of which no row was left."""


class RowStream:
    """The rows from a position on. `feeder` is that of the node's first rank, None on the others."""

    def __init__(self, stream: Stream, position: StreamPosition, directory: Path, feeder: Feeder | None) -> None:
        self._stream, self._begun, self._directory, self._feeder = stream, position, directory, feeder
        self._windows: deque[_Window] = deque()
        """Those that are open; the first is under way."""
        self._next = 0
        self._taken, self._counts = position.taken, Counter(position.counts)
        self._pieces = len(epoch_order(stream.weights, seed=stream.seed, epoch=0))
        self._noted: set[str] = set()

    @property
    def position(self) -> StreamPosition:
        """Behind all rows that were taken."""
        cursor = self._windows[0].cursor if self._windows else self._begun.cursor
        return replace(self._begun, cursor=cursor, taken=self._taken, counts=dict(self._counts))

    def ready(self, count: int) -> bool:
        """Whether that many rows can be taken. Raises what has ended the feeder."""
        if self._feeder is not None:
            self._feeder.look()
        lacking = count + self._taken - sum(len(window.order) for window in self._windows)
        while lacking > 0:
            if not self._open_next():
                self._ask_for(lacking)
                return False
            lacking -= len(self._windows[-1].order)
        return True

    def _ask_for(self, rows: int) -> None:
        """All windows at once that these take at least: each that is asked for by itself is waited for by itself."""
        if self._feeder is not None:
            windows = -(-rows // self._stream.window_rows)
            first = self._windows[0].number if self._windows else self._next
            self._feeder.need(first, self._next + windows - 1)

    def take(self, count: int) -> Taken:
        """The next rows, for which `ready` was true."""
        parts: list[tuple[TokenizedDataset, Indices]] = []
        before, first = self.position.cursor.epoch, self._windows[0].number
        while True:
            window = self._windows[0]
            chosen = window.order[self._taken : self._taken + count]
            if len(chosen):
                parts.append((window.dataset, chosen))
            self._taken += len(chosen)
            count -= len(chosen)
            if not count:
                break
            self._windows.popleft()
            self._counts += window.counts + self._windows[0].passed
            self._taken = 0
        if self._feeder is not None:
            self._feeder.need(first, -1)
        cursor = window.cursor
        epoch = cursor.epoch + (cursor.next_place - len(cursor.open)) / self._pieces
        ended = cursor.epoch if cursor.epoch > before else None
        return Taken(JoinedRows(parts), self.position, epoch, ended)

    def close(self) -> None:
        """End the feeder."""
        if self._feeder is not None:
            self._feeder.close()

    def _open_next(self) -> bool:
        """Map the next window, once it is there whole."""
        directory = self._directory / window_name(self._next)
        if not directory.is_dir():
            if error := read_error(self._directory / FAILED):
                raise error
            return False
        verify_bytes(directory)
        manifest = read_manifest(directory)
        cursor = Cursor.from_json(manifest["cursor"])
        dataset = TokenizedDataset.open(directory, manifest["sources"])
        if not self._next and self._taken and (cursor != self._begun.cursor or self._taken > len(dataset)):
            what = "its rows are no longer those that were trained on, though its files are listed as before"
            hint = "put back the files that were there, or give the run another name"
            raise DataError(what, where=", ".join(dataset.sources), hint=hint)
        self._require_template(manifest["stats"]["notes"], dataset)
        require_embedded(dataset, self._stream.unembedded)
        if self._stream.classes is not None:
            label_codes(dataset, self._stream.classes)
        counts, passed = _counts(manifest["stats"]), _counts(manifest["passed"])
        order = shuffled(len(dataset), cursor.window, seed=self._stream.seed)
        self._windows.append(_Window(self._next, dataset, order, cursor, counts, passed))
        if not self._next:
            self._counts += passed
        self._next += 1
        self._tell(manifest["stats"]["notes"])
        return True

    def _require_template(self, notes: Mapping[str, int], dataset: TokenizedDataset) -> None:
        """The plain template is saved with the result where the first rows needed it: nobody would save it later."""
        if PLAIN_NOTE in notes and PLAIN_NOTE not in self._stream.noted:
            what = "chat rows come behind first rows that are none, and the tokenizer has no chat template"
            hint = "data.chat_template: plain says that rankzero's is meant; a Jinja file takes another one"
            raise ConfigError(what, where=f"data.chat_template ({', '.join(dataset.sources)})", hint=hint)

    def _tell(self, notes: Mapping[str, int]) -> None:
        if self._feeder is not None:
            for note in notes.keys() - self._noted:
                self._noted.add(note)
                _logger.info("[DATA] train: from here on rows: %s", note)


def _counts(stats: Mapping[str, Any]) -> Counter[str]:
    return Counter({name: stats[name] for name in COUNTED}) + Counter(stats["dropped"])


class Feeder:
    """The process that reads ahead, as the rank that started it sees it."""

    def __init__(self, stream: Stream, cursor: Cursor, directory: Path, *, workers: int) -> None:
        """Start it. `directory` is its own; what killed ones have left beside it is removed. Raises StorageError."""
        self._told = (0, 0)
        with place_given_by("the variable RANKZERO_CACHE"), storage_errors(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(directory.parent)
            use(directory)
            self._lock = FileLock(f"{directory}{_LOCK}")
            self._lock.acquire()
            directory.mkdir()
        self._directory = directory
        self._connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "rankzero.data.cache.stream.feeder", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        with suppress(BrokenPipeError):  # which `look` says
            self._connection.send((stream, cursor, directory, workers))

    def need(self, first: int, awaited: int) -> None:
        """Windows before `first` can go; those up to `awaited` are waited for (-1: none)."""
        if self._told != (first, awaited):
            self._told = (first, awaited)
            with suppress(OSError):
                self._connection.send(self._told)

    def look(self) -> None:
        """Say what it has to say. Raises RankzeroError where it was killed."""
        with suppress(EOFError, OSError):
            while self._connection.poll():
                level, text = self._connection.recv()
                _logger.log(level, "[DATA] %s", text)
        code = self._process.poll()
        if code is not None and not (self._directory / FAILED).exists():
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            hint = "was the machine out of memory? a lower data.shuffle_buffer_size needs less"
            raise RankzeroError(f"the process that reads the stream ahead {how}", hint=hint)

    def close(self) -> None:
        """End it; nothing of it is left on disk."""
        self._connection.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def new_directory(cache: Path) -> Path:
    """A name for a feeder's directory."""
    return cache / "streams" / uuid.uuid4().hex


def remove_abandoned(parent: Path) -> None:
    """Delete the directories of feeders whose ranks are gone: the kernel has freed their locks."""
    for path in parent.glob(f"*{_LOCK}"):
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        shutil.rmtree(str(path).removesuffix(_LOCK), ignore_errors=True)
        path.unlink(missing_ok=True)
        lock.release()
