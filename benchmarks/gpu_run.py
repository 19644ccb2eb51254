"""One process with a time limit, and what it measured. Knows both kinds of contestants' files; no markdown."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_cells import Sizes


class RunFailedError(Exception):
    """A process did not do what it should: the last of what it said, in one line; `said` is all of it."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said


class RunStoppedError(RunFailedError):
    """It took longer than it may."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One contestant's run in figures."""

    tokens_per_second: float
    peak_bytes: float
    first_step_seconds: float
    seconds: float
    loss_first: float
    loss_last: float
    choices: str


def environment(directory: Path, *, cpu: bool) -> dict[str, str]:
    """One GPU, no network, and caches of this run's own: nobody finds its data prepared or its kernels compiled."""
    visible = "" if cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": visible,
        "HF_HOME": str(directory / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "RANKZERO_CACHE": str(directory / "cache"),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }


def run_process(command: Sequence[str], env: dict[str, str], directory: Path, seconds: float) -> tuple[float, str]:
    """(when it started in Unix seconds, what it printed). Raises RunFailedError where it fails or takes longer."""
    started = time.time()
    errors = directory / "stderr.txt"
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True, start_new_session=True
        ) as process,
    ):
        try:
            printed, _ = process.communicate(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            said = errors.read_text(encoding="utf-8", errors="replace")
            raise RunStoppedError(f"stopped after {seconds:.0f} s", said) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        said = errors.read_text(encoding="utf-8", errors="replace")
        raise RunFailedError(last_words(said) or f"{shlex.join(command)} ended with {process.returncode}", said)
    return started, printed


def last_words(said: str) -> str:
    """What a failing process said last that is no frame of a traceback."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("  ")]
    memory = [line for line in lines if "out of memory" in line.lower()]
    return (memory or lines or [""])[-1][:300]


def read_ours(directory: Path) -> tuple[list[dict[str, Any]], float, str]:
    """Steps, peak memory and choices of a rankzero run."""
    root = directory / "runs" / "bench"
    steps = [json.loads(line) for line in (root / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    report = json.loads((root / "report.json").read_text(encoding="utf-8"))
    padding = report["padding_fraction"]
    return steps, report["peak_memory_bytes"], f"everything else at its default; {padding:.1%} padding"


def read_peer(directory: Path) -> tuple[list[dict[str, Any]], float, str]:
    """Steps, peak memory and choices of gpu_peer.py."""
    lines = (directory / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    facts = json.loads((directory / "peer.json").read_text(encoding="utf-8"))
    return [json.loads(line) for line in lines], facts["peak_memory_bytes"], facts["choices"]


def summarise(started: float, seconds: float, sizes: Sizes, found: tuple[list[dict[str, Any]], float, str]) -> Sample:
    """Figures of one run. Raises RunFailedError where steps are missing."""
    steps, peak, choices = found
    if len(steps) != sizes.steps:
        raise RunFailedError(f"expected {sizes.steps} steps, found {len(steps)}")
    counted = steps[sizes.warm_up :]
    return Sample(
        tokens_per_second=sum(step["tokens"] for step in counted)
        / (counted[-1]["time"] - steps[sizes.warm_up - 1]["time"]),
        peak_bytes=peak,
        first_step_seconds=steps[0]["time"] - started,
        seconds=seconds,
        loss_first=steps[0]["loss"],
        loss_last=steps[-1]["loss"],
        choices=choices,
    )
