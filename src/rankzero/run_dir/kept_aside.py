"""What people make of a run stays: what they put into its final/, or changed there, is kept where another result takes
its place, and nothing is written into a checkpoint, which goes once newer ones are there. Moves nothing itself."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankzero.directories import there
from rankzero.errors import Problem, StorageError
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX, faults, file_sha256, read_manifest, storage_errors
from rankzero.run_dir.known import is_run
from rankzero.run_dir.paths import RunDir

KEPT = "final-kept-"
"""How a directory's name begins that was final/ and has what people made in it."""
_SHOWN = 5


def place_problems(output: Path) -> list[Problem]:
    """What keeps something from being written to a place, to stay there."""
    if os.path.lexists(output):
        return [Problem("there is something already", str(output), "name another place")]
    for place in Path(os.path.realpath(output)).parents:
        run = RunDir(place.parent.parent)
        if run.is_checkpoint(place) and (place / MANIFEST).is_file() and is_run(run.root):
            what = f"it would be in the checkpoint {place}, and be deleted with it once the run has newer ones"
            return [Problem(what, str(output), "name another place")]
    return []


def keep_aside(final: Path, staged: Path, better: str = "") -> tuple[Path | None, str]:
    """Where `final` is to be moved, whole, as `staged` takes its place: there is something in it that no run wrote, or
    nobody can tell, or it is `better`, which says how. None: nobody will miss it. And what there is to say of it,
    before it is done; "": nothing."""
    if final.is_symlink():  # the link alone is replaced
        return None, f"{final} was a link; what it led to stays as it is: {os.path.realpath(final)}"
    with storage_errors(final):
        if not there(final):
            return None, ""
    place = final.with_name(f"{KEPT}{uuid.uuid4().hex[:8]}")
    try:
        names = sorted(_others(final, staged))
    except OSError as error:
        return place, f"{place} keeps what {final} was, which cannot be looked through: {error}"
    if not names and better:
        return place, f"{place} keeps what {final} was, which is better: {better}"
    if not names:
        return None, ""
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return place, f"{place} keeps what {final} was, where people have put or changed this: {shown}"


def _others(final: Path, staged: Path) -> Iterator[str]:
    """What no run wrote: by the manifest, all of it where that cannot be read. Raises OSError."""
    try:
        manifest: Mapping[str, Any] = read_manifest(final)
    except StorageError:
        manifest = {"files": {}}
    changed = faults(final, manifest)
    for name in _below(final):
        is_own = name in manifest["files"] and name not in changed
        if not is_own and not _are_alike(final / name, staged / name):
            yield name


def _below(final: Path) -> Iterator[str]:
    """Files, and links of any kind; none that a program leaves by the way."""

    def fail(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(final, onerror=fail):
        folders[:] = [name for name in folders if not _is_left(name)]
        links = (name for name in folders if os.path.islink(os.path.join(place, name)))
        for name in (*files, *links):
            inside = (Path(place) / name).relative_to(final).as_posix()
            if not _is_left(name) and inside != MANIFEST:
                yield inside


def _is_left(name: str) -> bool:
    return name == "__pycache__" or name.startswith(TEMPORARY_PREFIX)


def _are_alike(path: Path, comes: Path) -> bool:
    return path.is_file() and comes.is_file() and file_sha256(path) == file_sha256(comes)
