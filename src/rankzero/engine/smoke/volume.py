"""The volume that results go to: how fast it takes bytes, and whether every host sees what rank 0 writes."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankzero.directories import why_not_writable
from rankzero.engine.distributed import World, broadcast_object, gather_objects
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import storage_errors

MOST_BYTES = 2**26
MOST_SECONDS = 3.0
"""Whichever comes first: a slow volume says so after a few MiB."""
_BLOCK = 2**22


@dataclass(frozen=True, slots=True)
class Written:
    """What rank 0 wrote, known to every rank."""

    directory: str
    bytes: int
    seconds: float
    """With the fsync that makes it last."""
    not_seen_by: tuple[str, ...]
    """Hosts that do not see it."""


def try_volume(output_dir: Path, host: str, world: World) -> Written | StorageError:
    """Write a file beside where runs go, and look for it from every host. Nothing stays behind. A collective."""
    path = Path(broadcast_object(str(_nearest(output_dir) / f".rankzero-smoke-{secrets.token_hex(8)}")))
    try:
        written = broadcast_object(_write(path, output_dir) if world.is_main else None)
        if isinstance(written, StorageError):
            return written
        count, seconds = written
        seen = gather_objects((host, path.exists()))
    finally:
        if world.is_main:
            with suppress(OSError):  # that it cannot be written is said already
                path.unlink(missing_ok=True)
    not_seen = dict.fromkeys(name for name, there in seen if not there)
    return Written(str(path.parent), count, seconds, tuple(not_seen))


def _nearest(directory: Path) -> Path:
    """It, or the nearest directory above it that is there: a test makes none."""
    absolute = directory.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _write(path: Path, output_dir: Path) -> tuple[int, float] | StorageError:
    """Bytes and seconds, or why not, or why no run could: every rank has to hear of it."""
    if why := why_not_writable(output_dir.absolute()):
        return StorageError(f"it {why[1]}", where=str(why[0]), hint="results go to a directory: --output DIR")
    block = os.urandom(_BLOCK)  # some file systems keep zeros, or blocks that repeat, for nothing
    begun, count = time.perf_counter(), 0
    try:
        with storage_errors(path.parent), path.open("xb", buffering=0) as file:
            while count < MOST_BYTES and time.perf_counter() - begun < MOST_SECONDS:
                count += file.write(block)
                os.fsync(file.fileno())
    except StorageError as error:
        return error
    return count, time.perf_counter() - begun
