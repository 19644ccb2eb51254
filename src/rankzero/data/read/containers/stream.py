"""A file's bytes in blocks, unpacked on the way, here or where it lies. Knows how files are packed; nothing of what the
bytes mean."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import partial
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

    Raises DamagedError where packed data is cut off or damaged, StorageError where the volume fails.
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
    if packing in ("xz", "bzip2"):
        yield from _by_python(file, path, packing, size)
        return
    import pyarrow as pa  # here, so that plain JSON lines are read without loading it

    if not pa.Codec.is_available(packing):
        hint = f"pip install --force-reinstall pyarrow, or unpack it first: {unpack_command(packing, path)}"
        raise ConfigError(f"this build of pyarrow cannot read {packing} files", where=str(path), hint=hint)
    stream = pa.CompressedInputStream(file, packing)
    while True:
        try:
            block = stream.read(size)
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None):
                raise
            raise _damage(file, path, packing, str(error)) from error
        if not block:
            return
        yield block


def _by_python(file: BinaryIO, path: Place, packing: Packing, size: int) -> Iterator[bytes]:
    """What the standard library unpacks, a stream at a time: its own files take what begins no further stream for the
    end, whatever comes after it."""
    import bz2
    import lzma

    new: Callable[[], Any] = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ) if packing == "xz" else bz2.BZ2Decompressor
    stream, block = new(), bytearray()
    try:
        while True:
            if stream.eof:
                rest = _behind_a_stream(file, path, stream.unused_data, packing)
                if not rest:
                    break
                stream = new()
            else:
                rest = file.read(_STEP_BYTES) if stream.needs_input else b""
                if not rest and stream.needs_input:
                    raise EOFError
            block += stream.decompress(rest, size - len(block))
            if len(block) == size:
                yield bytes(block)
                block.clear()
    except EOFError as error:
        if block:
            yield bytes(block)
        raise _damage(file, path, packing, "truncated") from error
    except (OSError, lzma.LZMAError) as error:
        if getattr(error, "errno", None):
            raise
        if block:
            yield bytes(block)
        raise _damage(file, path, packing, str(error)) from error
    if block:
        yield bytes(block)


def _behind_a_stream(file: BinaryIO, path: Place, rest: bytes, packing: Packing) -> bytes:
    """What comes after a stream; `rest` is known of it. Behind one of xz lie zeros at times, in fours. Raises
    DamagedError."""
    zeros = 0
    while rest := rest or file.read(_STEP_BYTES):
        begins = rest.lstrip(b"\0") if packing == "xz" else rest
        zeros += len(rest) - len(begins)
        rest = begins
        if rest:
            break
    if zeros % 4:
        raise _damage(file, path, packing, "it has zeros behind a stream, and not in fours")
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
