"""Ending a job of Slurm: its nodes are asked to save first, for as long as they were given for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from rankzero.errors import ServiceError
from rankzero.launch.backend import LONGEST_SILENCE, Say
from rankzero.launch.backends.slurm.command import Job, Slurm
from rankzero.launch.silence import Silence, SilentError

MARGIN_SECONDS = 10
_Answer = TypeVar("_Answer")


def answered(ask: Callable[[], _Answer], say: Say, pause: Callable[[], None]) -> _Answer:
    """What Slurm answers in the end. Raises what it refuses, and SilentError where it stays silent."""
    silence = Silence(say)
    while True:
        try:
            return ask()
        except SilentError as error:
            silence.goes_on(error)
        pause()


def _is_stuck(job: Job, ending_since: float) -> bool:
    """An epilog may hang, or a process that nothing kills. What comes after it waits in the queue until it is over."""
    return job.is_ending and time.monotonic() - ending_since >= LONGEST_SILENCE


def end(slurm: Slurm, job: Job, seconds: float, say: Say, pause: Callable[[], None]) -> None:
    """Return when it is over, or Slurm has not ended for long what nothing is left of. Raises AccessError, and
    ServiceError where Slurm does not take it or stays silent.

    `scancel` alone gives a job KillWait, often 30 s; so its steps get the signal first, and the job ends by itself,
    which it would not do without a word in its directory that says that it is not to be queued again
    (`RunState.cancel`).
    """
    if job.is_waiting:
        answered(lambda: slurm.cancel(job.id), say, pause)
        say(f"job {job.id} is taken out of the queue")
        return
    if job.is_ending:
        say(f"job {job.id} is ending already")
    else:
        say(f"job {job.id} is told to stop; it saves and leaves within {seconds:.0f} s")
        answered(lambda: slurm.cancel("--signal=TERM", job.id), say, pause)  # it may have come to its end meanwhile
    deadline, asked_again, ending_since = time.monotonic() + seconds, False, math.inf
    silence = Silence(say)
    while True:
        try:
            now = slurm.jobs([job.id]).get(job.id)
            if now is None or now.is_over:
                return
            if _is_stuck(now, ending_since):
                say(f"job {job.id} does not come to its end: `scontrol show job {job.id}`, and tell the administrators")
                return
            ending_since = min(ending_since, time.monotonic()) if now.is_ending else math.inf
            late = time.monotonic() >= deadline and not now.is_ending
            if (late and not asked_again) or now.is_waiting:  # queued again before the word was there
                if late:
                    say("it has not saved in that time; its processes are ended")
                slurm.cancel(job.id)
                asked_again = True
        except ServiceError as error:
            silence.goes_on(error)
        else:
            silence.is_over()
        pause()
