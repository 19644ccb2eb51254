"""Files that flags name: a command replaces what such a command has written there, and nothing else. Writes
nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.html import GENERATOR

_HEAD = 4096
_NO_GENERATOR = b"default-src 'none'; style-src 'unsafe-inline'"
"""What tells the pages of checks that an older version wrote."""


def require_page(path: Path, flag: str) -> None:
    """Raise ConfigError where something stands that is no page of rankzero's, StorageError where it cannot be read."""
    _require(path, flag, "no page of rankzero's", lambda text: GENERATOR.encode() in text or _NO_GENERATOR in text)


def require_object(path: Path, flag: str, what: str, keys: Collection[str]) -> None:
    """Raise ConfigError where something stands that is no JSON object with these keys: no such `what`. Raises
    StorageError where it cannot be read."""
    _require(path, flag, f"no {what} of rankzero's", partial(_has, keys), whole=True)


def require_rows(path: Path, flag: str, what: str, keys: Collection[str]) -> None:
    """As `require_object`, of the first line."""
    _require(path, flag, f"no {what} of rankzero's", lambda text: _has(keys, text.split(b"\n", 1)[0]), whole=True)


def require_quarantine(path: Path, flag: str) -> None:
    """Raise ConfigError where something stands that is no quarantine: rows, and beside them what is wrong with each.
    Raises StorageError where that cannot be read."""
    from rankzero.data.inspect.quarantine import reasons_path

    reasons = reasons_path(path)
    require_rows(reasons, flag, "file of reasons", ("row", "file", "line", "problems"))
    what = f"no quarantine of rankzero's: {reasons.name} says nothing of it"
    _require(path, flag, what, lambda _: reasons.is_file() and reasons.stat().st_size > 0)


def _require(path: Path, flag: str, what: str, is_ours: Callable[[bytes], bool], *, whole: bool = False) -> None:
    from rankzero.run_dir.atomic import storage_errors, takes_as_it_comes

    if not path.is_file() or takes_as_it_comes(path):
        return
    with storage_errors(path), path.open("rb") as file:
        text = file.read(-1 if whole else _HEAD)
    if text and not is_ours(text):
        raise ConfigError(f"there is a file that is {what}", where=str(path), hint=f"name another place with {flag}")


def _has(keys: Collection[str], text: bytes) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(key in found for key in keys)
