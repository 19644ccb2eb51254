"""A run directory's copy in an object store: what is uploaded when, and what is brought back. One node does it.

A checkpoint is whole when its manifest is there, which is written last here as it is on disk. Links are pointer files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, StorageError
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX
from rankzero.run_dir.paths import RunDir

LINKS = ("best", "last")
_NOT_COPIED = ("lease.json", "stop")


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """What a store raises, as StorageError that names it. Libraries of stores raise OSError and kinds of their own."""
    try:
        yield
    except (StorageError, ConfigError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise StorageError(
            f"the object store failed: {words}", where=url, hint="see its credentials and reach"
        ) from error


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. Raises ConfigError where its library is not installed."""
    import fsspec

    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        hint = "install the library of this kind of store in the image: s3fs, gcsfs, adlfs"
        raise ConfigError(f"cannot open it: {error}", where=url, hint=hint) from error
    return file_system, str(path)


def download_tree(url: str, directory: Path) -> int:
    """Bring everything below a URL into a directory; what is there in the same size stays. Returns files fetched."""
    with store_errors(url):
        file_system, root = open_store(url)
        fetched = 0
        for remote, facts in file_system.find(root, detail=True).items():
            local = directory / _inside(posixpath.relpath(remote, root), url)
            if not local.exists() or local.stat().st_size != facts["size"]:
                _get(file_system, remote, local)
                fetched += 1
        return fetched


def _inside(name: str, url: str) -> str:
    if name.startswith(("..", "/")):
        raise StorageError(f"{name} would be written outside of the directory", where=url)
    return name


def _get(file_system: Any, remote: str, local: Path) -> None:
    local.parent.mkdir(parents=True, exist_ok=True)
    staged = local.with_name(f"{TEMPORARY_PREFIX}{local.name}")
    file_system.get_file(remote, str(staged))
    staged.replace(local)


class RunStore:
    """The copy of one run directory."""

    def __init__(self, run_dir: RunDir, url: str) -> None:
        self._run_dir, self.url = run_dir, url
        with store_errors(url):
            self._store, self._root = open_store(url)
        self._sent: dict[str, tuple[int, int]] = {}
        self._steps: set[int] | None = None

    def restore(self) -> int | None:
        """Bring the newest whole checkpoint and the run's other files back. Returns its step; None: there is none."""
        with store_errors(self.url):
            if not self._store.exists(self._root):
                return None
            names = [posixpath.relpath(path, self._root) for path in self._store.find(self._root)]
            steps = self._remote_steps()
            newest = max(steps, default=None)
            for name in names:
                in_checkpoint = name.startswith("checkpoints/")
                if in_checkpoint and (newest is None or not name.startswith(f"checkpoints/step-{newest}/")):
                    continue
                if name in LINKS or posixpath.basename(name) in _NOT_COPIED:
                    continue
                _get(self._store, posixpath.join(self._root, name), self._run_dir.root / _inside(name, self.url))
        if newest is not None:
            self._run_dir.set_link("last", newest)
        return newest

    def upload(self) -> None:
        """Copy what is new. Raises StorageError; what was copied stays, and the next call goes on."""
        with store_errors(self.url):
            here = self._run_dir.committed_steps()
            if self._steps is None:
                self._steps = self._remote_steps()
            for step in sorted(set(here) - self._steps):
                if self._upload_checkpoint(step):
                    self._steps.add(step)
            for path in sorted(self._run_dir.root.rglob("*")):
                name = path.relative_to(self._run_dir.root).as_posix()
                if path.is_file() and not path.is_symlink() and self._is_plain(name):
                    self._upload_file(path, name)
            for link in LINKS:
                self._upload_link(link)
            for step in sorted(self._steps - set(here)):  # pruned here, now that newer ones are there
                if here and step < max(here):
                    self._store.rm(posixpath.join(self._root, f"checkpoints/step-{step}"), recursive=True)
                    self._steps.discard(step)

    def _remote_steps(self) -> set[int]:
        paths = self._store.find(posixpath.join(self._root, "checkpoints")) if self._store.exists(self._root) else []
        whole = [posixpath.dirname(path) for path in paths if posixpath.basename(path) == MANIFEST]
        return {int(path.rpartition("step-")[2]) for path in whole if path.rpartition("step-")[2].isdigit()}

    def _upload_checkpoint(self, step: int) -> bool:
        """Files first, manifest last. False where it was pruned meanwhile."""
        directory = self._run_dir.checkpoint(step)
        files = [path for path in directory.rglob("*") if path.is_file()]
        remote = posixpath.join(self._root, "checkpoints", directory.name)
        try:
            for path in sorted(files, key=lambda path: path.name == MANIFEST):
                self._put(path, posixpath.join(remote, path.relative_to(directory).as_posix()))
        except FileNotFoundError:
            if directory.exists():
                raise
            if self._store.exists(remote):
                self._store.rm(remote, recursive=True)
            return False
        return True

    def _upload_file(self, path: Path, name: str) -> None:
        stat = path.stat()
        state = (stat.st_size, stat.st_mtime_ns)
        if self._sent.get(name) != state:
            self._put(path, posixpath.join(self._root, name))
            self._sent[name] = state

    def _upload_link(self, link: str) -> None:
        step = self._run_dir.read_link("best" if link == "best" else "last")
        if step is not None and self._sent.get(link) != (step, 0):
            self._store.makedirs(self._root, exist_ok=True)
            self._store.pipe_file(posixpath.join(self._root, link), f"checkpoints/step-{step}\n".encode())
            self._sent[link] = (step, 0)

    def _put(self, path: Path, remote: str) -> None:
        self._store.makedirs(posixpath.dirname(remote), exist_ok=True)
        self._store.put_file(str(path), remote)

    @staticmethod
    def _is_plain(name: str) -> bool:
        parts = name.split("/")
        hidden = any(part.startswith((TEMPORARY_PREFIX, ".lease")) for part in parts)
        return not hidden and parts[0] not in ("checkpoints", *LINKS) and parts[-1] not in _NOT_COPIED
