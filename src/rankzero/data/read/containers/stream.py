"""A file's bytes in blocks, unpacked on the way, here or where it lies. Knows how files are packed; nothing of what the
bytes mean."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, Protocol

from rankzero.errors import ConfigError, StorageError

Packing = Literal["gzip", "zstd", "xz", "bzip2"]

PACKINGS: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zX": "xz",
    b"BZh": "bzip2",
    **{bytes([0x50 + number]) + b"\x2a\x4d\x18": "zstd" for number in range(16)},
}
"""By the first bytes of a file. The last are frames that a reader of zstd skips, as pzstd begins with (RFC 8878)."""


class Remote(Protocol):
    """A file that is read where it lies."""

    def __str__(self) -> str:
        """Its URL."""
        ...

    def open(self) -> BinaryIO:
        """Its bytes from the beginning, to be read and sought in. Raises RankzeroErrors, then and while it is read."""
        ...


Place = str | Remote
"""Where a file is: a path, or elsewhere."""


def opened(place: Place, *, buffered: bool = True) -> BinaryIO:
    """The file, open. Raises OSError of one that is here."""
    if not isinstance(place, str):
        return place.open()
    return open(place, "rb", buffering=-1 if buffered else 0)


class DamagedError(Exception):
    """The bytes cannot be read on from here. Caught by every reader of a container, which knows the row."""

    def __init__(self, reason: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.reason, self.what, self.hint = reason, what, hint


MAX_ROW_BYTES = 256 << 20
"""A longer row is one whose end is missing."""

KEPT_OF_DAMAGE = 1 << 20
"""Of a row that has no end, what is shown and set aside."""

_STEP_BYTES = 64 << 10
"""Of packed bytes that are looked at in one go: what is left of them is copied where a stream ends, and each row may
be one."""

OnRead = Callable[[int], None]
"""Called with how far into the file, as it lies on disk, has been read."""


def _unheard(_at: int) -> None:
    pass


def blocks(path: Place, packing: Packing | None, size: int, on_read: OnRead = _unheard) -> Iterator[bytes]:
    """The unpacked bytes, at most `size` at a time.

    Raises DamagedError where packed data is cut off or damaged, behind all that comes before that; StorageError where
    the volume fails.
    """
    try:
        with opened(path, buffered=False) as file:
            if packing is not None:
                for block in _unpacked(file, path, packing, size):
                    on_read(file.tell())
                    yield block
                return
            while block := _read_whole(file, size):
                on_read(file.tell())
                yield block
    except OSError as error:  # the file could be opened before: what fails now is the volume
        raise StorageError(f"reading failed: {error.strerror or error}", where=str(path)) from error


def _read_whole(file: BinaryIO, size: int) -> bytes:
    """So much, or what is left. One read of a file on a network may bring less."""
    block = file.read(size)
    while block and len(block) < size and (more := file.read(size - len(block))):
        block += more
    return block


def _unpacked(file: BinaryIO, path: Place, packing: Packing, size: int) -> Iterator[bytes]:
    if packing in ("gzip", "zstd"):
        import pyarrow as pa  # here, so that plain JSON lines are read without loading it

        if not pa.Codec.is_available(packing):
            hint = f"pip install --force-reinstall pyarrow, or unpack it first: {unpack_command(packing, path)}"
            raise ConfigError(f"this build of pyarrow cannot read {packing} files", where=str(path), hint=hint)
        unpacking = _by_pyarrow(_Lent(file), packing, size)
    else:
        unpacking = _by_python(file, packing, size)
    given = 0
    try:
        for block in unpacking:
            given += len(block)
            yield block
        return
    except _UnreadableError as error:
        damage = _damage(file, path, packing, str(error))
        if not error.loses:
            raise damage from error
    try:
        yield from _unpacked_again(path, packing, size, given, file.tell())
    except _UnreadableError as error:
        raise damage from error


def _unpacked_again(path: Place, packing: Packing, size: int, given: int, read: int) -> Iterator[bytes]:
    """What of the file was not `given`, up to the damage: libraries drop what they unpacked in the step that failed,
    which was of the last bytes that were `read`. These come one by one here.

    Raises as `_by_python` does, unless nothing is wrong: pyarrow takes no zeros behind gzip.
    """
    rest = bytearray()
    with opened(path, buffered=False) as file:
        lent: Any = _Lent(file, range(read - _STEP_BYTES, read))
        again = _by_pyarrow(lent, packing, size, given) if packing == "zstd" else _by_python(lent, packing, size)
        try:
            for block in again:
                rest += block[given:]
                given -= min(given, len(block))
                if len(rest) >= size:
                    yield bytes(rest[:size])
                    del rest[:size]
        except (DamagedError, _UnreadableError):
            if rest:
                yield bytes(rest)
            raise
    if rest:
        yield bytes(rest)


class _UnreadableError(Exception):
    """What a library says of packed data that it cannot unpack. `loses`: it keeps back what it had unpacked before."""

    def __init__(self, message: str, loses: bool = False) -> None:
        super().__init__(message)
        self.loses = loses


class _Lent:
    """A file that who reads it does not close, as pyarrow would, and of which a read brings one byte where it is to be
    read `slowly`."""

    closed = False

    def __init__(self, file: BinaryIO, slowly: range = range(0)) -> None:
        self._file, self._slowly = file, slowly

    def read(self, size: int) -> bytes:
        left = self._slowly.start - self.tell()
        if self.tell() in self._slowly:
            size = 1
        elif left > 0:
            size = min(size, left)
        return self._file.read(size)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        pass


def _by_pyarrow(file: Any, packing: Packing, size: int, until: int | None = None) -> Iterator[bytes]:
    """What is unpacked; behind `until` bytes one at a time, of which an error takes none along."""
    import pyarrow as pa

    stream, done = pa.CompressedInputStream(file, packing), 0
    try:
        while block := stream.read(size if until is None or done < until else 1):
            done += len(block)
            yield block
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None):
            raise
        raise _UnreadableError(str(error), loses=True) from error


class _Gzip:
    """zlib's, as those of the other modules are."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._may_have_more = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._may_have_more

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._may_have_more = len(out) == max_length or bool(self._inner.unconsumed_tail)
        return out


