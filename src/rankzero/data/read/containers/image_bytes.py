"""Bytes in columns that are images, as text that rows can hold. Knows how image files begin; decodes none."""

from __future__ import annotations

import base64

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\0\0\0\x0cjP  ", "jp2"),
)


def embed(data: bytes) -> str | None:
    """The bytes of an image as a `data:` URL; None where they do not begin as any image does."""
    kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "webp"
    if kind is None and data[:2] == b"BM" and int.from_bytes(data[2:6], "little") in (0, len(data)):
        kind = "bmp"
    return None if kind is None else f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
