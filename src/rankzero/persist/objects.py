"""Object stores by their URLs: opened, listed, fetched from. Whatever their libraries raise names the store."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, StoppedError, StorageError
from rankzero.run_dir.atomic import fsync_path, stage_name, storage_errors
from rankzero.store_listing import facts_below


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
    """The bytes of every file below a path, by its name there."""
    return {name: int(facts["size"]) for name, facts in facts_in(file_system, root).items()}


def facts_in(file_system: Any, root: str) -> dict[str, dict[str, Any]]:
    """What a store says of every file below a path, by its name there. Empty objects whose keys end in a slash, as
    consoles make for folders, are no files. Raises whatever the store raises where not all of it can be listed."""
    found = facts_below(file_system, root).items()
    return {posixpath.relpath(path, root): facts for path, facts in found if not path.endswith("/")}


def inside(name: str, where: str) -> str:
    """The name of a file, which does not lead out of its directory. Raises StorageError."""
    if name.startswith("/") or ".." in name.split("/"):
        raise StorageError(f"{name} would be written outside of the directory", where=where)
    return name


@contextmanager
def _full_disk(local: Path) -> Iterator[None]:
    """Of what a fetch fails by, what is no store's fault."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        with storage_errors(local):
            raise


def fetch(file_system: Any, remote: str, local: Path) -> os.stat_result:
    """One file, whole or not at all. Returns what the file that was put here is, should another take its place at
    once."""
    local.parent.mkdir(parents=True, exist_ok=True)
    staged = local.with_name(stage_name(local.name))
    try:
        with _full_disk(local):
            file_system.get_file(remote, str(staged))
            fsync_path(staged)
        about = staged.stat()
        staged.replace(local)
    finally:
        staged.unlink(missing_ok=True)
    return about
