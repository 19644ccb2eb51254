"""What the images of rows held when they were tokenised, and whether their files hold it still. Knows files and hashes;
nothing of rows or pixels."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from rankzero.cache.uses import use
from rankzero.data.images.decode import ImageError
from rankzero.data.images.embedded import kept_images, names_kept
from rankzero.data.read.hashing import alone, file_state, settled
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import file_sha256, write_text
from rankzero.run_dir.unread import unread

_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")

_AT_A_TIME = 256
_READERS = 16
"""More than there are cores: on a network volume, asking for a file's state is waiting."""


class ImageFile(NamedTuple):
    """An image of a row as it was tokenised."""

    path: str
    """Relative: in the cache, below `kept_images()`."""
    sha256: str
    state: str
    """The file's when it was read. Empty: unknown, since a change could have followed that does not show in it."""


class _Seen(NamedTuple):
    """What a file held in a state."""

    state: str
    sha256: str


def image_file(path: str, state: tuple[int, ...]) -> ImageFile:
    """Read an image whose file was in this state when its size was looked at. Raises ImageError."""
    if not os.path.isabs(path):
        return ImageFile(path, Path(path).name, "")  # `keep` names it by what it holds
    try:
        digest, now = file_sha256(Path(path)), file_state(path)
    except OSError as error:
        raise ImageError("unreadable file", f"cannot be read: {error.strerror or error}") from error
    if tuple(now) != state:
        hint = "give the same command again once nothing writes to it"
        raise ImageError("image changed", "the file changed while it was read", hint)
    return ImageFile(path, digest, _known(now))


def images_gone(files: Iterable[ImageFile]) -> int:
    """How many of the images that rows brought are no longer in the cache, where this process uses them."""
    brought = {file.path for file in files if not os.path.isabs(file.path)}
    if not brought:
        return 0
    use(kept_images())
    return len(brought - names_kept({name.partition("/")[0] for name in brought}))


def changed_images(files: Iterable[ImageFile], record: Path) -> list[str]:
    """The paths of those that hold something else now, or cannot be read. Raises StorageError where one cannot be read
    at the moment.

    A file is read only where its state is neither the one that it was tokenised in nor the one that `record`, a file of
    the cache, says something of; and then by one process at a time.
    """
    outside = [file for file in files if os.path.isabs(file.path)]
    if all(_over_threads(partial(_is_held, seen={}), outside)):
        return []
    with alone(record):
        seen = _noted(record)
        held = _over_threads(partial(_is_held, seen=seen), outside)
        unread = sorted({file.path for file, is_held in zip(outside, held, strict=True) if is_held is None})
        now = dict(zip(unread, _over_threads(_read, unread), strict=True))
        if now:
            _note(record, {file.path: seen[file.path] for file in outside if file.path in seen} | now)
    same = (now[file.path].sha256 == file.sha256 if it is None else it for file, it in zip(outside, held, strict=True))
    return sorted({file.path for file, is_same in zip(outside, same, strict=True) if not is_same})


def _is_held(file: ImageFile, seen: Mapping[str, _Seen]) -> bool | None:
    """Whether the file holds what was tokenised; None where it has to be read for that."""
    try:
        state = _in_words(file_state(file.path))
    except OSError as error:
        unread(error, file.path)  # raises where another try may read it
        return False
    if state == file.state:
        return True
    known = seen.get(file.path)
    return known.sha256 == file.sha256 if known is not None and known.state == state else None


def _read(path: str) -> _Seen:
    """What a file holds; nothing, where no other try can read it either. Raises StorageError."""
    try:
        before = file_state(path)
        digest, after = file_sha256(Path(path)), file_state(path)
    except OSError as error:
        unread(error, path)
        return _Seen("", "")
    return _Seen(_known(after) if before == after else "", digest)


def _known(state: list[int]) -> str:
    return _in_words(state) if settled(state) else ""


def _in_words(state: list[int]) -> str:
    return " ".join(map(str, state))


def _noted(record: Path) -> dict[str, _Seen]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {path: _Seen(*seen) for path, seen in json.loads(record.read_text(encoding="utf-8")).items()}
    return {}


def _note(record: Path, seen: Mapping[str, _Seen]) -> None:
    with suppress(StorageError):  # a convenience: without it these files are read at each start
        write_text(record, json.dumps({path: what for path, what in seen.items() if what.state}))


def _over_threads(look: Callable[[_Asked], _Found], asked: Sequence[_Asked]) -> list[_Found]:
    """`look` at each, in their order."""
    batches = [asked[start : start + _AT_A_TIME] for start in range(0, len(asked), _AT_A_TIME)]
    if len(batches) < 2:
        return [look(one) for one in asked]
    with ThreadPoolExecutor(min(_READERS, len(batches))) as readers:
        return [found for batch in readers.map(lambda batch: [look(one) for one in batch], batches) for found in batch]
