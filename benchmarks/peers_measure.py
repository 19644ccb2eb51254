"""One contestant's run as one process, measured from outside."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers_contestants import Contestant, Line, Settings, Step

from rankzero.machine import usable_cores


@dataclass(frozen=True, slots=True)
class Process:
    """One finished process and its children, seen from outside. `peak_bytes` is that of the largest of them."""

    started: float
    seconds: float
    peak_bytes: int
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant in figures. `tokens` are those of the steps that `tokens_per_second` is taken over."""

    tokens_per_second: float
    peak_bytes: float
    first_step_seconds: float
    seconds: float
    tokens: float
    loss_first: float
    loss_last: float


def environment(directory: Path) -> dict[str, str]:
    """One GPU or all cores for everyone, no network, and caches of this run's own: nobody finds its data prepared."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "HF_HOME": str(directory / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(usable_cores()),  # accelerate, under TRL, would take one thread
        "PYTHONUNBUFFERED": "1",
        "RANKZERO_CACHE": str(directory / "cache"),
    }


def run_process(command: Sequence[str], env: dict[str, str], errors: Path) -> Process:
    """Run to the end, stamping lines of stdout as they come. Raises SystemExit with the last of stderr."""
    started = time.time()
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True, start_new_session=True
        ) as process,
    ):
        try:
            lines = [(time.time(), line) for line in process.stdout or ()]
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = errors.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SystemExit(f"{shlex.join(command)}\nended with {process.returncode}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Process(started, time.time() - started, usage.ru_maxrss * unit, lines)


def summarise(process: Process, steps: Sequence[Step], expected: int) -> Sample:
    """One run in figures. The first step warms up and counts for the time to first step only."""
    if len(steps) != expected:
        raise SystemExit(f"expected {expected} steps, found {len(steps)}")
    tokens = sum(step.tokens for step in steps[1:])
    return Sample(
        tokens_per_second=tokens / (steps[-1].ended - steps[0].ended),
        peak_bytes=process.peak_bytes,
        first_step_seconds=steps[0].ended - process.started,
        seconds=process.seconds,
        tokens=tokens,
        loss_first=steps[0].loss,
        loss_last=steps[-1].loss,
    )


def run_once(contestant: Contestant, settings: Settings, work: Path) -> Process:
    """One run in a directory of its own, which keeps what was written and what was printed when."""
    work.mkdir(parents=True)
    process = run_process(contestant.command(settings, work), environment(work), work / "stderr.txt")
    stamped = "".join(f"{at - process.started:9.3f} {line}" for at, line in process.lines)
    (work / "stdout.txt").write_text(stamped, encoding="utf-8")
    return process
