"""Images that rows bring themselves, as `data:` URLs: put into the cache, each once, under the hash of its bytes.

Tables of the Hub hold images so ({bytes, path}); readers of columns make such URLs of them. Knows the cache and base64;
nothing of rows or pixels.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from rankzero.cache.uses import use
from rankzero.data.images.decode import ImageError
from rankzero.machine import cache_root
from rankzero.run_dir.atomic import place_given_by, storage_errors, whole_file

_HEAD = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+)?(?P<options>(?:;[\w=.+-]+)*),", re.IGNORECASE)
_OTHER_ALPHABET = str.maketrans("-_", "+/", " \t\r\n\f\v")
"""Of base64 in URLs (RFC 4648, 5), and the white space of lines that were wrapped, which says nothing."""


def is_embedded(image: str) -> bool:
    """Whether an image of a row is its bytes, not a path or a URL to fetch."""
    return image[:5].lower() == "data:"


def shown(image: str) -> str:
    """An image of a row in a message: its path, or the beginning of its bytes."""
    return repr(f"{image[:30]}…") if is_embedded(image) else repr(image[:200])


def kept_images() -> Path:
    """Where they lie in the cache. Not created here."""
    return cache_root() / "images"


def names_kept(folders: Iterable[str]) -> set[str]:
    """What lies there in these of its folders, as `keep` names it."""
    found: set[str] = set()
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError):
            found.update(f"{folder}/{name}" for name in os.listdir(kept_images() / folder))
    return found


def keep(image: str) -> str:
    """Put an embedded image into the cache, where it is not yet there. Returns its path below `kept_images()`.

    Raises ImageError where the URL is none, StorageError.
    """
    data = _bytes(image)
    use(kept_images())
    digest = hashlib.sha256(data).hexdigest()
    name = f"{digest[:2]}/{digest}"
    target = kept_images() / name
    with place_given_by("the variable RANKZERO_CACHE"), storage_errors(target):
        if not (target.is_file() and target.read_bytes() == data):  # what lies there may have been damaged since
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as out:
                out.write(data)
    return name


def _bytes(image: str) -> bytes:
    head = _HEAD.match(image)
    if head is None:
        raise ImageError("bad data URL", "is no data: URL", "expected: data:image/png;base64,…")
    if not (head["kind"] or "").lower().startswith("image/"):
        raise ImageError("not an image", f"holds {head['kind'] or 'text'}, not an image", "remove it, or the row")
    data = image[head.end() :]
    try:
        if ";base64" not in head["options"].lower():
            return unquote_to_bytes(data)
        plain = (unquote(data) if "%" in data else data).translate(_OTHER_ALPHABET)
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("bad data URL", f"its base64 is damaged: {error}", "was the row cut off?") from error
