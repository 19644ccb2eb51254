"""A remote file read where it lies: any part of it, in bounded memory, gone on with after a break.

Knows the network's interface; nothing of what is in the file, and nothing of a cache.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, BinaryIO, TypeVar, cast

from rankzero.data.read.download import TRIES
from rankzero.data.read.network import Network, RemoteFile
from rankzero.errors import DataError, ServiceError

_BUFFER_BYTES = 1 << 20
_NEAR_BYTES = 4 << 20
"""What lies this little ahead is read past: a new request takes longer."""

_LONGEST_PAUSE = 30.0
"""Seconds between two tries while nobody waits: whoever begins to wait meanwhile waits for this one to end."""

_Result = TypeVar("_Result")
_logger = logging.getLogger("rankzero.data")


def always() -> bool:
    """Somebody waits for what is read."""
    return True


class ReadInPlace:
    """A file elsewhere, as the readers of containers take one. They open it more than once, to look at its beginning
    and then to read on: that is one request."""

    def __init__(self, file: RemoteFile, network: Network, is_due: Callable[[], bool] = always) -> None:
        """`is_due`: whether somebody waits for what is read. While nobody does, tries are not counted."""
        self._file, self._network, self._is_due = file, network, is_due
        self._blocks: _Blocks | None = None

    def __str__(self) -> str:
        return self._file.url

    def open(self) -> BinaryIO:
        """Its bytes. Raises DataError where it is not what was listed, and ServiceError where TRIES in a row fail."""
        if self._blocks is None:
            self._blocks = _Blocks(self._file, self._network, self._is_due)
        return cast(BinaryIO, io.BufferedReader(_Bytes(self._blocks), _BUFFER_BYTES))


class _Bytes(io.RawIOBase):
    """The file as somebody reads it."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks, self._at = blocks, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._blocks.known_size()
        elif whence == io.SEEK_CUR:
            offset += self._at
        self._at = max(0, offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        taken = self._blocks.at(self._at)[: len(buffer)]
        buffer[: len(taken)] = taken
        self._at += len(taken)
        return len(taken)


class _Blocks:
    """What came last of a file. Requests begin where somebody reads, and go on while what is read lies in order."""

    def __init__(self, file: RemoteFile, network: Network, is_due: Callable[[], bool]) -> None:
        self._file, self._network, self._is_due = file, network, is_due
        self._block, self._block_at = b"", 0
        """What came last, and where it lies in the file."""
        self._stream: Iterator[bytes] | None = None
        self._size = self._patiently(lambda: _require_same(file, network))

    def known_size(self) -> int:
        """How long the file is. Raises DataError where that is not known."""
        if self._size is None:
            what = "the server does not say how long the file is, and such a file is read from its end"
            hint = "JSON lines, packed or not, are read from any server; or download it, without data.streaming"
            raise DataError(what, where=self._file.url, hint=hint)
        return self._size

    def at(self, place: int) -> memoryview:
        """Some bytes from there on; none behind the end."""
        if self._size is None or place < self._size:
            if not self._block_at <= place < self._block_at + len(self._block):
                self._patiently(lambda: self._read_on(place))
            return memoryview(self._block)[place - self._block_at :]
        return memoryview(b"")

    def _patiently(self, step: Callable[[], _Result]) -> _Result:
        """What a step gives; where the service fails it, after some time that of another try. Raises ServiceError where
        TRIES in a row fail while it is due."""
        failed, counted, pause = False, 0, 1.0
        while True:
            try:
                if failed:
                    _require_same(self._file, self._network)
                return step()
            except ServiceError as error:
                self._drop()
                failed, pause = True, min(2 * pause, _LONGEST_PAUSE)
                counted = counted + 1 if self._is_due() else 0
                if counted == TRIES:
                    raise
                _logger.warning("%s: %s; trying again", self._file.url, error.problems[0].what)
                self._network.pause(2.0**counted if counted else pause)

    def _read_on(self, place: int) -> None:
        """Get the block that this byte is in, or an empty one behind the end."""
        end = self._block_at + len(self._block)
        if self._stream is None or not end <= place <= end + _NEAR_BYTES:
            self._drop()
            self._stream = self._network.read(self._file, place)
            self._block, self._block_at = b"", place
        while place >= self._block_at + len(self._block):
            block = next(self._stream, None)
            if block is None:
                if self._size is not None:
                    what = f"the file ended at byte {self._block_at + len(self._block)} of {self._size}"
                    raise ServiceError(what, where=self._file.url, hint="give the same command again")
                self._block, self._block_at = b"", place
                return
            self._block, self._block_at = block, self._block_at + len(self._block)

    def _drop(self) -> None:
        """End the request that is under way."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with closing(cast(Any, stream)):
                pass


def _require_same(listed: RemoteFile, network: Network) -> int | None:
    """How long the file is. Raises DataError where it is not the one that was listed."""
    found = network.find(listed.url).files
    if not found:
        raise DataError("the file is gone since it was listed", where=listed.url, hint=_NEW_DATA)
    (file,) = found
    known = [(listed.size, file.size), (listed.version, file.version)]
    if any(before and now and before != now for before, now in known):
        raise DataError("the file changed since it was listed", where=listed.url, hint=_NEW_DATA)
    return file.size if file.size is not None else listed.size


_NEW_DATA = "the same command lists the files again; what a run goes on with is then other data, and it says so"
