"""Where a run writes: shared memory, temporary files, results, caches. Writes nothing but an empty temporary file.

Paths are asked for by os.path, to which one that may not be looked at is none: pathlib raises then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankzero.cache.contents import entries
from rankzero.directories import why_not_writable
from rankzero.doctor.finding import Finding, look, ok, wrong
from rankzero.errors import ConfigError, ExitCode
from rankzero.hub_variables import hub_cache
from rankzero.machine import cache_root

SHM = Path("/dev/shm")
LEAST_SHM = 2**30
"""NCCL's buffers between GPUs of a machine take some hundred MiB; docker's default is 64 MiB."""
LEAST_FREE = 5 * 10**9
"""A model of 0.5 billion weights with its optimizer is 5 GB."""
_LONGEST_WALK = 2.0
"""Seconds for the size of somebody else's cache."""


def shared_memory(*, several_gpus: bool) -> Iterator[Finding]:
    """Of /dev/shm, where there is one."""
    if not os.path.isdir(SHM):
        return
    size = os.statvfs(SHM).f_frsize * os.statvfs(SHM).f_blocks
    free = os.statvfs(SHM).f_frsize * os.statvfs(SHM).f_bavail
    words = f"{free / 1e9:.2g} of {size / 1e9:.2g} GB free"
    if size >= LEAST_SHM or not several_gpus:
        yield ok("/dev/shm", words)
    else:
        fix = "docker run --shm-size=8g; in pods resources.shm"
        yield look("/dev/shm", f"{words}: little for several GPUs", fix)


def disks(output: Path) -> Iterator[Finding]:
    """Of results and of temporary files."""
    yield _room("results", output, "--output DIR, or output_dir in run.yaml, on a volume that has room")
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        place = f"{tempfile.tempdir}: " if tempfile.tempdir else ""  # None: no directory could be written
        what = f"{place}{error.strerror or error}"
        yield wrong("temporary files", what, "set TMPDIR to a directory that can be written", ExitCode.STORAGE)


def _room(name: str, directory: Path, fix: str) -> Finding:
    """Whether something can be written there, and how much."""
    why = why_not_writable(directory.absolute())
    if why is not None:
        return wrong(name, f"{why[0]} {why[1]}", fix, ExitCode.STORAGE)
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.isdir(path))
    free = shutil.disk_usage(there).free
    words = f"{free / 1e9:.1f} GB free on the volume of {there}"
    if free == 0:
        return wrong(name, words, fix, ExitCode.STORAGE)
    return ok(name, words) if free >= LEAST_FREE else look(name, words, fix)


def caches(env: Mapping[str, str]) -> Iterator[Finding]:
    """rankzero's own and the Hub's."""
    try:
        yield _own(cache_root(), "set RANKZERO_CACHE to a directory on a volume that has room")
    except ConfigError as error:
        yield wrong("cache", error.problems[0].what, error.problems[0].hint, error.exit_code)
    yield _hubs(hub_cache(env), "set HF_HOME to a directory on a volume that has room")


def _hubs(hub: Path, fix: str) -> Finding:
    """Where nothing can be added to it, what is there, or elsewhere on this machine, can be trained."""
    room = _room("Hub's cache", hub, fix)
    words = room.what
    if os.path.isdir(hub):
        size, whole = _size(hub)
        left = words.partition(" on the volume")[0].removeprefix(f"{hub} ")
        words = f"{hub}, {'' if whole else 'more than '}{size / 1e9:.1f} GB; {left}; `hf cache` manages it"
    return ok("Hub's cache", words) if room.state == "ok" else look("Hub's cache", words, fix)


def _own(root: Path, fix: str) -> Finding:
    found = _room("cache", root, fix)
    return _kept(root, found, fix) if found.state == "ok" and os.path.isdir(root) else found


def _kept(root: Path, room: Finding, fix: str) -> Finding:
    """What rankzero's own cache has, beside the room for more."""
    try:
        kept = entries(root)
    except OSError as error:
        return wrong("cache", f"{error.filename or root}: {error.strerror or error}", fix, ExitCode.STORAGE)
    size = sum(entry.bytes for entry in kept) / 1e9
    words = f"{root}, {size:.1f} GB; {room.what.partition(' on the volume')[0]}"
    return ok("cache", f"{words}; `rankzero cache list`" if kept else words)


def _size(directory: Path) -> tuple[int, bool]:
    """Bytes below a directory, without following links, and whether there was time for all of it."""
    until, total = time.monotonic() + _LONGEST_WALK, 0
    for path, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue
        if time.monotonic() > until:
            return total, False
    return total, True
