"""Where in the cache the plain directory of a GGUF file is, or will be. Converts nothing, so that it needs no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rankzero.machine import cache_root
from rankzero.run_dir.atomic import file_sha256


def place_of(file: Path) -> Path:
    """The directory for a file of this content. Raises OSError."""
    digest = hashlib.sha256(f"{file_sha256(file)}:1".encode()).hexdigest()[:16]
    return cache_root() / "models" / f"{file.stem}-{digest}"


def converted(file: Path) -> Path | None:
    """The directory that a GGUF file became before; None where it has not been converted here."""
    target = place_of(file) if file.is_file() else None
    return target if target is not None and (target / "config.json").is_file() else None
