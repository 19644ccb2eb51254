"""How much of a PNG's pixels its file holds, and what it says of itself behind them. Knows the format's chunks and
passes; nothing of colours.

Format: PNG specification, third edition (W3C, 2025): 5.3 chunks, 5.6 their order, 7.2 scanlines, 8.1 Adam7 passes,
11.2.2 IHDR, 11.3.4 text and Exif.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIGNATURE_BYTES = len(_SIGNATURE)
_ONE_PIXEL = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
_TEXTS = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
_NOTES = {b"eXIf": (b"",), b"tEXt": _TEXTS, b"zTXt": _TEXTS, b"iTXt": _TEXTS}
"""Chunks in which an orientation may stand, with what they begin with."""
_KEY_BYTES = 32
_IS_KIND = re.compile(rb"\w{4}")
"""What Pillow takes for a chunk's kind; at anything else it stops."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Of each Adam7 pass: the first column and row, and the steps between them.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_BLOCK = 1 << 20


def missing_share(stream: BinaryIO) -> float:
    """Which part of the bytes of all scanlines is not in the file: 0 where it is whole.

    Raises ValueError or zlib.error's base, as Pillow does, where the chunks are no PNG's.
    """
    stream.seek(_SIGNATURE_BYTES)
    expected, found = 0, 0
    inflate = zlib.decompressobj()
    for kind, data in _chunks(stream):
        if kind == b"IHDR":
            expected = _scanline_bytes(data)
        elif kind == b"IDAT":
            try:
                for size in _inflated(inflate, data):
                    found += size
            except zlib.error as error:
                raise ValueError(str(error)) from error
    return max(0.0, 1 - found / expected) if expected else 1.0


def notes_behind(stream: BinaryIO, *, animated: bool) -> bytes | None:
    """Of a PNG whose notes on how it is turned stand behind its pixels: another one, of one pixel, with these notes
    before its pixels. None where it has none. The pixels are stepped over. Of an animation up to its second frame, as
    Pillow reads them for the first."""
    stream.seek(_SIGNATURE_BYTES)
    notes, behind = b"", False
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        end = stream.tell() + length + 4
        if kind == b"IEND" or not _IS_KIND.fullmatch(kind) or (behind and animated and kind == b"fcTL"):
            break
        behind = behind or kind == b"IDAT"
        if behind and kind in _NOTES:
            begins = stream.read(min(length, _KEY_BYTES))
            if begins.startswith(_NOTES[kind]):
                notes += _chunk(kind, begins + stream.read(length - len(begins)))
        stream.seek(end)
    return _SIGNATURE + _chunk(b"IHDR", _ONE_PIXEL) + notes + _chunk(b"IDAT", b"") if notes else None


def has_end(stream: BinaryIO) -> bool:
    """Whether the chunks of a PNG lead to its last one."""
    stream.seek(_SIGNATURE_BYTES)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND" or not _IS_KIND.fullmatch(kind):
            return bool(kind == b"IEND")
        stream.seek(length + 4, 1)
    return False


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        yield kind, stream.read(length) if kind in (b"IHDR", b"IDAT") else b""
        stream.seek(4 if kind in (b"IHDR", b"IDAT") else length + 4, 1)


def _inflated(inflate: zlib._Decompress, data: bytes) -> Iterator[int]:
    """How many bytes come out, a block at a time: a few kilobytes can be gigabytes of nothing."""
    while data:
        yield len(inflate.decompress(data, _BLOCK))
        data = inflate.unconsumed_tail


def _scanline_bytes(header: bytes) -> int:
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header[:13])
    bits = depth * _CHANNELS[colour]
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:  # an empty pass has no scanlines
            total += rows * (1 + (columns * bits + 7) // 8)
    return total
