"""Object stores by their URLs: opened, listed, fetched from. Whatever their libraries raise names the store."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, StoppedError, StorageError
from rankzero.run_dir.atomic import stage_name


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """What a store raises, as StorageError that names it. Libraries of stores raise OSError and kinds of their own."""
    try:
        yield
    except (StorageError, ConfigError, StoppedError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise StorageError(
            f"the object store failed: {words}", where=url, hint="see its credentials and reach"
        ) from error


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. Raises ConfigError where its library is not installed."""
    try:
        from fsspec.core import url_to_fs

        file_system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        hint = "install the library of this kind of store: s3fs (`pip install 'rankzero[s3]'`), gcsfs, adlfs"
        raise ConfigError(f"cannot open it: {error}", where=url, hint=hint) from error
    return file_system, str(path)


def files_in(file_system: Any, root: str) -> dict[str, int]:
    """The bytes of every file below a path, by its name there. Empty objects whose keys end in a slash, as consoles
    make for folders, are no files."""
    found = file_system.find(root, detail=True).items()
    return {posixpath.relpath(path, root): int(facts["size"]) for path, facts in found if not path.endswith("/")}


def download_tree(url: str, directory: Path, stopped: Callable[[], bool]) -> int:
    """Bring everything below a URL into a directory; what is there in the same size stays. Returns files fetched.

    Several nodes may do this to one volume at a time. Raises StoppedError between files where `stopped` became true.
    """
    with store_errors(url):
        file_system, root = open_store(url)
        fetched = 0
        for name, size in files_in(file_system, root).items():
            if stopped():
                hint = "what was fetched is kept; the same command goes on from there"
                raise StoppedError("stopped while fetching files", where=url, hint=hint)
            local = directory / inside(name, url)
            if not local.exists() or local.stat().st_size != size:
                fetch(file_system, posixpath.join(root, name), local)
                fetched += 1
        return fetched


def inside(name: str, where: str) -> str:
    """The name of a file, which does not lead out of its directory. Raises StorageError."""
    if name.startswith("/") or ".." in name.split("/"):
        raise StorageError(f"{name} would be written outside of the directory", where=where)
    return name


def fetch(file_system: Any, remote: str, local: Path) -> None:
    """One file, whole or not at all."""
    local.parent.mkdir(parents=True, exist_ok=True)
    staged = local.with_name(stage_name(local.name))
    try:
        file_system.get_file(remote, str(staged))
        staged.replace(local)
    finally:
        staged.unlink(missing_ok=True)
