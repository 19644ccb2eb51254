"""What is in the cache: its entries with size, last use and who uses them. Follows no link, changes nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankzero.cache.kinds import KINDS
from rankzero.cache.uses import USES, used_in

TRASH = ".trash"
"""Of the cache, or of a kind on a volume of its own: where pruning moves what it removes."""
_BESIDES = re.compile(r"\.tmp-(?P<staged>.+)-[0-9a-f]{32}|(?P<plain>.+?)(?:\.commit)?(?:\.lock|\.partial)")
"""Names of what stands beside an entry while it is being made: its lock, its parts, its staged form."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the cache that goes as a whole. `paths` are the entry itself and what belongs to it."""

    kind: str
    name: str
    paths: tuple[Path, ...]
    bytes: int
    last_use: float
    """Seconds since the epoch, by the files' times: read, written, or noted as used."""
    used_by: str
    """`pid 12 on host`; empty where nobody uses it."""


def entries(root: Path) -> list[Entry]:
    """All of them, by kind and name. Raises OSError where the cache cannot be read."""
    uses = used_in(root)
    found = []
    for kind, about in KINDS.items():
        directory = root / kind
        if directory.is_symlink() or not directory.is_dir():
            continue  # a link is somebody's own, to a place that is not this cache
        groups = _groups(directory)
        if about.whole and groups:
            groups = {"": [directory]}
        for name, paths in sorted(groups.items()):
            files = [status for path in paths for status in _files(path)]
            size = sum(status.st_size for status in files)
            own = (path.lstat().st_mtime for path in paths if os.path.lexists(path))
            last = max((*own, *(max(status.st_mtime, status.st_atime) for status in files)), default=0.0)
            found.append(Entry(kind, name, tuple(paths), size, last, _user(kind, name, uses) or _holder(paths)))
    return found


def unknown(root: Path) -> list[str]:
    """Names in the cache that are of no kind: not ours, and never touched."""
    if not root.is_dir():
        return []
    known = {*KINDS, USES, TRASH}
    return sorted(path.name for path in root.iterdir() if path.name not in known or path.is_symlink())


def _groups(directory: Path) -> dict[str, list[Path]]:
    """What lies in a kind's directory, by the entry that it belongs to."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(path for path in directory.iterdir() if path.name != TRASH):
        besides = _BESIDES.fullmatch(path.name)
        name = path.name if besides is None else besides["staged"] or besides["plain"]
        groups.setdefault(name, []).append(path)
    return groups


def _files(path: Path) -> Iterator[os.stat_result]:
    """Of a file, or of all files below a directory; those that vanish meanwhile are not counted."""
    try:
        if path.is_symlink() or not path.is_dir():
            yield path.lstat()
            return
        with os.scandir(path) as found:
            below = list(found)
    except OSError:
        return
    for one in below:
        yield from _files(Path(one.path))


def _user(kind: str, name: str, uses: dict[str, str]) -> str:
    """Who uses the entry, a part of it, or all of its kind."""
    own = f"{kind}/{name}" if name else kind
    return next(
        (
            who
            for used, who in uses.items()
            if not used or f"{used}/".startswith(f"{own}/") or f"{own}/".startswith(f"{used}/")
        ),
        "",
    )


def _opened(lock: Path) -> tuple[int, int]:
    """The file, and the lock that tells whether somebody has it: another user's may only be read."""
    with suppress(PermissionError):
        return os.open(lock, os.O_RDWR | os.O_NOFOLLOW), fcntl.LOCK_EX
    return os.open(lock, os.O_RDONLY | os.O_NOFOLLOW), fcntl.LOCK_SH


def _holder(paths: Iterable[Path]) -> str:
    """Whether somebody holds a lock that belongs to the entry: they make it, or wait for who does."""
    for path in paths:
        for lock in (path, path / "lock"):
            if lock.name.endswith("lock") and _is_held(lock):
                return "a process that makes it"
    return ""


def _is_held(lock: Path) -> bool:
    """Or may be: one that cannot be opened tells nobody."""
    try:
        file, how = _opened(lock)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)  # no lock at all
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(file)
