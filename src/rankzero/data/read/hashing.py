"""Content hashes of files, remembered for large ones. Knows nothing of what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from rankzero.data.read.containers.layout import named_kind
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import file_sha256, write_text

REMEMBERED_BYTES = 64 << 20
"""Smaller files are hashed faster than it takes to explain why they were not."""

_LOOK_SECONDS = 0.1
"""How often one that waits for another's lock looks whether it is still wanted."""

_SETTLED_NS = 2_000_000_000
"""A file changed within this time may change again without its time stamp showing it."""


def file_state(path: str) -> list[int]:
    """Changes whenever the file's content does, but for writes within one tick of the file system's clock.

    Inode, size, and times of the last change of content and of anything. Not the device, whose number is another one
    each time that a network volume is mounted.
    """
    stat = os.stat(path)
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def content_hash(path: str, cache_dir: Path) -> str:
    """Tells apart what files hold: sha256 and, where the name decides how the bytes are read, the kind.

    A large file that has not been touched since is not read again.
    """
    kind = named_kind(path)
    return file_digest(path, cache_dir) + (f":{kind}" if kind else "")


def file_digest(path: str, cache_dir: Path, stopped: Callable[[], bool] | None = None) -> str:
    """sha256 of all of a file's bytes. A large file is read by one process at a time, and by none while it stays as it
    is. Raises OSError, and CancelledError once `stopped` says so."""
    state = file_state(path)
    read = partial(file_sha256, Path(path), *([stopped] if stopped else []))
    if state[1] < REMEMBERED_BYTES:
        return read()
    if not settled(state):  # it could not be remembered: nobody needs to wait
        return read()
    with alone(_record(path, cache_dir), stopped):
        known = remembered_digest(path, cache_dir)
        if known is not None:
            return known
        digest = read()
        if file_state(path) == state:
            value = {"path": os.path.abspath(path), "state": state, "sha256": digest}
            with suppress(StorageError):  # a convenience; that the cache cannot be written is said where it matters
                write_text(_record(path, cache_dir), json.dumps(value))
    return digest


def remembered_digest(path: str, cache_dir: Path) -> str | None:
    """What a file was found to hold, where it has not been touched since. Raises OSError where there is no file."""
    state = file_state(path)
    with suppress(OSError, ValueError, TypeError, KeyError):
        saved = json.loads(_record(path, cache_dir).read_text(encoding="utf-8"))
        if saved["path"] == os.path.abspath(path) and saved["state"] == state:
            return str(saved["sha256"])
    return None


def settled(state: list[int]) -> bool:
    """Whether a later change of the file would show in its state."""
    return time.time_ns() - max(state[2:]) > _SETTLED_NS


def _record(path: str, cache_dir: Path) -> Path:
    return cache_dir / "digests" / f"{hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:32]}.json"


@contextmanager
def alone(record: Path, stopped: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold a record's lock; where there can be none, go on without. Raises CancelledError once `stopped` says so while
    another has it."""
    lock = FileLock(f"{record}.lock", timeout=-1 if stopped is None else _LOOK_SECONDS)
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            if stopped is not None and stopped():
                raise CancelledError
            with suppress(Timeout):
                lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()
