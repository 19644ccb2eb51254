"""Image paths as rows have them, made safe: relative, within their root, symlinks resolved. Knows nothing of pixels."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a path is not followed. `reason` is short and the same for every path with this fault."""

    reason: str
    what: str
    hint: str = ""


_RELATIVE = "write image paths relative to the image root"
_ABSOLUTE = "absolute image path"


def refusal(path: str) -> Refused | None:
    """What is wrong with the path as text; None where it may be looked up."""
    shown = repr(path[:80])
    if not path.strip():
        return Refused("empty image path", "the image path is empty")
    if "\0" in path:
        return Refused("NUL in image path", f"{shown} has a NUL character")
    if "\\" in path:
        return Refused("backslash in image path", f"{shown} has a backslash", "write forward slashes")
    if "://" in path or path[:5].lower() == "data:":
        hint = "nothing that only a row names is fetched: download the images, and write their paths"
        return Refused("image is a URL", f"{shown} is a URL, not a path", hint)
    if path.startswith("/"):
        return Refused(_ABSOLUTE, f"{shown} is absolute", _RELATIVE)
    if ".." in path.split("/"):
        return Refused("`..` in image path", f"{shown} goes up with `..`", _RELATIVE)
    if any(ord(character) < 32 or ord(character) == 127 for character in path) or not _encodable(path):
        return Refused("odd character in image path", f"{shown} has a character that no file name should have")
    if normalised(path) == ".":
        return Refused("empty image path", f"{shown} names no file")
    return None


def normalised(path: str) -> str:
    """The path without `./` and doubled slashes. Only for paths that are not refused."""
    return posixpath.normpath(path)


def inside(path: str, root: Path) -> Path | Refused:
    """Where the path leads below `root`, symlinks resolved on both sides. Whether a file is there is not asked.

    A link that leads out of the root is refused, whatever it leads to: rows come from strangers.
    """
    real_root = os.path.realpath(root)
    if (refused := refusal(path)) and refused.reason == _ABSOLUTE and refusal(path.lstrip("/")) is None:
        real = os.path.realpath(path)
        if real.startswith(real_root.rstrip(os.sep) + os.sep):
            return Path(real)
        hint = f"image_root says below which directory images may be: image_root: {os.path.dirname(path)}"
        return Refused(_ABSOLUTE, f"{path[:80]!r} is not below the image root, {real_root}", hint)
    if refused:
        return refused
    real = os.path.realpath(os.path.join(real_root, normalised(path)))
    if not real.startswith(real_root.rstrip(os.sep) + os.sep):
        what = f"{path[:80]!r} leads out of the image root through a symlink"
        return Refused("image leaves its root", what, "copy or hard-link the files into the root")
    return Path(real)


def _encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
