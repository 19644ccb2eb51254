"""What a store has at a path, told from what it could not tell: fsspec's own `exists` and `find` take any error for
nothing. Knows no meaning."""

from __future__ import annotations

import errno
import posixpath
from typing import Any


def is_there(file_system: Any, path: str) -> bool:
    """Whether a file or folder is there. Raises whatever the store raises where that cannot be looked at."""
    from fsspec import AbstractFileSystem

    if not _is_one_of(file_system, "exists", AbstractFileSystem.exists):
        return bool(file_system.exists(path))  # object stores': by one request, and only what is not there is not
    try:
        file_system.info(path)
    except OSError as error:
        if _is_gone(error):
            return False
        raise
    return True


def facts_below(file_system: Any, root: str) -> dict[str, dict[str, Any]]:
    """What a store says of every file below a path, by its path. Raises whatever the store raises where a folder cannot
    be listed; one that goes meanwhile has nothing."""
    if _lists_at_once(file_system):
        return dict(file_system.find(root, detail=True))  # object stores': all names by few requests
    found: dict[str, dict[str, Any]] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        for facts in _listed(file_system, folder):
            name = facts["name"].rstrip("/")
            if not _is_folder(facts):
                found[name] = facts
            elif name != folder.rstrip("/"):
                folders.append(name)
    return dict(sorted(found.items()))


def named_below(file_system: Any, root: str, name: str) -> tuple[list[str], list[str]]:
    """The paths `root/*/name` that are there, and what is to be said of folders that could not be looked into."""
    if _lists_at_once(file_system):
        return list(file_system.glob(posixpath.join(root, "*", name))), []
    found, unseen = [], []
    for folder in sorted(facts["name"].rstrip("/") for facts in _listed(file_system, root) if _is_folder(facts)):
        path = posixpath.join(folder, name)
        try:
            if is_there(file_system, path):
                found.append(path)
        except OSError as error:
            unseen.append(f"{posixpath.basename(folder)} could not be looked into: {error.strerror or error}")
    return found, unseen


def _is_folder(facts: dict[str, Any]) -> bool:
    return bool(facts["type"] == "directory")


def _lists_at_once(file_system: Any) -> bool:
    """Whether it has a listing of its own, of all below a path, as object stores do."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    by_folders = ("find", AbstractFileSystem.find), ("_find", AsyncFileSystem._find)
    return not any(_is_one_of(file_system, name, method) for name, method in by_folders)


def _listed(file_system: Any, folder: str) -> list[dict[str, Any]]:
    try:
        return list(file_system.ls(folder, detail=True))
    except OSError as error:
        if _is_gone(error):
            return []
        raise


def _is_gone(error: OSError) -> bool:
    """Also by its number: errors of some libraries are kinds of their own."""
    return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in (errno.ENOENT, errno.ENOTDIR)


def _is_one_of(file_system: Any, name: str, method: object) -> bool:
    """Whether a store's method is fsspec's own, that of all stores; a cache before a store has the store's."""
    return getattr(getattr(file_system, name, None), "__func__", None) is method
