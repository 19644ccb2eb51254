"""Trials on this machine: a start is what `rankzero train` makes, its processes beside those of the other trials."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rankzero.errors import DataError, RankzeroError, StoppedError
from rankzero.launch.hang import HangWatch
from rankzero.launch.local import GRACE_SECONDS
from rankzero.launch.processes import Ranks, started
from rankzero.launch.start_directory import start_directory
from rankzero.machine import usable_cores
from rankzero.persist.copying import kept_elsewhere
from rankzero.persist.run_store import copy_url
from rankzero.run_dir.atomic import storage_errors
from rankzero.run_dir.goodput import read_starts
from rankzero.run_dir.handover import RENDEZVOUS_VARIABLE, write_payload
from rankzero.run_dir.lease import Watch
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import is_finished
from rankzero.run_dir.view import measured
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import is_better
from rankzero.sweep.trainer import Known, TrialStart

Say = Callable[[str], None]


class Here:
    """This machine's GPUs, divided among the trials that run at the same time; without GPUs its cores."""

    def __init__(self, processes: int, parallel: int, gpus: int, env: Mapping[str, str], say: Say) -> None:
        self._processes, self._parallel, self._gpus = processes, parallel, gpus
        self._env, self._say = env, say
        self._watched: dict[Path, Watch] = {}
        """By the run directories of trials that somebody else has, or may have."""

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        root = Path(spec.output_dir) / str(spec.name)
        watch = self._watched.get(root) or Watch(root)
        if (other := watch.holder()) is not None:
            if root not in self._watched:
                self._say(f"{spec.name}: {other} has its run directory, or had; waiting while it lives")
            self._watched[root] = watch
            return None
        self._watched.pop(root, None)

        def begin() -> TrialStart:
            with storage_errors(root):
                if is_finished(RunDir(root), spec):
                    return Finished(spec)
            return _Start(spec, self._processes, self._environment(slot), self._say)

        if copy_url(spec) is None:
            return begin()
        return Kept(spec, begin, lambda text: self._say(f"[COPY] {spec.name}: {text}"))

    def saved(self, spec: RunSpec) -> int | None:
        return next(iter(RunDir(Path(spec.output_dir) / str(spec.name)).committed_steps()), None)

    def _environment(self, slot: int) -> dict[str, str]:
        """What tells a trial its share."""
        if self._gpus:
            name = next((name for name in _VISIBLE if name in self._env), _VISIBLE[0])
            shown = self._env.get(name, ",".join(str(index) for index in range(self._gpus))).split(",")
            first = slot * self._processes
            return {**self._env, name: ",".join(one.strip() for one in shown[first : first + self._processes])}
        threads = max(1, usable_cores() // (self._parallel * self._processes))
        return {"OMP_NUM_THREADS": str(threads), **self._env}


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Finished:
    """A run directory with a result, and nothing to start."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec, self._run_dir = spec, RunDir(Path(spec.output_dir) / str(spec.name))

    def running(self) -> bool:
        return False

    def evaluations(self) -> list[float]:
        return evaluations(self._run_dir, self._spec)

    def stop(self) -> None: ...

    def failure(self) -> RankzeroError | None:
        return None

    def result(self) -> float | None:
        report = self._run_dir.report
        try:
            with storage_errors(report):
                value = json.loads(report.read_text(encoding="utf-8")).get(self._spec.checkpoint.best_metric)
        except (ValueError, AttributeError) as error:
            what, hint = "it does not say what the trial scored", "the next start of the sweep makes it anew"
            raise DataError(what, where=str(report), hint=hint) from error
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def close(self) -> None: ...


class _Start(Finished):
    """Its processes. They die with this one, however that ends."""

    def __init__(self, spec: RunSpec, processes: int, env: Mapping[str, str], say: Say) -> None:
        super().__init__(spec)
        self._stop_at: float | None = None
        self._stack = ExitStack()
        with ExitStack() as stack:
            directory = stack.enter_context(start_directory())
            payload = write_payload(directory, spec, RunOptions())
            meeting = {RENDEZVOUS_VARIABLE: (directory / "rendezvous").as_uri()}
            if "GLOO_SOCKET_IFNAME" not in env and Path("/sys/class/net/lo").exists():
                meeting["GLOO_SOCKET_IFNAME"] = "lo"

            def stderr(local: int) -> IO[bytes]:
                return (directory / f"stderr-{local}").open("wb")

            ranks = Ranks(first=0, count=processes, world_size=processes)
            entered = started(directory, ranks, payload, {**env, **meeting}, time.monotonic(), stderr)
            self._workers = stack.enter_context(entered)
            compiled = spec.train.torch_compile
            self._hang = HangWatch(self._workers, self._run_dir, say, compiled=compiled, alone=True, attended=False)
            self._stack = stack.pop_all()

    def running(self) -> bool:
        if not self._workers.running():
            return False
        self._hang.look(end=self._stop_at is None)
        overdue = self._stop_at is not None and time.monotonic() - self._stop_at > GRACE_SECONDS
        if overdue and not self._hang.gets_on():
            self._workers.kill()
        elif self._workers.peers_are_late(GRACE_SECONDS, self._hang.gets_on):
            self._workers.end_late_peers()
        return True

    def stop(self) -> None:
        self._stop_at = self._stop_at or time.monotonic()
        self._workers.ask_to_stop(signal.SIGTERM)

    def failure(self) -> RankzeroError | None:
        return self._workers.failure()

    def close(self) -> None:
        self._stack.close()


class Kept(Finished):
    """A trial that an object store has too: brought back from there before it starts, and copied until all of it is
    there. In a thread of its own, since a store may be slow or down, and who looks at this looks after others."""

    def __init__(self, spec: RunSpec, begin: Callable[[], TrialStart], say: Say) -> None:
        super().__init__(spec)
        self._begin = begin
        self._start: TrialStart | None = None
        self._is_here, self._over = threading.Event(), threading.Event()
        self._stopping = self._in_a_hurry = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._keep, args=(spec, say), name="copy", daemon=True)
        self._thread.start()

    def _keep(self, spec: RunSpec, say: Say) -> None:
        try:
            with kept_elsewhere(spec, say, hurried=lambda: self._in_a_hurry):
                self._is_here.set()
                self._over.wait()
        except Exception as error:  # raised again where the sweep looks
            self._error = error
        finally:
            self._is_here.set()

    def running(self) -> bool:
        if not self._is_here.is_set():
            return True
        if self._error is not None and not isinstance(self._error, RankzeroError):
            raise self._error
        if self._start is None and self._error is None and not self._stopping:
            try:
                self._start = self._begin()
            except RankzeroError as error:  # the trial's failure: others go on, or save
                self._error = error
        if self._start is not None and self._start.running():
            return True
        self._over.set()
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopping = True
        if self._start is not None:
            self._start.stop()

    def failure(self) -> RankzeroError | None:
        if isinstance(self._error, RankzeroError):
            return self._error
        if self._start is None:
            return StoppedError("stopped before it had begun", hint="the same command goes on")
        return self._start.failure()

    def close(self) -> None:
        """What is not copied by now is not waited for: the same command copies it."""
        self._in_a_hurry = True
        self._over.set()
        if self._start is not None:
            self._start.close()


def evaluations(run_dir: RunDir, spec: RunSpec) -> list[float]:
    """As TrialStart.evaluations, from a run directory. Patience is counted as the run counts it: what it says is known
    before the run has ended, so no trial's end depends on when it is looked at."""
    metric, patience = spec.checkpoint.best_metric, spec.eval.early_stopping_patience
    with storage_errors(run_dir.root):
        starts, scores = read_starts(run_dir.starts), measured(run_dir.metrics, metric)
    total = starts[-1].total_steps if starts else 0
    found: list[float] = []
    best, waited = None, 0
    for step, value in scores:
        if not 0 < step < total:
            continue
        better = value is not None and is_better(metric, value, best)
        best, waited = (value, 0) if better else (best, waited + 1)
        if patience is not None and waited >= patience:
            break
        found += [] if value is None else [value]
    return found
