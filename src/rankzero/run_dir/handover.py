"""What a launcher and its workers hand each other: variables, the payload, beats, errors. Both sides read it here.

A worker is given its place by torch's usual variables (RANK, WORLD_SIZE, …) and these besides. Its error goes to a
file: standard error is for people, and only one of several processes has something to say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankzero import errors
from rankzero.errors import Problem, RankzeroError
from rankzero.run_dir.atomic import place_given_by, storage_errors, write_json
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

RENDEZVOUS_VARIABLE = "RANKZERO_RENDEZVOUS"
"""Where the processes meet, as torch's init_method; absent: env://, as under torchrun."""
STARTED_VARIABLE = "RANKZERO_STARTED_AT"
"""The launcher's monotonic clock when the run was asked for, in seconds."""
PARENT_VARIABLE = "RANKZERO_PARENT"
"""The launcher's process id: a worker dies with it."""
AGAIN_VARIABLE = "RANKZERO_MAY_START_AGAIN"
"""A directory that the launcher has for as long as it may start the run again; empty where this start is the last."""
ERROR_FILE_VARIABLE = "RANKZERO_ERROR_FILE"
STACK_FILE_VARIABLE = "RANKZERO_STACK_FILE"
"""Where a worker writes its stacks when it is sent SIGUSR1."""
BEAT_FILE_VARIABLE = "RANKZERO_BEAT_FILE"
"""Where a worker says what it is doing, each time that it begins something else."""
_BEAT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker is doing. Without a time: its clock may be wrong, and whoever watches has one."""

    activity: str
    """rows (which are waited for), step, evaluation, samples, save, result, ending (the loop is over, a save perhaps
    not), or leaving."""
    step: int
    """Optimizer steps of the run that are done."""
    begun: int
    """Steps that were begun in this start; the first may compile."""

    def __str__(self) -> str:
        return f"{self.activity} after {self.step} steps"


def write_beat(file: int, beat: Beat) -> None:
    """Replace what an open file says, in one call of a few microseconds. Raises OSError."""
    os.pwrite(file, f"{beat.activity} {beat.step} {beat.begun}".encode().ljust(_BEAT_BYTES), 0)


def read_beat(path: Path) -> Beat | None:
    """What a worker said last; None before it has said anything."""
    try:
        activity, step, begun = path.read_text(encoding="ascii").split()
        return Beat(activity, int(step), int(begun))
    except (OSError, ValueError):
        return None


@contextmanager
def room_for_a_start() -> Iterator[None]:
    """Around what is written to the place for temporary files: raises StorageError where that takes nothing."""
    with place_given_by("the variable TMPDIR"), storage_errors(os.environ.get("TMPDIR") or "/tmp"):
        yield


def write_payload(directory: Path, spec: RunSpec, options: RunOptions) -> Path:
    """The file that workers are started with. Raises StorageError."""
    payload = directory / "run.json"
    with room_for_a_start():
        payload.write_text(json.dumps({"spec": spec.model_dump(mode="json"), "options": options.to_json()}))
    return payload


def read_payload(text: str) -> tuple[RunSpec, RunOptions]:
    """What `write_payload` wrote."""
    payload = json.loads(text)
    return RunSpec.model_validate(payload["spec"]), RunOptions.from_json(payload["options"])


def write_error(file: Path, error: RankzeroError, trace: str, redact: Callable[[str], str]) -> None:
    """A worker's last words; `trace` is the traceback of an internal error, else empty."""
    problems = [{"what": redact(p.what), "where": redact(p.where), "hint": redact(p.hint)} for p in error.problems]
    write_json(file, {"type": type(error).__name__, "problems": problems, "traceback": redact(trace)})


def read_error(file: Path) -> RankzeroError | None:
    """What a worker wrote, its traceback as a note; None where it died before it could say why, or while it did."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        kind = getattr(errors, value["type"], RankzeroError)
        error: RankzeroError = kind([Problem(**problem) for problem in value["problems"]])
        if value["traceback"]:
            error.add_note(value["traceback"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return error
