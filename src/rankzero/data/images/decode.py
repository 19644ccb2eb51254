"""One image file as RGB pixels, or what is wrong with it. Knows Pillow's faults; nothing of rows.

Decisions, the same for checking and for training:
- The file is decoded whole: a cut-off JPEG opens and passes Pillow's `verify()`, and fails only here. A PNG whose
  compressed pixels end early does not even fail when it is decoded, and is measured.
- What the bytes are decides, not the suffix. Formats that run other programs (EPS) or hold no picture are not read,
  nor is AVIF, whose decoder raises RuntimeError for damage that is told from faults of our own by no means.
- EXIF orientation is applied, so that "left" in a question is left in the pixels.
- Of animations and multi-page files, the first frame.
- What is transparent shows white, as where processors and servers read an image: the colours under it mean nothing.
- 16-bit grey is scaled down, where Pillow alone would clip it to white. A clear shade among 65,536 is not looked for.
- The pixel limit is asked of the header, before anything is decoded. Pillow's own limit stays as it is: no global
  state is touched.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

from rankzero.data.images.paths import Refused, inside
from rankzero.data.images.png import has_end, missing_share, notes_behind
from rankzero.errors import ConfigError, DataError
from rankzero.wording import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

Looked = TypeVar("Looked")

MAX_PIXELS = 64_000_000
"""Of an image in training; some commands can be told less."""

NOT_THERE = "no such image"
"""The reason of an image that is missing; every other reason is of one that is there."""

_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
_ORIENTATION = 0x0112
_DEEP_GREY = "I;16"
_BEGINNINGS = ((b"\x89PNG", "PNG"), (b"\xff\xd8\xff", "JPEG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"), (b"BM", "BMP"))
_IMPOSTORS = (
    (b"<!doctype", "an HTML page, as a server sends instead of an image"),
    (b"<html", "an HTML page, as a server sends instead of an image"),
    (b"<?xml", "XML"),
    (b"<svg", "an SVG drawing, which has no pixels"),
    (b"{", "JSON text"),
    (b"version https://git-lfs", "a Git LFS pointer: the image was never fetched (git lfs pull)"),
)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What an image may have at most."""

    pixels: int = MAX_PIXELS
    """Width times height: a file of a few kilobytes can claim to be gigabytes of pixels."""


class ImageError(Exception):
    """An image that cannot be used; carries the reason, which is the same for all images with this fault."""

    def __init__(self, reason: str, what: str, hint: str = "") -> None:
        super().__init__(reason, what, hint)
        self.reason, self.what, self.hint = reason, what, hint


def require_pillow() -> None:
    """Raise ConfigError where Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        hint = 'pip install "rankzero[vision]"'
        raise ConfigError("images need Pillow, which is not installed", hint=hint) from error


def load_rgb(path: str, root: Path, limits: ImageLimits | None = None) -> Image:
    """The image at `path` below `root`, as RGB. Raises DataError with the path and the reason."""
    require_pillow()
    try:
        return decode(locate(path, root), limits or ImageLimits())
    except ImageError as fault:
        raise DataError(fault.what, where=str(root / path.replace("\0", "")), hint=fault.hint) from fault


def load_named(path: str) -> Image:
    """The image in a file that the user names, as RGB: wherever it is, whatever it is called. Raises DataError with the
    path and the reason."""
    require_pillow()
    try:
        return decode(_regular(Path(path)), ImageLimits())
    except ImageError as fault:
        raise DataError(fault.what, where=path, hint=fault.hint) from fault


def locate(path: str, root: Path) -> Path:
    """The regular file at `path` below `root`. Raises ImageError."""
    found = inside(path, root)
    if isinstance(found, Refused):
        raise ImageError(found.reason, found.what, found.hint)
    return _regular(found)


def _regular(found: Path) -> Path:
    try:
        mode = found.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageError(NOT_THERE, "no such image") from error
    except OSError as error:
        raise ImageError("unreadable file", f"cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(mode):  # a pipe would block for ever
        raise ImageError("not a regular file", "is not a regular file")
    return found


def decode(file: Path, limits: ImageLimits) -> Image:
    """The file's first frame as RGB. Raises ImageError."""
    return _read(file, limits, _loaded)


