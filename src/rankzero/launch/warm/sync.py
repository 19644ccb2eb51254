"""Files of this machine made the same in a pod, by what is in them: only what changed is sent. Chooses no files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankzero.errors import RankzeroError, ServiceError
from rankzero.launch.backend import Backend, Ended, Say
from rankzero.launch.node.settings import WARM_DIR
from rankzero.launch.node.workspace import BrokenCopyError, mark_now, pack
from rankzero.launch.warm.each import each

WORK = "work"
"""Place of the user's files, where commands run."""
RUN = "run"
"""Place of run.yaml, node.json and files/ of a run that is tried."""
MUCH = 10_000_000
"""Bytes that are worth a word before they are sent."""
_Names = tuple[str, ...]
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
    backend: Backend, pods: Sequence[str], place: str, files: Mapping[str, Path | bytes], say: Say
) -> list[Synced]:
    """Make a place of pods hold these files; what is much is said before it is sent. What was sent before and is not
    among them is removed; nothing else is. Raises ServiceError where a pod cannot, or a file changed meanwhile."""
    wanted = marks(files)
    lacks = each(pods, lambda pod: _lacking(backend, pod, place, wanted))
    with tempfile.TemporaryDirectory() as directory:
        packed: dict[_Names | None, Path | None] = {}
        for number, names in enumerate(dict.fromkeys(lacks)):  # most often all pods lack the same
            packed[names] = path = None if names is None else Path(directory, str(number))
            if path is not None and names is not None:
                _pack(path, {name: files[name] for name in names}, wanted)
                _announce(path, len(names), lacks.count(names), say)
        every = [(pod, packed[names]) for pod, names in zip(pods, lacks, strict=True)]
        return each(every, lambda one: _apply(backend, one[0], place, one[1]))


def _lacking(backend: Backend, pod: str, place: str, wanted: Mapping[str, str]) -> _Names | None:
    """What a pod lacks; None where nothing is to be done. It may have something that is to go."""
    there: dict[str, str] = json.loads(asked(backend, pod, [*_PROGRAM, place, "list"]))
    names = tuple(name for name, known in wanted.items() if there.get(name) != known)
    return names if names or set(there) != set(wanted) else None


def _pack(path: Path, changed: Mapping[str, Path | bytes], wanted: Mapping[str, str]) -> None:
    with path.open("wb") as stream:
        try:
            pack(changed, wanted, stream)
        except BrokenCopyError as error:
            raise ServiceError(str(error), hint=_AGAIN) from error


def _announce(path: Path, files: int, pods: int, say: Say) -> None:
    if (size := path.stat().st_size) >= MUCH:
        say(f"sending {files} files, {size / 1e6:,.0f} MB, to {pods} pod{'s' if pods > 1 else ''}")


def _apply(backend: Backend, pod: str, place: str, packed: Path | None) -> Synced:
    if packed is None:
        return Synced()
    length = packed.stat().st_size
    with packed.open("rb") as stream:
        done = json.loads(asked(backend, pod, [*_PROGRAM, place, "apply", str(length)], stream))
    kept = tuple(f"{WARM_DIR}/{name}" for name in done.get("replaced", ()))  # the first version says none
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
    elif os.strerror(errno.ENOSPC) in ended.words:
        hint = "make room below /tmp there (`rankzero dev shell`); `.replaced` directories keep what was changed there"
    else:
        hint = _AGAIN
    return ServiceError(f"{' '.join(command[:4])}: {said}", where=f"pod {pod}", hint=hint)
