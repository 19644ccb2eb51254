"""Entries of the cache that go, by age and by room; never what somebody uses, and never through a link."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rankzero.cache.contents import Entry, entries
from rankzero.cache.kinds import KINDS
from rankzero.cache.uses import nobody_begins
from rankzero.run_dir.atomic import place_given_by, storage_errors

_TRASH = ".trash"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What has gone, or would go."""

    gone: tuple[Entry, ...]
    in_use: tuple[Entry, ...]
    """Would have gone, but for who uses them."""

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

    What goes is renamed while nobody can begin to use it, and removed afterwards; what a killed call left is removed by
    the next. Raises StorageError where the cache cannot be written or its volume has no locks.
    """
    if not root.is_dir():
        return Pruned((), ())
    with place_given_by("the variable RANKZERO_CACHE"), storage_errors(root):
        if dry_run:
            return _chosen(entries(root), older_than, keep, kinds)
        trash = root / _TRASH
        with nobody_begins(root):
            chosen = _chosen(entries(root), older_than, keep, kinds)
            for entry in chosen.gone:
                for path in entry.paths:
                    place = trash / uuid.uuid4().hex
                    trash.mkdir(exist_ok=True)
                    path.rename(place)
        if trash.is_dir() and not trash.is_symlink():
            shutil.rmtree(trash)
        return chosen


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