def _new_stream(packing: Packing) -> Any:
    """What unpacks one stream with the standard library."""
    import bz2
    import lzma

    if packing == "gzip":
        return _Gzip()
    return lzma.LZMADecompressor(lzma.FORMAT_XZ) if packing == "xz" else bz2.BZ2Decompressor()


def _by_python(file: BinaryIO, packing: Packing, size: int) -> Iterator[bytes]:
    """What the standard library unpacks, a stream at a time: its own files take what begins no further stream for the
    end, whatever comes after it."""
    import lzma

    stream, block = _new_stream(packing), bytearray()
    damage: Exception | None = None
    while True:
        try:
            if stream.eof:
                rest = _behind_a_stream(file, stream.unused_data, packing)
                if not rest:
                    break
                stream = _new_stream(packing)
            else:
                rest = file.read(_STEP_BYTES) if stream.needs_input else b""
                if not rest and stream.needs_input:
                    raise _UnreadableError("truncated")
            block += stream.decompress(rest, size - len(block))
        except (DamagedError, _UnreadableError, OSError, lzma.LZMAError, zlib.error) as error:
            if getattr(error, "errno", None):
                raise
            damage = error
            break
        if len(block) == size:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)
    if isinstance(damage, (DamagedError, _UnreadableError)):
        raise damage
    if damage is not None:
        raise _UnreadableError(str(damage), loses=True) from damage


def _behind_a_stream(file: BinaryIO, rest: bytes, packing: Packing) -> bytes:
    """What comes after a stream; `rest` is known of it. Behind those of xz (in fours) and gzip lie zeros at times, as
    tapes and block devices leave them. Raises DamagedError and _UnreadableError where it is no further stream."""
    zeros = 0
    while rest := rest or file.read(_STEP_BYTES):
        begins = rest if packing == "bzip2" else rest.lstrip(b"\0")
        zeros += len(rest) - len(begins)
        rest = begins
        if rest:
            break
    if packing == "xz" and zeros % 4:
        raise _UnreadableError("it has zeros behind a stream, and not in fours")
    magic = next(magic for magic, name in PACKINGS.items() if name == packing)
    while rest and len(rest) < len(magic) and (more := file.read(_STEP_BYTES)):
        rest += more
    if not rest.startswith(magic[: len(rest)]):
        what = f"what follows the {packing} data, at byte {file.tell() - len(rest)} of the file, is none"
        raise DamagedError("damaged file", what, "copy or download the file again, or take off what was appended")
    return rest


def as_utf8(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The blocks of a text in another encoding, in UTF-8. Raises DamagedError where they are not in that one."""
    decoder = codecs.getincrementaldecoder(encoding)()
    done = 0
    try:
        for block in blocks:
            done += len(block)
            if text := decoder.decode(block):
                yield text.encode()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        ends = error.end >= len(error.object)
        reason, where = ("cut-off file", "ends in") if ends and "data" in error.reason else ("damaged file", "has")
        what = f"the {encoding} text {where} half a character at or before byte {done}"
        raise DamagedError(reason, what, "was the download or the copy cut off?") from error


def _damage(file: BinaryIO, path: Place, packing: Packing, message: str) -> DamagedError:
    at = file.tell()
    if "runcated" in message:
        hint = "was the download or the copy cut off? compare its size with the original's"
        return DamagedError("cut-off file", f"the {packing} data is cut off at byte {at} of the file", hint)
    if "too much memory" in message:  # of zstd, beyond 128 MiB
        hint = f"unpack it first: zstd -d --long=31 {path}"
        return DamagedError("zstd window too large", f"the {packing} data refers back further than is read here", hint)
    what = f"the {packing} data is damaged, at or before byte {at} of the file: {message}"
    return DamagedError("damaged file", what, "copy or download the file again")


def unpack_command(packing: Packing, path: Place) -> str:
    """What unpacks the file in a shell."""
    return {"gzip": "gunzip -k", "zstd": "zstd -d", "xz": "xz -dk", "bzip2": "bunzip2 -k"}[packing] + f" {path}"
