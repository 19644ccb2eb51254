"""A directory that holds what an object store has: filled from it, and brought up to date at the next start.

A file of the same size may be another one, so beside the files lies what the store said of each when it was fetched.
Several nodes may do this to one volume at a time, and be killed at any point.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankzero.errors import StoppedError, StorageError
from rankzero.object_version import object_version
from rankzero.persist.objects import facts_in, fetch, inside, open_store, store_errors
from rankzero.run_dir.atomic import write_json

NOTES = ".rankzero-fetched"
"""In the directory: a note for each file that a node has put there, of that very file. Whichever stays of those that
several nodes put there at a time has its note, and one without is fetched again."""


def download_tree(url: str, directory: Path, stopped: Callable[[], bool]) -> int:
    """Bring everything below a URL into a directory, and take out of it what came from there and is no longer there.
    What lies here as it was fetched, and is in the store as it was then, stays. Returns files fetched.

    Raises StoppedError between files where `stopped` became true, and StorageError where the store fails, or has
    nothing any more.
    """
    notes = directory / NOTES
    with store_errors(url):
        file_system, root = open_store(url)
        file_system.invalidate_cache()  # of listings: what is there now is asked for
        before = _notes_of(notes, url)  # read before the listing: what another node notes from now on is newer than it
        there = {inside(name, url): facts for name, facts in facts_in(file_system, root).items()}
        if before and not there:
            hint = f"see the URL, or delete {notes} to go on with the files that came from it"
            raise StorageError("nothing is there any more", where=url, hint=hint)
        fetched = 0
        for name, facts in there.items():
            if stopped():
                hint = "what was fetched is kept; the same command goes on from there"
                raise StoppedError("stopped while fetching files", where=url, hint=hint)
            local = directory / name
            said = {"url": url, "name": name, "size": int(facts["size"]), "version": object_version(facts)}
            if said["version"] and _read(_note(notes, name, _stat(local))) == said:
                continue
            note = _note(notes, name, fetch(file_system, posixpath.join(root, name), local))
            write_json(note, said)
            _forget(set(before.get(name, ())) - {note})
            fetched += 1
        for name in before.keys() - there.keys():
            local = directory / inside(name, url)
            if (
                _note(notes, name, _stat(local)) in before[name]
            ):  # else it was changed here since, and is somebody's own
                local.unlink(missing_ok=True)
            _forget(before[name])
        return fetched


def _notes_of(notes: Path, url: str) -> dict[str, list[Path]]:
    """The notes of what came from this URL, by the files' names."""
    found: dict[str, list[Path]] = {}
    for path in notes.iterdir() if notes.is_dir() else ():
        note = _read(path)
        if note.get("url") == url:
            found.setdefault(note["name"], []).append(path)
    return found


def _note(notes: Path, name: str, about: os.stat_result | None) -> Path:
    """The note of the file as it lies here. Without its inode: some network volumes number anew with each mount."""
    state = "" if about is None else f"-{about.st_size}-{about.st_mtime_ns}"
    return notes / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}{state}"


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _read(note: Path) -> dict[str, Any]:
    """{} where there is none that can be read: then nothing is known of the file."""
    with suppress(OSError, ValueError):
        value = json.loads(note.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def _forget(notes: Iterable[Path]) -> None:
    for note in notes:
        note.unlink(missing_ok=True)
