"""What people make of a run stays: what they put into its final/, or changed there, is kept where another result takes
its place, and nothing is written into a checkpoint, which goes once newer ones are there. Removes nothing."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankzero.errors import Problem, StorageError
from rankzero.run_dir.atomic import MANIFEST, file_sha256, read_manifest, storage_errors
from rankzero.run_dir.intact import is_weights
from rankzero.run_dir.paths import RunDir

_SHOWN = 5


def place_problems(output: Path) -> list[Problem]:
    """What keeps something from being written to a place, to stay there."""
    if os.path.lexists(output):
        return [Problem("there is something already", str(output), "name another place")]
    for place in Path(os.path.realpath(output)).parents:
        if RunDir(place.parent.parent).is_checkpoint(place) and (place / MANIFEST).is_file():
            what = f"it would be in the checkpoint {place}, and be deleted with it once the run has newer ones"
            return [Problem(what, str(output), "name another place")]
    return []


def keep_aside(final: Path, staged: Path) -> str:
    """Put what is in `final`, and no run wrote there, beside it, before `staged` takes its place. Says what is where;
    "" where nothing is. What the result needs stays whole until then. Hidden files are tools' own. Raises StorageError.
    """
    with storage_errors(final):
        names = sorted(_others(final, staged, _written(final), "")) if final.is_dir() else []
        if not names:
            return ""
        place = final.with_name(f"{final.name}-kept-{uuid.uuid4().hex[:8]}")
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            if (staged / name).is_file():
                shutil.copy2(final / name, place / name)
            else:
                os.rename(final / name, place / name)
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return f"what was changed in {final}, or put there, is now in {place}: {shown}"


def _written(final: Path) -> Mapping[str, Any]:
    """The files that a run wrote, by the manifest; none where that cannot be read."""
    try:
        files: Mapping[str, Any] = read_manifest(final)["files"]
    except StorageError:
        return {}
    return files


def _others(final: Path, staged: Path, written: Mapping[str, Any], inside: str) -> Iterator[str]:
    for path in (final / inside).iterdir():
        name = f"{inside}{path.name}"
        if name == MANIFEST or path.name.startswith("."):
            continue
        if (staged / name).is_dir() and path.is_dir() and not path.is_symlink():
            yield from _others(final, staged, written, f"{name}/")
        elif not _is_of_run(path, name, staged, written):
            yield name


def _is_of_run(path: Path, name: str, staged: Path, written: Mapping[str, Any]) -> bool:
    """Or stays as it is. Weights are the run's whatever has become of them: they are made anew."""
    if is_weights(name) and (name in written or (not written and (staged / name).exists())):
        return True
    if not path.is_file():
        return False
    if name in written and file_sha256(path) == written[name]["sha256"]:
        return True
    return (staged / name).is_file() and file_sha256(path) == file_sha256(staged / name)
