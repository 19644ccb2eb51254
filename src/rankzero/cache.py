"""Where rankzero keeps what it can make again. Standard library only; knows nothing of what is stored there."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$RANKZERO_CACHE, else $XDG_CACHE_HOME/rankzero, else ~/.cache/rankzero. Not created here."""
    if own := os.environ.get("RANKZERO_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "rankzero"
    return Path.home() / ".cache" / "rankzero"
