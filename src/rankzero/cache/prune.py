"""Entries of the cache that go, by age and by room; never what somebody uses, and never through a link."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankzero.cache.contents import TRASH, Entry, entries
from rankzero.cache.kinds import KINDS
from rankzero.cache.uses import nobody_begins
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import place_given_by, storage_errors

_log = logging.getLogger("rankzero.cache")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What has gone, or would go."""

    gone: tuple[Entry, ...] = ()
    in_use: tuple[Entry, ...] = ()
    """Would have gone, but for who uses them."""
    stays: tuple[tuple[Entry, str], ...] = ()
    """Would have gone, but for something else, in words."""
    linked: tuple[str, ...] = ()
    """Kinds whose directory is a link: what it leads to is not counted, and stays."""

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
            return _chosen(root, older_than, keep, kinds)
        stuck = _empty_trash(root)
        try:
            with nobody_begins(root):
                return _moved(root, _chosen(root, older_than, keep, kinds))
        finally:
            _empty_trash(root, stuck)


def _moved(root: Path, chosen: Pruned) -> Pruned:
    """What has gone to the trash of what was chosen."""
    gone, stays, refused = [], list(chosen.stays), set()
    for entry in chosen.gone:
        after = KINDS[entry.kind].after
        if after in refused:
            stays.append((entry, _named_by(after)))
            continue
        try:
            _move(root, entry)
        except OSError as error:
            refused.add(entry.kind)
            stays.append(
                (entry, "another user's" if isinstance(error, PermissionError) else error.strerror or str(error))
            )
        else:
            gone.append(entry)
    return replace(chosen, gone=tuple(gone), stays=tuple(stays))


def _named_by(kind: str | None) -> str:
    return f"what stays of {kind} names files of it"


def _move(root: Path, entry: Entry) -> None:
    """Into the cache's trash; where no rename leads there, as from a volume of its own, into that of the entry's kind.
    Raises OSError."""
    if not all(map(_may_empty, entry.paths)):
        raise PermissionError
    own = root / entry.kind
    try:
        _rename(entry.paths, root / TRASH)
    except OSError:
        of_kind = own in entry.paths
        paths = [path for path in own.iterdir() if path.name != TRASH] if of_kind else entry.paths
        _rename(paths, own / TRASH)


def _may_empty(path: Path) -> bool:
    """Whether this user may remove all that is in a directory: one that is renamed and cannot be removed is lost."""
    if path.is_symlink() or not path.is_dir():
        return True
    below = (os.path.join(place, name) for place, folders, _ in os.walk(path) for name in folders)
    own = (place for place in (str(path), *below) if not os.path.islink(place))
    return all(os.access(place, os.R_OK | os.W_OK | os.X_OK) for place in own)


def _rename(paths: Iterable[Path], trash: Path) -> None:
    if not trash.is_symlink() and not trash.is_dir():
        trash.mkdir()
        with suppress(OSError):  # another user was faster
            trash.chmod(trash.parent.stat().st_mode & 0o7777)  # who may write the cache may prune it
    if trash.is_symlink():
        raise NotADirectoryError(f"{trash} is a link")
    for path in paths:
        if os.path.lexists(path):  # else it was moved before another one failed
            path.rename(trash / uuid.uuid4().hex)


def _empty_trash(root: Path, stuck: Collection[Path] = ()) -> list[Path]:
    """Remove what this call, or one that was killed, has moved there, but what was `stuck` before. It is listed while
    nobody moves anything. What cannot be removed, as a mount point, is said, and returned."""
    with nobody_begins(root):
        places = [root / TRASH, *(root / kind / TRASH for kind in KINDS if not (root / kind).is_symlink())]
        left = [path for trash in places for path in _listed(trash)]
    stays = []
    for path in left:
        try:
            if path not in stuck:
                _remove(path)
        except PermissionError:
            pass  # another user's, who removes it
        except OSError as error:
            _log.warning("%s stays: %s", path, error.strerror or error)
            stays.append(path)
    return stays


def _listed(trash: Path) -> list[Path]:
    """Nothing of one that another user keeps to themself."""
    if trash.is_symlink() or not trash.is_dir():
        return []
    with suppress(PermissionError):
        return list(trash.iterdir())
    return []


def _remove(path: Path) -> None:
    while os.path.lexists(path):
        with suppress(FileNotFoundError):  # another call removes it at the same time
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _chosen(root: Path, older_than: float | None, keep: int | None, kinds: Collection[str] | None) -> Pruned:
    """The oldest first; one whose files a kind's entries name after the last of these."""
    try:
        found = entries(root)
    except OSError as error:
        what = f"who uses what cannot be told: {error.strerror or error}"
        raise StorageError(what, where=str(error.filename or root), hint="nothing was removed") from error
    linked = [kind for kind in KINDS if (root / kind).is_symlink()]
    there, newest = Counter(linked), dict.fromkeys(KINDS, 0.0)
    for entry in found:
        there[entry.kind] += 1
        newest[entry.kind] = max(newest[entry.kind], entry.last_use)

    def turn(entry: Entry) -> tuple[float, bool]:
        after = KINDS[entry.kind].after
        return max(entry.last_use, newest[after] if after else 0.0), after is not None

    open_ = [one for one in found if KINDS[one.kind].prunable and (kinds is None or one.kind in kinds)]
    left, before = sum(entry.bytes for entry in open_), time.time() - (older_than or 0.0)
    gone, in_use, stays = [], [], []
    for entry in sorted(open_, key=turn):
        is_old, after = older_than is not None and entry.last_use <= before, KINDS[entry.kind].after
        if not is_old and (keep is None or left <= keep):
            continue
        if entry.used_by:
            in_use.append(entry)
        elif after and there[after]:
            stays.append((entry, _named_by(after)))
        else:
            gone.append(entry)
            there[entry.kind] -= 1
            left -= entry.bytes
    linked = [kind for kind in linked if kinds is None or kind in kinds]
    return Pruned(tuple(gone), tuple(in_use), tuple(stays), tuple(linked))
