"""Remote files in a cache: whole or not at all, one download at a time, gone on with after a break.

Knows rankzero's cache and the network's interface; nothing of the Hub's cache, nor of what is in the files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from rankzero.cache.uses import use
from rankzero.data.progress import Progress, show_progress
from rankzero.data.read.network import Network, RemoteFile
from rankzero.errors import ServiceError, StorageError
from rankzero.machine import cache_root
from rankzero.run_dir.atomic import fsync_path, place_given_by, storage_errors, write_json, write_text

TRIES = 4
"""In a row without a byte."""

_logger = logging.getLogger("rankzero.data")


ORIGIN = "url"
"""Beside a download: where it came from."""


def origin(path: str) -> str:
    """What people know a file by: where it was fetched from, where it lies in a cache; else its path."""
    if hub := _IN_HUB_CACHE.search(path):
        kind = "" if hub["kind"] == "models" else f"{hub['kind']}/"
        return f"hf://{kind}{hub['name'].replace('--', '/')}@{hub['revision'][:12]}/{hub['file']}"
    folder = os.path.dirname(path)
    if os.path.dirname(folder) == str(_downloads()):
        with suppress(OSError, UnicodeDecodeError):
            return (Path(folder) / ORIGIN).read_text(encoding="utf-8").strip() or path
    return path


_IN_HUB_CACHE = re.compile(
    r"/(?P<kind>datasets|models|spaces)--(?P<name>[^/]+)/snapshots/(?P<revision>[^/]+)/(?P<file>.+)"
)


def download(file: RemoteFile, network: Network) -> str:
    """The file's path in the cache. One that is there already and whose version is known is not read again. Files of
    the Hub lie in the Hub's own."""
    if file.hub is not None:
        return network.from_hub(file.hub)
    with place_given_by("the variable RANKZERO_CACHE"), storage_errors(cache_root()):
        folder = _downloads() / hashlib.sha256(f"{file.url}\n{file.version}".encode()).hexdigest()[:32]
        use(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / (re.sub(r"[^\w.-]", "_", file.name.rpartition("/")[2]) or "data")
        with FileLock(folder / "lock"):
            if not (file.version and target.exists()):
                _fetch(file, target, network)
                write_text(folder / ORIGIN, file.url)
    return str(target)


def _fetch(file: RemoteFile, target: Path, network: Network) -> None:
    partial = target.with_name(target.name + ".partial")
    if not file.version:
        partial.unlink(missing_ok=True)  # it may be of another content
    with show_progress(f"download {file.name}", file.size or 0) as advance:
        _complete(file, partial, network, advance)
    _verify(file, partial)
    fsync_path(partial)
    os.replace(partial, target)
    fsync_path(target.parent)


def _complete(file: RemoteFile, partial: Path, network: Network, advance: Progress) -> None:
    """Read on until all of it is there. Raises ServiceError where that fails TRIES times in a row without a byte."""
    if file.size is None:  # what an earlier start left may be all of it, behind which no place has anything
        partial.unlink(missing_ok=True)
    failures = told = 0
    while True:
        have = partial.stat().st_size if partial.exists() else 0
        advance(have - told)
        if file.size is not None and have >= file.size and partial.exists():
            return
        try:
            with partial.open("ab") as out:
                for block in network.read(file, have):
                    out.write(block)
                    advance(len(block))
            return
        except ServiceError as error:
            told = partial.stat().st_size
            failures = failures + 1 if told == have else 0
            if failures == TRIES:
                raise
            _logger.warning("%s: %s; trying again", file.url, error.problems[0].what)
            network.pause(2.0**failures)


def _verify(file: RemoteFile, partial: Path) -> None:
    size = partial.stat().st_size
    if file.size is not None and size != file.size:
        partial.unlink()
        what = f"the download failed: {size} bytes came, {file.size} were announced"
        raise ServiceError(what, where=file.url, hint="give the same command again")


def remember(text: str, files: Sequence[str]) -> None:
    """Note what a data path of the spec was resolved to, for use without the network."""
    with suppress(StorageError):  # a convenience only
        record = _record(text)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, {"path": text, "files": list(files)})


def remembered(text: str) -> tuple[str, ...] | None:
    """What an earlier run resolved the path to, if all of it is still there."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        saved = json.loads(_record(text).read_text(encoding="utf-8"))
        files = tuple(str(name) for name in saved["files"])
        for name in files:
            use(Path(name).parent)
        if saved["path"] == text and files and all(Path(name).is_file() for name in files):
            return files
    return None


def _record(text: str) -> Path:
    return _downloads() / "resolved" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _downloads() -> Path:
    return cache_root() / "downloads"
