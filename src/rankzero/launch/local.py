"""Several processes of one run on this machine: start, watch, stop, and one exit code. Knows nothing of training.

The grace period is ours: a stop request goes to every worker, and they get GRACE_SECONDS to save before being killed.
A worker that dies takes its peers along, since they would wait for it for ever; and workers die with this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from rankzero import errors
from rankzero.errors import ExitCode, Problem, RankzeroError, StoppedError
from rankzero.machine import usable_cores
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

GRACE_SECONDS = 170.0
PEER_SECONDS = 10.0
"""How long peers of a dead worker may take to notice and leave by themselves."""
POLL_SECONDS = 0.05


def run_processes(spec: RunSpec, options: RunOptions, nproc: int, env: Mapping[str, str]) -> str:
    """Run `nproc` workers to their end. Returns rank 0's report as JSON; raises the first failing worker's error."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankzero-") as name:
        directory = Path(name)
        payload = directory / "run.json"
        payload.write_text(json.dumps({"spec": spec.model_dump(mode="json"), "options": asdict(options)}))
        with _workers(payload, directory, nproc, env, started) as workers, _forwarded_signals(workers) as stop:
            first = _watch(workers, stop)
        if first is not None:
            raise _error_of(first, workers[first], directory)
        return (directory / "report.json").read_text(encoding="utf-8")


@contextmanager
def _workers(
    payload: Path, directory: Path, nproc: int, env: Mapping[str, str], started: float
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all workers; whatever happens, none is left behind."""
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(nproc):
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": nproc,
                "LOCAL_WORLD_SIZE": nproc,
                "RANKZERO_RENDEZVOUS": (directory / "rendezvous").as_uri(),
                "RANKZERO_ERROR_FILE": directory / f"error-{rank}.json",
                "RANKZERO_STARTED_AT": started,
                "RANKZERO_PARENT": os.getpid(),
            }
            defaults = {"OMP_NUM_THREADS": str(max(1, usable_cores() // nproc))}
            if "GLOO_SOCKET_IFNAME" not in env and Path("/sys/class/net/lo").exists():
                defaults["GLOO_SOCKET_IFNAME"] = "lo"  # one machine: independent of its name being resolvable
            with (
                (directory / ("report.json" if rank == 0 else f"stdout-{rank}")).open("wb") as stdout,
                (directory / f"stderr-{rank}").open("wb") as stderr,
            ):
                workers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "rankzero.engine.worker", str(payload)],
                        env={**defaults, **env, **{key: str(value) for key, value in place.items()}},
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=None if rank == 0 else stderr,
                        process_group=0,  # Ctrl-C reaches this process only, which passes it on once
                    )
                )
        yield workers
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
        for worker in workers:
            worker.wait()


class _Stop:
    """When a stop was asked for, on the monotonic clock."""

    at: float | None = None


@contextmanager
def _forwarded_signals(workers: list[subprocess.Popen[bytes]]) -> Iterator[_Stop]:
    stop = _Stop()

    def forward(number: int, _frame: FrameType | None) -> None:
        stop.at = stop.at or time.monotonic()
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _watch(workers: list[subprocess.Popen[bytes]], stop: _Stop) -> int | None:
    """Wait for all. Returns the rank that failed first, or None where all succeeded."""
    first: int | None = None
    failed_at = 0.0
    while any(worker.poll() is None for worker in workers):
        if first is None:
            first = next((rank for rank, worker in enumerate(workers) if worker.poll() not in (None, 0)), None)
            failed_at = time.monotonic()
        stopping = first is not None and workers[first].returncode == ExitCode.STOPPED
        patience = GRACE_SECONDS if stopping else PEER_SECONDS
        late = first is not None and time.monotonic() - failed_at > patience
        if late or (stop.at is not None and time.monotonic() - stop.at > GRACE_SECONDS):
            break
        time.sleep(POLL_SECONDS)
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    failed = [rank for rank, worker in enumerate(workers) if worker.returncode != 0]
    return first if first is not None else next(iter(failed), None)


def _error_of(rank: int, worker: subprocess.Popen[bytes], directory: Path) -> RankzeroError:
    """The failing worker's own error, or what its death says."""
    try:
        value = json.loads((directory / f"error-{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    if value is not None:
        kind = getattr(errors, value["type"], RankzeroError)
        error: RankzeroError = kind([Problem(**problem) for problem in value["problems"]])
        if value["traceback"]:
            error.add_note(value["traceback"])
        return error
    if worker.returncode == ExitCode.STOPPED:
        return StoppedError("stopped", hint="give the same command again")
    tail = ""
    stderr = directory / f"stderr-{rank}"
    if stderr.is_file():
        tail = stderr.read_text(encoding="utf-8", errors="replace")[-2000:]
    if worker.returncode < 0:
        name = signal.Signals(-worker.returncode).name
        hint = "the machine may be out of memory: lower train.micro_batch_tokens" if name == "SIGKILL" else ""
        return RankzeroError(f"process {rank} was killed by {name}\n{tail}".rstrip(), hint=hint)
    return RankzeroError(f"process {rank} failed with exit code {worker.returncode}\n{tail}".rstrip())
