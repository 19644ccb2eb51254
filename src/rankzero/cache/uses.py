"""Who uses what in the cache: a process says so before it looks whether something is there, and pruning believes it.

A process has one file in `.uses/`, locked for as long as it or a child that it forked lives; the kernel lets go of it
however they end. In it stands what they use, a line each. Using and pruning exclude each other by the lock of
`.uses/lock`, which pruning holds only while it looks and renames. Who can read the cache and not write it, as another
user, holds a lock of `.uses/readers` instead: then all is used. Where the volume has no locks nothing is noted, and
nothing is pruned.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rankzero.machine import cache_root

USES = ".uses"
_LOCK, _READERS = "lock", "readers"
_SUFFIX, _EVERYTHING, _NEW = ".use", ".all.use", ".new"


@dataclass(slots=True)
class _Lease:
    """This process's file in one cache."""

    path: Path
    file: int
    noted: set[str] = field(default_factory=set)
    is_of_all: bool = False
    """Not its own file, but a lock by which all is used."""

    def has(self, name: str) -> bool:
        return self.is_of_all or name in self.noted


_leases: dict[Path, _Lease] = {}
_one_at_a_time = threading.Lock()


def _after_fork() -> None:
    """A thread that held it has not come along."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def use(path: Path) -> None:
    """Note that this process, until it ends, uses an entry of the cache, or is about to make it. Anything outside of
    the cache is of no interest here."""
    root = cache_root()
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        return
    with suppress(OSError), _one_at_a_time:
        lease = _leases.get(root)
        if lease is None or not lease.has(name):
            with _locked(root, fcntl.LOCK_SH):
                lease = lease or _leases.setdefault(root, _begin(root))
                if not lease.is_of_all:
                    _note(lease, name)
        os.utime(path, follow_symlinks=False)  # its last use; not there yet, or another user's: no matter


def release() -> None:
    """End all uses of this process, as its end would."""
    with _one_at_a_time:
        for lease in _leases.values():
            os.close(lease.file)
        _leases.clear()


def used_in(root: Path) -> dict[str, str]:
    """What living processes use in a cache (empty: all of it), and which process does, as `pid 12 on host`.

    Files of those that are gone are removed. Raises OSError where others' cannot be read.
    """
    found: dict[str, str] = {}
    for path in _files_of_users(root):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)  # it may be another user's
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # its process lives; or nobody can tell, as on a volume without locks
            host, pid, _ = path.name.rsplit("-", 2)
            all_of_it = [""] if path.name.endswith(_EVERYTHING) else []
            for name in [*all_of_it, *path.read_text(encoding="utf-8", errors="replace").splitlines()]:
                found[name] = f"pid {pid} on {host}"
        else:
            with suppress(OSError):
                path.unlink()
        finally:
            os.close(file)
    if _is_read(root):
        found[""] = "a process that may not write the cache"
    return found


def _files_of_users(root: Path) -> list[Path]:
    """Raises OSError where they cannot be listed: `glob` would say that there are none."""
    try:
        names = os.listdir(root / USES)
    except FileNotFoundError:
        return []
    return sorted(root / USES / name for name in names if name.endswith(_SUFFIX))


def _is_read(root: Path) -> bool:
    """Whether somebody uses the cache who could not say what of it."""
    try:
        file, may_write = _opened(root / USES / _READERS)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # nobody can tell
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # else there are no locks, and nothing is pruned; or NFS wants a file that may be written
        return isinstance(error, BlockingIOError) or not may_write
    else:
        return False
    finally:
        os.close(file)


def _opened(readers: Path) -> tuple[int, bool]:
    """The file, and whether it may be written, which NFS wants for a lock; another user's perhaps may not."""
    with suppress(PermissionError):
        return os.open(readers, os.O_RDWR | os.O_NOFOLLOW), True
    return os.open(readers, os.O_RDONLY | os.O_NOFOLLOW), False


@contextmanager
def nobody_begins(root: Path) -> Iterator[None]:
    """For the duration nobody begins to use anything of this cache. Raises OSError where there are no locks."""
    with _locked(root, fcntl.LOCK_EX):
        for unborn in (root / USES).glob(f"*{_NEW}"):
            unborn.unlink(missing_ok=True)  # of a process that was killed between two lines
        yield


@contextmanager
def _locked(root: Path, how: int) -> Iterator[None]:
    directory, lock = root / USES, root / USES / _LOCK
    if not lock.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _make(lock, root)
    if not (directory / _READERS).exists():
        with suppress(PermissionError):  # who may write the cache makes it
            _make(directory / _READERS, root)
    # on NFS, to keep others out takes a file that may be written
    file = os.open(lock, (os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR) | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


def _make(lock: Path, root: Path) -> None:
    """A file for everybody who may use the cache."""
    lock.touch()
    mode = root.stat().st_mode & 0o7777  # who may write the cache may note that they use it
    for path, permitted in ((lock.parent, mode), (lock, mode & 0o666)):
        with suppress(OSError):  # another user's, who was faster
            path.chmod(permitted)


def _note(lease: _Lease, name: str) -> None:
    """Add a line. On a full volume, which is when somebody prunes, the file's name says instead that all is used."""
    try:
        os.write(lease.file, f"{name}\n".encode())
    except OSError:
        everything = lease.path.with_suffix(_EVERYTHING)
        lease.path.rename(everything)
        lease.path = everything
    lease.noted.add(name)


def _begin(root: Path) -> _Lease:
    """This process's file; where none can be made, a lock by which all is used."""
    try:
        return _begin_own(root)
    except OSError:
        path = root / USES / _READERS
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError:
            os.close(file)
            raise
        return _Lease(path, file, is_of_all=True)


def _begin_own(root: Path) -> _Lease:
    """It gets its name when it is locked: unlocked it would be one of the dead's."""
    host = socket.gethostname()
    path = root / USES / f"{host}-{os.getpid()}-{uuid.uuid4().hex}{_SUFFIX}"
    unseen = path.with_suffix(_NEW)
    file = os.open(unseen, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unseen.rename(path)
    except OSError:
        os.close(file)
        raise
    return _Lease(path, file)
