"""The small local files that a run spec names by relative paths, read so that they can travel with the run."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from rankzero.directories import files_below
from rankzero.errors import DataError
from rankzero.launch.plan import MOST_SHIPPED_BYTES
from rankzero.spec.local_paths import is_pattern, local_part, path_fields
from rankzero.spec.run_spec import RunSpec


def local_files(run: RunSpec, base: Path | None = None) -> dict[str, bytes]:
    """Contents by relative path in its shortest form. What does not exist here is left out, and so is a Hub id.

    Relative paths are relative to `base`, which by default is the working directory. Reads little more than can be
    shipped: a file that is too large is represented by as many bytes as show that. Raises DataError where a file
    cannot be read.
    """
    base = base or Path.cwd()
    contents: dict[str, bytes] = {}
    for field in path_fields(run):
        part = local_part(field, base)
        if part is None or field.kind == "output" or os.path.isabs(part.path):
            continue
        names = glob.glob(part.path, root_dir=base, recursive=True) if is_pattern(part.path, base) else [part.path]
        for name in sorted(names):
            root = base / name
            for file in _files(root):
                contents[os.path.normpath(os.path.join(name, file.relative_to(root)))] = _read(file)
    return contents


def _files(root: Path) -> list[Path]:
    """As a run that reads the directory finds them: behind links too."""
    if not root.is_dir():
        return [root] if root.is_file() else []
    try:
        found = files_below(root, follow_links=True)
        return [path for path in found if path.is_file() or not path.name.startswith(".")]  # editors lock by such links
    except OSError as error:
        where = str(error.filename or root)
        raise DataError(f"cannot read it: {error.strerror}", where=where, hint=f"try: ls -l {where}") from error


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_SHIPPED_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read it: {error.strerror or error}", where=str(file)) from error
