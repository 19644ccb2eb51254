"""Entries of the cache that go, by age and by room; never what somebody uses, and never through a link."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankzero.cache.contents import TRASH, Entry, entries
from rankzero.cache.kinds import KINDS
from rankzero.cache.uses import nobody_begins
from rankzero.run_dir.atomic import place_given_by, storage_errors


@dataclass(frozen=True, slots=True)
class Pruned:
    """What has gone, or would go."""

    gone: tuple[Entry, ...] = ()
    in_use: tuple[Entry, ...] = ()
    """Would have gone, but for who uses them."""
    stays: tuple[tuple[Entry, str], ...] = ()
    """Would have gone, but for something else, in words."""

    @property
    def bytes(self) -> int:
        """That are free now."""
        return sum(entry.bytes for entry in self.gone)


def prune(
    root: Path,
    *,
    older_than: float | None = None,
    keep: int | None = None,
    kinds: Collection[str] | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove what was last used more than `older_than` seconds ago, then what was used longest ago until `keep` bytes
    are left. Of `kinds` alone, where they are given; `keep` counts these.

    What goes is renamed while nobody can begin to use it, and removed afterwards; what a killed call left is removed
    first. What cannot be renamed, as another user's, stays. Raises StorageError where the cache cannot be written or
    its volume has no locks.
    """
    if not root.is_dir():
        return Pruned()
    with place_given_by("the variable RANKZERO_CACHE"), storage_errors(root):
        if dry_run:
            return _chosen(entries(root), older_than, keep, kinds)
        _empty_trash(root)
        try:
            with nobody_begins(root):
                return _moved(root, _chosen(entries(root), older_than, keep, kinds))
        finally:
            _empty_trash(root)


def _moved(root: Path, chosen: Pruned) -> Pruned:
    """What has gone to the trash of what was chosen."""
    call, gone, stays = uuid.uuid4().hex, [], list(chosen.stays)
    for entry in chosen.gone:
        try:
            _move(root, entry, call)
        except OSError as error:
            stays.append(
                (entry, "another user's" if isinstance(error, PermissionError) else error.strerror or str(error))
            )
        else:
            gone.append(entry)
    return Pruned(tuple(gone), chosen.in_use, tuple(stays))


def _move(root: Path, entry: Entry, call: str) -> None:
    """Into the cache's trash; where no rename leads there, as from a volume of its own, into that of the entry's kind.
    Raises OSError."""
    if not all(map(_may_empty, entry.paths)):
        raise PermissionError
    own = root / entry.kind
    try:
        _rename(entry.paths, root / TRASH / call)
    except OSError:
        of_kind = own in entry.paths
        paths = [path for path in own.iterdir() if path.name != TRASH] if of_kind else entry.paths
        _rename(paths, own / TRASH / call)


def _may_empty(path: Path) -> bool:
    """Whether this user may remove all that is in a directory: one that is renamed and cannot be removed is lost."""
    if path.is_symlink() or not path.is_dir():
        return True
    below = (os.path.join(place, name) for place, folders, _ in os.walk(path) for name in folders)
    own = (place for place in (str(path), *below) if not os.path.islink(place))
    return all(os.access(place, os.R_OK | os.W_OK | os.X_OK) for place in own)


def _rename(paths: Iterable[Path], place: Path) -> None:
    trash = place.parent
    if not trash.is_symlink() and not trash.is_dir():
        trash.mkdir()
        with suppress(OSError):  # another user was faster
            trash.chmod(trash.parent.stat().st_mode & 0o7777)  # who may write the cache may prune it
    if trash.is_symlink():
        raise NotADirectoryError(f"{trash} is a link")
    place.mkdir(exist_ok=True)
    for path in paths:
        if os.path.lexists(path):  # else it was moved before another one failed
            path.rename(place / uuid.uuid4().hex)


def _empty_trash(root: Path) -> None:
    """Remove what this call, or one that was killed, has moved there. It is listed while nobody moves anything."""
    with nobody_begins(root):
        places = [root / TRASH, *(root / kind / TRASH for kind in KINDS if not (root / kind).is_symlink())]
        left = [path for trash in places if trash.is_dir() and not trash.is_symlink() for path in trash.iterdir()]
    for path in left:
        with suppress(PermissionError):  # another user's, who removes it
            _remove(path)


def _remove(path: Path) -> None:
    while os.path.lexists(path):
        with suppress(FileNotFoundError):  # another call removes it at the same time
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _chosen(
    found: Iterable[Entry], older_than: float | None, keep: int | None, kinds: Collection[str] | None
) -> Pruned:
    """The oldest first."""
    open_ = [one for one in found if KINDS[one.kind].prunable and (kinds is None or one.kind in kinds)]
    open_.sort(key=lambda entry: entry.last_use)
    left, before = sum(entry.bytes for entry in open_), time.time() - (older_than or 0.0)
    wanted = []
    for entry in open_:
        if (older_than is not None and entry.last_use <= before) or (keep is not None and left > keep):
            wanted.append(entry)
            if not entry.used_by:
                left -= entry.bytes
    gone = [entry for entry in wanted if not entry.used_by]
    stays = {entry.kind for entry in found} - {kind for kind in KINDS if _is_all_gone(kind, found, gone)}
    gone = [entry for entry in gone if KINDS[entry.kind].after not in stays]
    return Pruned(tuple(gone), tuple(entry for entry in wanted if entry.used_by))


def _is_all_gone(kind: str, found: Iterable[Entry], gone: list[Entry]) -> bool:
    return all(entry in gone for entry in found if entry.kind == kind)
