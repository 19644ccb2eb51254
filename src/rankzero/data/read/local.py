"""Data paths of this machine as files: one, those of a directory, or those that a pattern matches. Reads no file."""

from __future__ import annotations

import glob
import os

from rankzero.data.read.file_names import files_of_directory, is_data_file
from rankzero.errors import Problem
from rankzero.spec.nearby import near, shown

_SHOWN = 5
_POD = "KUBERNETES_SERVICE_HOST"
"""A variable that every pod has."""


def local_files(path: str) -> tuple[str, ...] | Problem:
    """The files that a path means, in an order that does not depend on the machine; or why there are none."""
    if os.path.isdir(path):
        return _of_directory(path)
    if os.path.exists(path):
        return (path,)
    if not glob.has_magic(path):
        return Problem("no such file", path, missing_hint(path))
    found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    if not found:
        return Problem("no file matches the pattern", path, f"{_relative_to(path)}** stands for any folders")
    return tuple(found)


def missing_hint(path: str) -> str:
    """What may have been meant by a path that does not exist."""
    close = near(path)
    if close:
        return f"did you mean {shown(close)}?"
    if _POD in os.environ:
        return "the path is looked up inside the pod: is the volume mounted there?"
    folder = os.path.abspath(os.path.dirname(path))
    if not os.path.isdir(folder):
        return f"there is no directory {folder}"
    beside = sorted(name for name in os.listdir(folder) if is_data_file(name))
    there = ", ".join(beside[:_SHOWN]) + (" …" if len(beside) > _SHOWN else "")
    return f"{folder} has {there or 'no data files'}"


def _relative_to(path: str) -> str:
    return "" if os.path.isabs(path) else f"it is relative to {os.getcwd()}; "


def _of_directory(path: str) -> tuple[str, ...] | Problem:
    try:
        names = _names_below(path)
    except OSError as error:
        where = str(error.filename or path)
        return Problem(f"cannot be read: {error.strerror}", where, f"try: ls -l {where}")
    files = files_of_directory(names, path)
    return files if isinstance(files, Problem) else tuple(os.path.join(path, name) for name in files)


def _names_below(folder: str) -> list[str]:
    """Files of a directory and of the folders in it, by their paths from there, but for hidden ones. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    names: list[str] = []
    seen = {os.path.realpath(folder)}
    for at, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        real = {name: os.path.realpath(os.path.join(at, name)) for name in folders if not name.startswith((".", "_"))}
        folders[:] = sorted(name for name in real if real[name] not in seen)  # a link may lead back up
        seen.update(real.values())
        paths = (os.path.join(at, name) for name in files)
        names += [os.path.relpath(path, folder) for path in paths if os.path.isfile(path)]
    return names
