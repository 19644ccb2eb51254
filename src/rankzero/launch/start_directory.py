"""The temporary directory of one start: what its processes hand to each other. None stays behind, also of those that
were killed while this machine has been up. Knows nothing of what is in it.

Machines may share the place for temporary files, and a file system may keep locks to the machine that asks for them
(NFS with `local_lock`, Lustre with `localflock`): what another one holds looks free. So each name says which machine it
is of, and nobody deletes what is not their own machine's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rankzero.run_dir.handover import room_for_a_start
from rankzero.run_dir.lease import BOOT_ID

PREFIX = "rankzero-start-"
_HELD = ".held"
"""Locked by the process whose directory it is. The kernel lets go of it with the process, however that ends."""


@contextmanager
def start_directory() -> Iterator[Path]:
    """A new directory, gone at the end. Those of this machine's processes that were killed go first: they could not do
    it. On a volume that locks nothing none but one's own goes."""
    prefix = f"{PREFIX}{_machine()}-"
    with ExitStack() as stack:
        with room_for_a_start():
            _remove_abandoned(Path(tempfile.gettempdir()), prefix)
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            stack.enter_context(_kept_from_ageing(name))
            directory = Path(name)
            unseen = directory / f"{_HELD}.new"  # else another start could meet it before it is locked
            held = os.open(unseen, os.O_CREAT | os.O_RDWR, 0o600)
            stack.callback(os.close, held)
            if _is_locked(held):  # else it stays unseen
                unseen.rename(directory / _HELD)
        yield directory


def _is_locked(file: int) -> bool:
    """Whether it could be locked for us: some volumes lock nothing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _machine() -> str:
    """Who shares locks: a kernel, for as long as it is up. Containers on it share them too."""
    try:
        known = BOOT_ID.read_bytes()
    except OSError:  # no /proc
        known = socket.gethostname().encode()
    return hashlib.sha256(known).hexdigest()[:12]


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


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Delete what nobody holds. One that is being made has no lock file yet, and stays."""
    for held in parent.glob(f"{prefix}*/{_HELD}"):
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
