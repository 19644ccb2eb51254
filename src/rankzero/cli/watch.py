"""`rankzero watch`: one run as a page in the terminal that stays up to date, here or on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.cli.logs import RunArgument
from rankzero.cli.render import ClusterOption
from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.launch.backend import LogLine
    from rankzero.launch.evidence import Evidence

HERE_SECONDS, THERE_SECONDS = 1.0, 5.0
"""Between two looks: at files, and at a cluster's API."""
LINES = 6
CURVES = ("loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_second")
_MARGIN = 20
_TAIL_BYTES = 1 << 16
"""Of a log: hundreds of lines."""

Page = Callable[[int], tuple[str, bool]]
"""What is to be shown at a width, and whether the run is over."""


def watch(run: RunArgument, cluster: ClusterOption = None) -> None:
    """Look at a run while it goes on.

    Curves, last lines, GPUs, and where the time goes. Ctrl-C leaves; the run goes on.
    """
    from rankzero.api.clusters import backend_for, find_run, local_run
    from rankzero.cli.cluster_option import say

    if not sys.stdout.isatty():
        raise UsageError("there is no terminal to draw on", where="watch", hint="rankzero status prints once")
    here = local_run(run, cluster)
    if here is not None:
        curves = Curves(here)
        show(lambda width: page_of_here(here, width, curves), HERE_SECONDS)
        return
    _, backend = backend_for(cluster, say)
    name = find_run(backend, run)
    show(lambda width: page_of_cluster(backend.collect(name, log_lines=200), width), THERE_SECONDS)


def show(page: Page, seconds: float) -> None:
    """Draw it again and again until the run is over or somebody leaves."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                text, over = page(console.width)
                live.update(Text.from_ansi(text), refresh=True)
                if over:
                    return
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


class Curves:
    """What CURVES shows of a run's metrics.jsonl, of which each look reads what is new."""

    def __init__(self, root: Path) -> None:
        self._path = root / "metrics.jsonl"
        self._begin_anew(None)

    def _begin_anew(self, file: object) -> None:
        self._file, self._read = file, 0
        self._points = {name: (array("q"), array("d")) for name in CURVES}

    def look(self) -> dict[str, list[float]]:
        """The values of each by step; nan where one was not finite. A step that was made again counts as it was made
        last, and what came after it is gone."""
        new = b""
        try:
            if self._path.is_file():  # a device or a pipe may never end
                new = self._new()
            else:
                self._begin_anew(None)
        except OSError:
            self._begin_anew(None)
        for line in new.splitlines():
            self._take(line)
        return {name: list(values) for name, (_, values) in self._points.items()}

    def _new(self) -> bytes:
        """Whole lines that have come since the last look; of another file all of them."""
        with self._path.open("rb") as file:
            about = os.fstat(file.fileno())
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._read:
                self._begin_anew((about.st_dev, about.st_ino))
            file.seek(self._read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        return new

    def _take(self, line: bytes) -> None:
        from rankzero.run_dir.view import row_of, value_of

        row = row_of(line) or {}
        step = row.get("step")
        if not isinstance(step, int) or abs(step) >= 2**63:
            return
        for name, (steps, values) in self._points.items():
            if (value := value_of(row, name)) is None:
                continue
            while steps and steps[-1] >= step:
                steps.pop()
                values.pop()
            steps.append(step)
            values.append(value)


def page_of_here(root: Path, width: int, curves: Curves | None = None) -> tuple[str, bool]:
    """A run of this machine. `curves` know what an earlier look has read."""
    from rankzero.cli.local_runs import as_text, number, sparkline
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.view import view_run
    from rankzero.wording import printable

    run, parts = view_run(root), []
    for name, values in (curves or Curves(root)).look().items():
        if len(values) > 1:
            newest = f"{values[-1]:.3g}" if name == "learning_rate" else number(values[-1])
            parts.append(f"{name.replace('_', ' '):{_MARGIN - 2}s}{sparkline(values, width - _MARGIN - 14)}  {newest}")
    text = as_text(run, width, colour=True) + ("\n" + "\n".join(parts) + "\n" if parts else "")
    if gpus := gpu_lines():
        text += "\n" + "\n".join(gpus) + "\n"
    lines = (printable(line)[:width] for line in _last_lines(RunDir(root).log(0)))
    return text + "\n" + "\n".join(lines) + "\n", run.is_over


def _last_lines(log: Path) -> list[str]:
    """Of a file that may be long; none where it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-LINES:]
    except OSError:
        return []


def page_of_cluster(evidence: Evidence, width: int) -> tuple[str, bool]:
    """A run of a cluster, from one look at it."""
    from rankzero.cli.log_view import as_line
    from rankzero.launch.status import as_text, run_status

    status = run_status(evidence)
    text = as_text(status, width=width, colour=True)
    newest = [as_line(line, colour=False)[:width] for line in newest_lines(evidence)]
    return text + "\n" + "\n".join(newest) + "\n", status.is_over


def newest_lines(evidence: Evidence) -> list[LogLine]:
    """What all pods have said last, by time. A line without one is as old as the line before it."""
    from rankzero.launch.backend import LogLine
    from rankzero.launch.log_lines import read_stamp, time_of
    from rankzero.launch.pods import EARLIEST, parse_pod

    found: list[tuple[datetime, LogLine]] = []
    for pod in map(parse_pod, evidence.pods):
        at = EARLIEST
        for line in evidence.logs.get(pod.name, "").splitlines():
            at = time_of(line, evidence.now) or at
            found.append((at, LogLine(pod.node, pod.name, pod.role, read_stamp(line).text)))
    return [line for _, line in sorted(found, key=lambda one: one[0])[-LINES:]]


def gpu_lines() -> list[str]:
    """What nvidia-smi says of each GPU; nothing where there is none, or where it does not answer."""
    from rankzero.launch.warm.gpus import COMMAND, parse

    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = parse(done.stdout) if done.returncode == 0 else []
    return [
        f"GPU {gpu.index:>2}  {_said(gpu.utilization):>3} %  {_said(gpu.memory_used)} of {_said(gpu.memory_total)} MiB"
        for gpu in found
    ]


def _said(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
