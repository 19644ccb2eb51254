"""Files of this machine made the same in a pod, by what is in them: only what changed is sent. Chooses no files."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankzero.errors import RankzeroError, ServiceError
from rankzero.launch.backend import Backend, Ended
from rankzero.launch.node.settings import WARM_DIR
from rankzero.launch.node.workspace import BrokenCopyError, mark_now, pack

WORK = "work"
"""Place of the user's files, where commands run."""
RUN = "run"
"""Place of run.yaml, node.json and files/ of a run that is tried."""
_AGAIN = "give the same command again"
_PROGRAM = ["python", "-P", "-m", "rankzero.launch.node.workspace", WARM_DIR]


@dataclass(frozen=True, slots=True)
class Synced:
    """What changed in a pod."""

    put: int = 0
    removed: int = 0
    sent: int = 0
    """Bytes."""
    replaced: tuple[str, ...] = ()
    """Where those are kept that had been changed in the pod."""


def marks(files: Mapping[str, Path | bytes]) -> dict[str, str]:
    """What tells each file from another of its name. One that has gone meanwhile has none."""
    found = {name: _mark_of(content) for name, content in files.items()}
    return {name: known for name, known in found.items() if known is not None}


def _mark_of(content: Path | bytes) -> str | None:
    """What tells it from another; None where there is nothing."""
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else mark_now(content)


def sync(
    backend: Backend, pod: str, place: str, files: Mapping[str, Path | bytes], wanted: Mapping[str, str]
) -> Synced:
    """Make a place of a pod hold these files; `wanted` are their marks. What was sent before and is not among them is
    removed; nothing else is. Raises ServiceError where the pod cannot, or a file changed meanwhile."""
    there: dict[str, str] = json.loads(asked(backend, pod, [*_PROGRAM, place, "list"]))
    changed = {name: files[name] for name, known in wanted.items() if there.get(name) != known}
    if not changed and set(there) == set(wanted):
        return Synced()
    with tempfile.TemporaryFile() as stream:
        try:
            pack(changed, wanted, stream)
        except BrokenCopyError as error:
            raise ServiceError(str(error), where=f"pod {pod}", hint=_AGAIN) from error
        length = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        done = json.loads(asked(backend, pod, [*_PROGRAM, place, "apply", str(length)], stream))
    kept = tuple(f"{WARM_DIR}/{name}" for name in done["replaced"])
    return Synced(done["put"], done["removed"], length, kept)


def asked(backend: Backend, pod: str, command: Sequence[str], stdin: IO[bytes] | None = None) -> str:
    """What a command in a pod printed. Raises ServiceError where it failed."""
    out: list[bytes] = []
    ended = backend.execute(pod, command, out.append, stdin)
    if ended.code:
        raise failed(pod, command, ended)
    return b"".join(out).decode(errors="replace")


def failed(pod: str, command: Sequence[str], ended: Ended) -> RankzeroError:
    """The error for a command that a pod could not do."""
    said = (ended.words.strip().splitlines() or [f"it ended with {ended.code}"])[-1]
    if "No module named 'rankzero" in ended.words or "No module named rankzero" in ended.words:
        hint = "its image has no rankzero, or an older one: build it from this version (docker/README.md)"
    else:
        hint = _AGAIN
    return ServiceError(f"{' '.join(command[:4])}: {said}", where=f"pod {pod}", hint=hint)
