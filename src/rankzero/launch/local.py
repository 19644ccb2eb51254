"""Several processes of one run on this machine: start, watch, stop, and one exit code. Knows nothing of training.

The grace period is ours: a stop request goes to every worker, and they get GRACE_SECONDS to save before being killed.
A worker that dies takes its peers along, since they would wait for it for ever; and workers die with this process.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from rankzero.launch.processes import POLL_SECONDS, Ranks, Workers, signals_to, started
from rankzero.run_dir.handover import RENDEZVOUS_VARIABLE, write_payload
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

GRACE_SECONDS = 170.0


def run_processes(spec: RunSpec, options: RunOptions, nproc: int, env: Mapping[str, str]) -> str:
    """Run `nproc` workers to their end. Returns rank 0's report as JSON; raises the first failing worker's error.

    Raises KeyboardInterrupt where a second Ctrl-C ended them: they have said what it cost.
    """
    at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankzero-") as name:
        directory = Path(name)
        payload = write_payload(directory, spec, options)
        meeting = {RENDEZVOUS_VARIABLE: (directory / "rendezvous").as_uri()}
        if "GLOO_SOCKET_IFNAME" not in env and Path("/sys/class/net/lo").exists():
            meeting["GLOO_SOCKET_IFNAME"] = "lo"  # one machine: independent of its name being resolvable

        def stderr(local: int) -> IO[bytes] | None:
            return None if local == 0 else (directory / f"stderr-{local}").open("wb")

        ranks = Ranks(first=0, count=nproc, world_size=nproc)
        with started(directory, ranks, payload, {**env, **meeting}, at, stderr) as workers:
            _watch(workers)
            if workers.interrupted:
                raise KeyboardInterrupt
            failure = workers.failure()
            if failure is not None:
                raise failure
            return workers.report()


def _watch(workers: Workers) -> None:
    """Wait for all, or until the rest has to be killed."""
    stop_at: float | None = None

    def forward(number: int) -> None:
        nonlocal stop_at
        stop_at = stop_at or time.monotonic()
        workers.signal(number)

    with signals_to(forward, (signal.SIGTERM, signal.SIGINT)):
        while workers.running():
            overdue = stop_at is not None and time.monotonic() - stop_at > GRACE_SECONDS
            if overdue:
                workers.kill()
            elif workers.peers_are_late(GRACE_SECONDS):
                workers.end_late_peers()
            workers.end_where_suspended(all_of_them=False)
            time.sleep(POLL_SECONDS)
