"""Data paths of this machine as files: one, those of a directory, or those that a pattern matches. Reads no file."""

from __future__ import annotations

import glob
import json
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankzero.data.read.file_names import files_of_directory, is_data_file
from rankzero.directories import files_below, is_file, is_folder, status
from rankzero.errors import Problem
from rankzero.run_dir.unread import unread
from rankzero.spec.data_paths import is_hub_id
from rankzero.spec.nearby import dangling, near, shown

_SHOWN = 5
_POD = "KUBERNETES_SERVICE_HOST"
"""A variable that every pod has."""


def local_files(path: str) -> tuple[str, ...] | Problem:
    """The files that a path means, in an order that does not depend on the machine; or why there are none. Raises
    StorageError where they cannot be looked at now."""
    try:
        return _files(path)
    except OSError as error:
        return unread(error, path)


def may_be_here(path: str) -> bool:
    """Whether something is at a path, or may be: `local_files` says why that cannot be looked at. A directory that may
    not be entered says nothing of what may be a Hub id."""
    try:
        return status(path) is not None
    except PermissionError:
        return not is_hub_id(path) or os.path.lexists(path.partition("/")[0])
    except OSError:
        return True


def _files(path: str) -> tuple[str, ...] | Problem:
    if is_folder(path):
        return _of_directory(path)
    if status(path) is not None:
        return (path,)
    if not glob.has_magic(path):
        return Problem("no such file", path, missing_hint(path))
    matched = sorted(glob.glob(path, recursive=True))
    if lost := _not_looked_into(path) or _lead_nowhere(matched):
        return lost
    found = [name for name in matched if is_file(name)]
    if not found:
        return Problem("no file matches the pattern", path, _pattern_hint(path))
    return tuple(found)


def missing_hint(path: str) -> str:
    """What may have been meant by a path that does not exist."""
    if link := dangling(path):
        return link
    close = near(path)
    if close:
        return f"did you mean {shown(close)}?"
    if _POD in os.environ:
        return "the path is looked up inside the pod: is the volume mounted there?"
    folder = os.path.abspath(os.path.dirname(path))
    if not os.path.isdir(folder):
        return f"there is no directory {folder}"
    try:
        beside = sorted(name for name in os.listdir(folder) if is_data_file(name))
    except OSError as error:
        return f"what else is in {folder} cannot be listed: {error.strerror}"
    there = ", ".join(beside[:_SHOWN]) + (" …" if len(beside) > _SHOWN else "")
    return f"{folder} has {there or 'no data files'}"


def _not_looked_into(pattern: str) -> Problem | None:
    """A folder whose files a pattern stands for and that may not be read: `glob` passes over it in silence."""
    parts = pattern.split("/")
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    for number, part in enumerate(parts[first:], first):
        above = "/".join([*parts[:number], ""]) or "./"
        folders = {above} if number == first else set()  # of which `glob` would say nothing
        folders |= set(glob.glob(f"{above}**/" if part == "**" else above, recursive=True))
        for folder in sorted(folders):
            try:
                if glob.has_magic(part):
                    os.scandir(folder).close()
                else:
                    os.lstat(folder + part)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                found = unread(error, folder)
                return Problem(found.what, found.where, f"{found.hint}; or write a pattern that leaves it out")
    return None


def _pattern_hint(path: str) -> str:
    fixed = os.path.dirname(path[: re.search(r"[*?[]", path).start()])  # type: ignore[union-attr]
    if fixed and not os.path.isdir(fixed):
        return f"there is no directory {shown(fixed)}"
    return f"{'' if os.path.isabs(path) else f'it is relative to {os.getcwd()}; '}** stands for any folders"


def _of_directory(path: str) -> tuple[str, ...] | Problem:
    saved = _saved_to_disk(path)
    if saved is not None:
        return saved
    names = _names_below(path)
    if lost := _lead_nowhere([os.path.join(path, name) for name in names if _may_be_data(name)]):
        return lost
    files = files_of_directory(names, path)
    return files if isinstance(files, Problem) else tuple(os.path.join(path, name) for name in files)


def _may_be_data(name: str) -> bool:
    """Whether a link of this name may stand for rows, or for a folder of them. Editors lock files by hidden ones."""
    base = posixpath.basename(name)
    return is_data_file(name) or not (base.startswith((".", "_")) or posixpath.splitext(base)[1])


def _lead_nowhere(names: Sequence[str]) -> Problem | None:
    """Links among data whose targets are not there: what they stood for would not be trained on."""
    hints = {name: hint for name in names if (hint := dangling(name))}
    if not hints:
        return None
    first, hint = next(iter(hints.items()))
    what = "a link leads nowhere" if len(hints) == 1 else f"{len(hints)} links lead nowhere, this one first"
    return Problem(what, first, hint)


def _names_below(folder: str) -> list[str]:
    """Files of a directory and of the folders in it, and links, by their paths from there, but for those in hidden
    folders. Raises OSError."""

    def is_shown(name: str) -> bool:
        return not posixpath.basename(name).startswith((".", "_"))

    return [os.path.relpath(path, folder) for path in files_below(Path(folder), into=is_shown, follow_links=True)]


def _saved_to_disk(path: str) -> tuple[str, ...] | Problem | None:
    """The files of what `save_to_disk` of the library datasets wrote, in its order; None for any other directory."""
    splits = _json(os.path.join(path, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        if len(splits) == 1:
            return local_files(os.path.join(path, str(splits[0])))
        what = f"the directory holds several splits: {', '.join(map(str, splits))}"
        return Problem(what, path, f"name the one that is meant: {os.path.join(path, str(splits[0]))}")
    files = _json(os.path.join(path, "state.json")).get("_data_files")
    if not isinstance(files, list):
        return None
    names = [os.path.join(path, str(file.get("filename"))) for file in files if isinstance(file, dict)]
    missing = [name for name in names if not is_file(name)]
    if not names:
        return None
    if missing:
        what = f"{os.path.basename(missing[0])} is missing, which state.json lists"
        return Problem(what, path, "copy the whole directory again")
    return tuple(names)


def _json(path: str) -> dict[str, Any]:
    """A small JSON object; empty where there is none. Raises OSError where that cannot be looked at."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
