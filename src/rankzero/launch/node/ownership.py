"""Whether this pod's user may write where the run does. Looks at directories; writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rankzero.errors import AccessError, Problem


def must_be_writable(directories: Iterable[Path], *, hosts: bool = False) -> None:
    """Raise AccessError with every directory, or the nearest above it that exists, that belongs to others.

    On a cluster that is the rule for a host_path and for many network file systems: pods have `fsGroup`, and it has
    no effect there. What is on a read-only file system is another matter, which the first write tells.
    `hosts` have no volumes: whoever shares a directory there opens it to a group.
    """
    closed = dict.fromkeys(found for one in directories if (found := _nearest(one)) is not None and not _may(found))
    if closed:
        raise AccessError(_problem(path, hosts=hosts) for path in closed)


def _nearest(path: Path) -> Path | None:
    """The directory, or the nearest one above it that can be seen."""
    return next((one for one in (path, *path.parents) if one.is_dir()), None)


def _may(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK) or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _problem(path: Path, *, hosts: bool) -> Problem:
    facts, user = path.stat(), os.geteuid()
    mode = facts.st_mode & 0o7777
    what = f"user {user} may not write here: it belongs to user {facts.st_uid}, group {facts.st_gid} (mode {mode:o})"
    hint = (
        f"`chown {user} {path}` on the volume, as root (fsGroup has no effect on a host_path, nor on many network file"
        f" systems); or set user: {facts.st_uid} in cluster.yaml"
    )
    if hosts:
        hint = f"`chmod g+rwx {path}`, by who owns it, where its group has you; or other outputs in cluster.yaml"
    return Problem(what, str(path), hint)
