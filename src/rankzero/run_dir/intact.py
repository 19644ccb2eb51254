"""Whether the files of a result, or of a checkpoint's weights, are as they were saved. Knows no spec and no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankzero.directories import there
from rankzero.errors import Problem, StorageError
from rankzero.run_dir.atomic import MANIFEST, NewerFormatError, NotReadError, faults, not_read_errors, read_manifest
from rankzero.run_dir.paths import RunDir

WEIGHTS = "model"
"""Of a checkpoint: the directory with its weights."""
_AGAIN = "give the run's `rankzero train` command again"
_MADE_ANEW = f"{_AGAIN}: it writes a damaged result anew from its checkpoint"
_TRAINED_ANEW = f"take it from a copy, as of `rankzero pull`; or {_AGAIN}: it has no checkpoint, and begins again"


def is_weights(name: str) -> bool:
    """Whether a file of a result holds weights, by its name. Others are edited by people."""
    return name.endswith(".safetensors")


def weights_of(result: Path) -> dict[str, Any]:
    """What the manifest of a result says of its weights; {} where there is none, or a damaged one. Raises NotReadError
    where one is there that cannot be read now."""
    try:
        files = read_manifest(result)["files"]
    except NotReadError:
        raise
    except StorageError:
        return {}
    return {name: entry for name, entry in files.items() if is_weights(name)}


def require_whole(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Raise StorageError where a file of a result is missing, or weights have not as many bytes as they had. Reads
    none."""
    for name, fault in faults(directory, manifest, hashes=False).items():
        if is_weights(name) or not (directory / name).is_file():
            raise _with_hint(fault, _way_out(directory))


def verify_result(directory: Path) -> tuple[str, ...]:
    """Check the files of a result, or of the checkpoint that `directory` lies in, against the manifest that they were
    committed with. Returns the names of those that were changed since and hold no weights: people edit templates.

    Without a manifest, as where someone has copied the weights alone, there is nothing to check against. Raises
    StorageError where weights are not what was saved, a file is missing or the manifest is damaged; NotReadError where
    nobody can tell now.
    """
    root = directory.parent if directory.name == WEIGHTS else directory
    with not_read_errors(root):
        if not there(root / MANIFEST):
            return ()
    try:
        manifest = read_manifest(root)
    except NotReadError:
        raise
    except StorageError as error:
        raise _with_hint(error, f"delete {MANIFEST} to use the files as they are, unchecked") from error
    inside = "" if root == directory else f"{WEIGHTS}/"
    files = {name: entry for name, entry in manifest["files"].items() if name.startswith(inside)}
    found = faults(root, {"files": files})
    for name, fault in found.items():
        if isinstance(fault, NotReadError):
            raise fault
        if is_weights(name) or not (root / name).is_file():
            raise _with_hint(fault, _way_out(root))
    return tuple(found)


def _way_out(root: Path) -> str:
    """What to do about a result that is damaged."""
    run_dir = RunDir(root.parent)
    try:
        is_alone = run_dir.final == root and not run_dir.committed_steps()
    except NotReadError:
        is_alone = False
    return _TRAINED_ANEW if is_alone else _MADE_ANEW


def not_now(error: NotReadError, otherwise: str) -> NotReadError:
    """The same, with what to do about it: wait, or, of a file that is lost, this. A newer version's says itself."""
    if isinstance(error, NewerFormatError):
        return error
    again = f"give the same command again; where it stays so, {otherwise}"
    return NotReadError([Problem(one.what, one.where, again) for one in error.problems])


def _with_hint(error: StorageError, hint: str) -> StorageError:
    return StorageError([Problem(problem.what, problem.where, hint) for problem in error.problems])
