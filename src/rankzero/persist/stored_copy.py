"""What an object store has of one run directory: listed, read, and written, each file whole or not at all. Knows
neither what is sent when, nor whose it is.

Links are pointer files. A checkpoint, and the result, are whole when their manifest is there, which is written last.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankzero.errors import StorageError
from rankzero.persist.objects import fetch, files_in, inside, open_store, store_errors
from rankzero.run_dir.atomic import MANIFEST, parse_manifest, stage_name
from rankzero.run_dir.steps import ONLY_ENDS
from rankzero.store_listing import is_there

CHECKPOINTS = "checkpoints"


def checkpoint_name(step: int) -> str:
    """Of a checkpoint's directory, in that of the run."""
    return f"{CHECKPOINTS}/step-{step}"


def steps_in(names: Iterable[str]) -> set[int]:
    """Of the checkpoints of which there is a file among these names."""
    parts = (name.split("/") for name in names)
    found = (part[1].removeprefix("step-") for part in parts if len(part) > 2 and part[0] == CHECKPOINTS)
    return {int(step) for step in found if step.isdigit()}


def committed_in(names: Iterable[str]) -> set[int]:
    """Of the checkpoints whose manifest is among these names."""
    return steps_in(name for name in names if name.count("/") == 2 and name.endswith(f"/{MANIFEST}"))


def sizes_fit(manifest: Mapping[str, Any], directory: str, names: Mapping[str, int]) -> bool:
    """Whether all files of a directory's manifest are among these names, with as many bytes."""
    return all(names.get(f"{directory}/{name}") == entry["size"] for name, entry in manifest["files"].items())


class TakenError(StorageError):
    """Another process sends to this place since."""


class StoredCopy:
    """A place in an object store. Methods raise whatever its library raises: `store_errors` names the store."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError where the store's library is not installed."""
        self.url = url
        with store_errors(url):
            self._store, self._root = open_store(url)

    def names(self) -> dict[str, int]:
        """The bytes of each file, by its name in the run directory. {}: nothing is there."""
        self._store.invalidate_cache()  # of listings: another process may have written here
        found = files_in(self._store, self._root) if is_there(self._store, self._root) else {}
        return {inside(name, self.url): size for name, size in found.items()}

    def text(self, name: str) -> str | None:
        """A small file's; None: it is not there."""
        with suppress(FileNotFoundError):
            return str(self._store.cat_file(self._path(name)).decode(errors="replace"))
        return None

    def manifest(self, directory: str) -> dict[str, Any] | None:
        """Of a directory; None where there is none that can be read."""
        name = f"{directory}/{MANIFEST}"
        text = self.text(name)
        with suppress(StorageError):
            return None if text is None else parse_manifest(text, f"{self.url}/{name}")
        return None  # spoken of where the directory is verified

    def only_ends(self, step: int) -> bool:
        """Whether a checkpoint is of weights that are NaN, which say no more than that their run is over."""
        return bool((self.manifest(checkpoint_name(step)) or {}).get(ONLY_ENDS))

    def linked(self, link: str) -> int | None:
        """The step that a pointer file names; None where it names none."""
        step = (self.text(link) or "").strip().rpartition(checkpoint_name(0)[:-1])[2]
        return int(step) if step.isdigit() else None

    def fetch(self, name: str, local: Path) -> None:
        """One file, whole or not at all."""
        fetch(self._store, self._path(name), local)

    def put(self, path: Path, name: str) -> None:
        """One file, whole or not at all."""
        self._commit(name, lambda remote: self._store.put_file(str(path), remote))

    def write(self, name: str, text: str) -> None:
        """A small file, whole or not at all."""
        self._commit(name, lambda remote: self._store.pipe_file(remote, text.encode()))

    def _commit(self, name: str, put: Callable[[str], None]) -> None:
        """Stores put whole objects by themselves. A directory, which a URL may be too, is no store."""
        from fsspec.implementations.local import LocalFileSystem

        remote = self._path(name)
        self._store.makedirs(posixpath.dirname(remote), exist_ok=True)
        if not isinstance(self._store, LocalFileSystem):
            put(remote)
            return
        staged = posixpath.join(posixpath.dirname(remote), stage_name(posixpath.basename(remote)))
        try:
            put(staged)
            self._store.mv(staged, remote)
        except BaseException:
            with suppress(FileNotFoundError):
                self._store.rm_file(staged)
            raise

    def remove(self, name: str) -> None:
        """A file, or a directory with all that is in it, where it is there."""
        from fsspec.asyn import AsyncFileSystem

        with suppress(FileNotFoundError):
            if not isinstance(self._store, AsyncFileSystem):
                self._store.rm(self._path(name), recursive=True)
                return
            for path in self._store.find(self._path(name)):  # one by one: `rm` takes names there for patterns
                self._store.rm_file(path)

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)
