"""The temporary directory of one start: what its processes hand to each other. None stays behind, also of those that
were killed. Knows nothing of what is in it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "rankzero-start-"
_HELD = ".held"
"""Locked by the process whose directory it is. The kernel lets go of it with the process, however that ends."""


@contextmanager
def start_directory() -> Iterator[Path]:
    """A new directory, gone at the end. Those of processes that were killed go first: they could not do it."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _kept_from_ageing(name):
        directory = Path(name)
        unseen = directory / f"{_HELD}.new"  # else another start could meet it before it is locked
        held = os.open(unseen, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unseen.rename(directory / _HELD)
            yield directory
        finally:
            os.close(held)


@contextmanager
def _kept_from_ageing(directory: str) -> Iterator[None]:
    """Lock the directory itself: systemd-tmpfiles, which deletes what has been idle in /tmp for ten days, passes over
    what is locked, and all below it (tmpfiles.d(5))."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a volume that locks no directories
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _remove_abandoned(parent: Path) -> None:
    """Delete what nobody holds. One that is being made has no lock file yet, and stays."""
    for held in parent.glob(f"{PREFIX}*/{_HELD}"):
        try:
            if held.parent.is_symlink() or held.lstat().st_uid != os.getuid():
                continue
            file = os.open(held, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by a process that lives
            continue
        else:
            shutil.rmtree(held.parent, ignore_errors=True)
        finally:
            os.close(file)
