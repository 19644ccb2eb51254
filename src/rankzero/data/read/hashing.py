"""Content hashes of data files, remembered for large ones. Knows nothing of what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from rankzero.data.read.containers.layout import named_kind
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import file_sha256, write_text

REMEMBERED_BYTES = 64 << 20
"""Smaller files are hashed faster than it takes to explain why they were not."""

_SETTLED_NS = 2_000_000_000
"""A file changed within this time may change again without its time stamp showing it."""


def file_state(path: str) -> list[int]:
    """Changes whenever the file's content does, but for writes within one tick of the file system's clock."""
    stat = os.stat(path)
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def content_hash(path: str, cache_dir: Path) -> str:
    """Tells apart what files hold: sha256 and, where the name decides how the bytes are read, the kind.

    A large file that has not been touched since is not read again.
    """
    kind = named_kind(path)
    return _sha256(path, cache_dir) + (f":{kind}" if kind else "")


def _sha256(path: str, cache_dir: Path) -> str:
    before = file_state(path)
    if before[2] < REMEMBERED_BYTES:
        return file_sha256(Path(path))
    whole_path = os.path.abspath(path)
    record = cache_dir / "digests" / f"{hashlib.sha256(whole_path.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        saved = json.loads(record.read_text(encoding="utf-8"))
        if saved["path"] == whole_path and saved["state"] == before:
            return str(saved["sha256"])
    digest = file_sha256(Path(path))
    if file_state(path) == before and time.time_ns() - max(before[3:]) > _SETTLED_NS:
        with suppress(StorageError):  # only a convenience; that the cache cannot be written is said where it matters
            write_text(record, json.dumps({"path": whole_path, "state": before, "sha256": digest}))
    return digest