class Head(NamedTuple):
    """What an image file says of itself before its pixels."""

    size: tuple[int, int]
    """(width, height) that `decode` gives."""
    is_deep_grey: bool
    """Whether it is grey of 16 bits, which is scaled to 8."""


def image_size(file: Path, limits: ImageLimits) -> tuple[int, int]:
    """(width, height) that `decode` gives, as `image_head` finds it. Raises ImageError."""
    return image_head(file, limits).size


def image_head(file: Path, limits: ImageLimits) -> Head:
    """What `decode` gives, from the file's head, notes and end: damage between them is not seen. Only a file without an
    end is decoded, which says whether anything is missing. Raises ImageError."""
    head, has_end = _read(file, limits, lambda image: (_head(image), _ends(image)))
    if not has_end:
        decode(file, limits).close()
    return head


def _head(image: Image) -> Head:
    return Head(_upright_size(image), image.mode.startswith(_DEEP_GREY))


def _read(file: Path, limits: ImageLimits, look: Callable[[Image], Looked]) -> Looked:
    from PIL import Image, UnidentifiedImageError

    try:
        with file.open("rb") as stream:
            try:
                image = Image.open(stream, formats=_readable_formats())
                _require_pixels(image.size, limits)
                return look(image)
            except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
                what = f"has more than the {limits.pixels:,} pixels that are allowed"
                raise ImageError("too many pixels", what, _hint(limits)) from error
            except UnidentifiedImageError as error:
                raise _unidentified(stream) from error
            except (OSError, SyntaxError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # Pillow's own have none: the volume failed
                    raise
                what = f"the image is cut off or damaged: {first_line(error)[:200]}"
                raise ImageError("damaged image", what) from error
    except OSError as error:
        raise ImageError("unreadable file", f"cannot be read: {error.strerror or error}") from error


def _loaded(image: Image) -> Image:
    stream = image.fp  # type: ignore[attr-defined]
    image.load()
    if image.format in ("JPEG", "MPO") and (zeros := _zeros_without_end(stream)):
        what = f"the image is cut off: its last {zeros:,} bytes are zero, and it has no end"
        raise ImageError("damaged image", what, "was it copied, or written, to the end?")
    if image.format == "PNG" and _ends_in_nothing(image):
        missing = missing_share(stream)
        if missing > 0:
            what = f"the image is cut off: {missing:.0%} of its pixels are not in the file"
            raise ImageError("damaged image", what, "was it copied, or written, to the end?")
    return _rgb(_upright(image))


def _zeros_without_end(stream: BinaryIO) -> int:
    """How many zero bytes a JPEG file ends with, where they stand in place of its end: a copy that broke off in a file
    whose size was set before. Pillow takes them for pixels. Behind the end a file may have what it likes (cameras put
    films there)."""
    size = stream.seek(0, os.SEEK_END)
    zeros = 0
    while zeros < size:
        start = max(0, size - zeros - _BLOCK)
        stream.seek(start)
        block = stream.read(size - zeros - start)
        kept = block.rstrip(b"\0")
        zeros += len(block) - len(kept)
        if kept:
            return 0 if not zeros or kept.endswith(_JPEG_END) or _has_end(stream) else zeros
    return zeros


def _ends(image: Image) -> bool:
    """Whether the file has the end that its format gives a whole one, as far as that is known without decoding."""
    stream: BinaryIO = image.fp  # type: ignore[attr-defined]
    if image.format in ("JPEG", "MPO"):
        return _tail(stream, 2) == _JPEG_END or _has_end(stream)
    if image.format == "PNG":
        return has_end(stream)
    if image.format == "GIF":
        return _tail(stream, 1) == b";"
    if image.format == "WEBP":
        stream.seek(4)
        rest = int.from_bytes(stream.read(4), "little")
        return stream.seek(0, os.SEEK_END) >= rest + 8
    return True


def _tail(stream: BinaryIO, length: int) -> bytes:
    stream.seek(-length, os.SEEK_END)
    return stream.read(length)


def _has_end(stream: BinaryIO) -> bool:
    """Whether the end marker comes behind the image's first scan. (ITU T.81, B.1.1: within a scan 0xff is followed by
    zero or a restart marker; thumbnails, which have ends of their own, lie in segments before it.)"""
    stream.seek(0)
    data = stream.read()
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != _JPEG_SCAN:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(_JPEG_END, at) >= 0


_JPEG_SCAN = b"\xda"
_JPEG_END = b"\xff\xd9"
_BLOCK = 1 << 16


def _ends_in_nothing(image: Image) -> bool:
    """Whether one of the last two rows has no bit set, as rows have that a PNG file lacks: Pillow says nothing of them.
    (Of interlaced files the last row may come from an early pass.)"""
    width, height = image.size
    rows = (image.crop((0, row, width, row + 1)).tobytes() for row in range(max(0, height - 2), height))
    return not all(map(any, rows))


def _upright_size(image: Image) -> tuple[int, int]:
    from PIL import Image as Pillow

    _require_rgb_form(image)
    width, height = image.size
    if image.format == "TIFF":  # Pillow turns these itself
        return width, height
    try:
        if image.format == "PNG":
            stream: BinaryIO = image.fp  # type: ignore[attr-defined]
            if behind := notes_behind(stream, animated=getattr(image, "is_animated", False)):
                image.info.update(Pillow.open(io.BytesIO(behind), formats=("PNG",)).info)
        # The base class's: that of PNG files decodes the whole image to find notes at the end of the file.
        sideways = Pillow.Image.getexif(image).get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except (OSError, SyntaxError, ValueError):
        sideways = False
    return (height, width) if sideways else (width, height)


def _require_pixels(size: tuple[int, int], limits: ImageLimits) -> None:
    pixels = size[0] * size[1]
    if pixels > limits.pixels:
        what = f"{size[0]} x {size[1]} = {pixels:,} pixels, more than the {limits.pixels:,} that are allowed"
        raise ImageError("too many pixels", what, _hint(limits))
    if pixels < 1:
        raise ImageError("damaged image", f"the image is {size[0]} x {size[1]} pixels")


def _hint(limits: ImageLimits) -> str:
    """Nobody can raise the limit beyond what training decodes."""
    return "make it smaller, or raise the limit" if limits.pixels < MAX_PIXELS else "make it smaller"


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
    except (OSError, SyntaxError, ValueError):  # a damaged note about the picture; the picture itself is whole
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _require_rgb_form(image: Image) -> None:
    if image.mode in ("I", "F"):
        what = f"pixels are of type {image.mode} (32 bits, no stated range), which has no RGB form"
        raise ImageError("no RGB form", what, "save the image with 8 bits a channel")


def _rgb(image: Image) -> Image:
    _require_rgb_form(image)
    if image.mode.startswith(_DEEP_GREY):
        # By way of 32 bits, since Pillow has no such operation for pixels of the other byte order.
        image.info.pop("transparency", None)
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    elif image.has_transparency_data and not _of_16_bits(image.info.get("transparency")):
        image = _on_white(image)
    return image.convert("RGB")


def _of_16_bits(clear: object) -> bool:
    """Whether a PNG's clear colour is one of 16 bits a channel, which Pillow compares with pixels of 8."""
    return isinstance(clear, tuple) and max(clear) > 255


def _on_white(image: Image) -> Image:
    from PIL import Image as Pillow

    clear = image.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", clear.size, "white"), clear)


def _unidentified(stream: BinaryIO) -> ImageError:
    stream.seek(0)
    head = stream.read(64)
    if not head:
        return ImageError("empty file", "the file is empty", "was the download cut off?")
    begins = next((name for start, name in _BEGINNINGS if head.startswith(start)), None)
    if begins is not None:
        return ImageError("damaged image", f"begins like a {begins} and cannot be read as one: cut off or damaged")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    kind = next((kind for start, kind in _IMPOSTORS if text.startswith(start)), None)
    if head[4:12] == b"ftypavif":
        return ImageError("not an image", "is an AVIF file, which is not read", "convert it to PNG, JPEG or WebP")
    return ImageError("not an image", f"is {kind}" if kind else f"is no image that can be read ({head[:8]!r}…)")


@lru_cache
def _readable_formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
