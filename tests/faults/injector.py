"""Faults on purpose, from inside a worker: what happens, to which rank, in which step. Knows no test.

`python -m tests.faults.injector RUN.json` is the product's worker with the faults that a file lists, which
FAULTS_VARIABLE names. Each happens once in the life of a run, whatever is started again: a file beside the list says
that it did.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAULTS_VARIABLE = "RANKZERO_TEST_FAULTS"
FOR_EVER = 100_000
FULL_BYTES = 12_000
SLOWER = 50


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    what: str
    """A signal's name, or one of KINDS."""
    rank: int = 0
    """-1: on all of them."""
    step: int = 1
    """As this step begins, 1 being the first; of `activity` save or evaluation: as that after this step begins."""
    activity: str = "step"
    always: bool = False
    """Each time that a start comes there."""


def raises() -> None:
    raise ValueError("injected")


def holds_the_interpreter() -> None:
    """A call into C that never returns and does not let go of the interpreter's lock."""
    ctypes.PyDLL(None).sleep(FOR_EVER)


def waits_for_ever() -> None:
    time.sleep(FOR_EVER)


def full() -> None:
    """No file grows beyond what no log of these tests reaches, and every file of weights exceeds, from here on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))


KINDS: dict[str, Callable[[], None]] = {
    "raises": raises,
    "holds the interpreter": holds_the_interpreter,
    "waits": waits_for_ever,
    "exits": lambda: os._exit(3),
    "full": full,
}
LASTING = ("nan", "slow", "clock")
"""What does not happen at a moment but holds: the losses of the step, the rank's passes, every look at the time."""


def happen(what: str) -> None:
    """Here and now."""
    if what in KINDS:
        KINDS[what]()
    else:
        os.kill(os.getpid(), signal.Signals[what])


def arrange(faults: Sequence[Fault], happened: Path) -> None:
    """Have them happen to the run that starts in this process. `happened`: where it is kept which of them have."""
    from rankzero.engine.signals import StopRequest

    rank, now = int(os.environ.get("RANK", "0")), StopRequest.now
    for fault in faults:
        if fault.what in LASTING and fault.rank in (-1, rank):
            hold(fault)
    faults = [fault for fault in faults if fault.what not in LASTING]

    def at(request: StopRequest, activity: Any, *, step: int, saved: int) -> None:
        now(request, activity, step=step, saved=saved)
        for number, fault in enumerate(faults):
            due = step + (activity == "step") == fault.step and activity == fault.activity
            mark = happened / f"fault-{number}-rank-{rank}"
            if due and fault.rank in (-1, rank) and (fault.always or not mark.exists()):
                mark.touch()
                happen(fault.what)

    StopRequest.now = at  # type: ignore[method-assign]


def hold(fault: Fault) -> None:
    """Have a lasting one hold from the start of the run on."""
    from rankzero.engine import step
    from rankzero.engine.pace import PassClock

    measured = PassClock.read
    gradients, loss_sum, clock, at = step.Stepper.gradients, step.Stepper.loss_sum, time.time, {"step": 0}

    def begin(stepper: Any, batches: Any, work: Any, done: int, **more: Any) -> Any:
        at["step"] = done + 1
        return gradients(stepper, batches, work, done, **more)

    def loss(stepper: Any, *arguments: Any) -> Any:
        found = loss_sum(stepper, *arguments)
        return found * float("nan") if fault.what == "nan" and at["step"] == fault.step else found

    def read(clock: PassClock) -> None:
        measured(clock)
        clock.seconds *= SLOWER

    if fault.what == "slow":  # by what it measures of itself: another process's share of the machine may be any
        PassClock.read = read  # type: ignore[method-assign]
    elif fault.what == "clock":  # an hour forth, two back, and so on
        time.time = lambda: clock() + 3600 * (int(time.monotonic() * 20) % 4 - 2)
    else:
        step.Stepper.gradients, step.Stepper.loss_sum = begin, loss  # type: ignore[method-assign]


def write_faults(folder: Path, *faults: Fault) -> dict[str, str]:
    """Leave a list where a worker finds it. Returns what its environment needs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "faults.json"
    path.write_text(json.dumps([asdict(fault) for fault in faults]))
    return {FAULTS_VARIABLE: str(path)}


def rank_of_a_run(directory: Path, cache: str, spec: str, faults: str, happened: str) -> None:
    """A rank of `tests.support.forked` with faults."""
    from rankzero.engine import worker
    from rankzero.spec.run_options import RunOptions
    from rankzero.spec.run_spec import RunSpec

    os.environ["RANKZERO_CACHE"] = cache
    arrange([Fault(**fault) for fault in json.loads(faults)], Path(happened))
    report = worker.run(RunSpec.model_validate_json(spec), RunOptions(log_level="INFO"))
    if os.environ["RANK"] == "0":
        (directory / "report.json").write_text(json.dumps(report))


def from_environment() -> None:
    """Arrange for what the environment says."""
    path = os.environ.get(FAULTS_VARIABLE)
    if path is not None:
        arrange([Fault(**fault) for fault in json.loads(Path(path).read_text())], Path(path).parent)


if __name__ == "__main__":
    from rankzero.engine import worker
    from rankzero.engine.process import process

    from_environment()
    process(worker.run)
