"""Several processes of one run on this machine: start, watch, stop, start again, one exit code. Knows no training.

A stop request goes to every worker: it ends the step, saves and leaves; who does neither for GRACE_SECONDS is killed.
A worker that dies takes its peers along, since they would wait for it for ever; and workers die with this process. A
start that failed in a way that trying again may cure is followed by another one, which continues from the newest
checkpoint. Pods have `launch/node` instead, where the platform does that.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rankzero.errors import Problem, RankzeroError, StoppedError
from rankzero.launch.hang import HangWatch
from rankzero.launch.processes import POLL_SECONDS, Ranks, Workers, module_for, started
from rankzero.launch.restarts import Restarts, may_be_cured
from rankzero.launch.start_directory import start_directory
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import NotReadError
from rankzero.run_dir.handover import AGAIN_VARIABLE, RENDEZVOUS_VARIABLE, write_payload
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.stderr import write_stderr
from rankzero.stop_signals import signals_to, stop_signals
from rankzero.wording import printable

GRACE_SECONDS = 170.0
PAUSE_SECONDS = (1.0, 10.0, 30.0)
"""Before a restart: the longer, the more of them have brought nothing new."""


def run_processes(
    spec: RunSpec,
    options: RunOptions,
    nproc: int,
    env: Mapping[str, str],
    *,
    max_restarts: int = 0,
    begun: float | None = None,
) -> str:
    """Run `nproc` workers to their end, starting them again up to `max_restarts` times. `begun` is when the first start
    began, on the monotonic clock, where that was before this call.

    Returns rank 0's report as JSON; raises the error of the worker that failed first in the last start.

    Raises KeyboardInterrupt where a second Ctrl-C ended them: they have said what it cost.
    """
    local = _Local(spec, options, nproc, env, Restarts(max_restarts), begun)
    # Also between two starts: a stop is one at any moment, and who watches the run waits for the next one.
    with signals_to(local.heard, stop_signals()), start_directory() as local.own:
        while True:
            try:
                return local.start()
            except RankzeroError as failure:
                local.again_after(failure)


class _Local:
    """The starts of one command."""

    def __init__(
        self,
        spec: RunSpec,
        options: RunOptions,
        nproc: int,
        env: Mapping[str, str],
        restarts: Restarts,
        begun: float | None,
    ) -> None:
        self._spec, self._options, self._env = spec, options, env
        self._ranks = Ranks(first=0, count=nproc, world_size=nproc)
        self._restarts = restarts
        self._run_dir = RunDir(Path(spec.output_dir) / str(spec.name))
        self._redact = Redactor(os.environ)
        self._begun = begun
        """Of the first start."""
        self.own: Path | None = None
        """A directory that is there until no start follows."""
        self._stop_at: float | None = None
        self._asked_by: int = signal.SIGTERM
        self._workers: Workers | None = None
        self._recorded = False
        """Whether restarts.jsonl says what ended a start."""
        self._unheard: list[int] = []
        """Signals for workers that are still being started."""

    def heard(self, number: int) -> None:
        """The signal handler: pass a stop on, and make no new start."""
        if self._stop_at is None:
            self._stop_at, self._asked_by = time.monotonic(), number
        # A terminal that is closed takes this process alone along: to the workers it is a wish to stop.
        number = signal.SIGTERM if number == signal.SIGHUP else number
        if self._workers is None:
            self._unheard.append(number)
        else:
            self._workers.signal(number)

    def start(self) -> str:
        """One start of the workers, to its end."""
        at, self._begun = self._begun or time.monotonic(), None
        with start_directory() as directory:
            payload = write_payload(directory, self._spec, self._options)
            again = str(self.own) if self._restarts.made < self._restarts.most else ""
            meeting = {RENDEZVOUS_VARIABLE: (directory / "rendezvous").as_uri(), AGAIN_VARIABLE: again}
            if "GLOO_SOCKET_IFNAME" not in self._env and Path("/sys/class/net/lo").exists():
                meeting["GLOO_SOCKET_IFNAME"] = "lo"  # one machine: independent of its name being resolvable

            def stderr(local: int) -> IO[bytes] | None:
                return None if local == 0 else (directory / f"stderr-{local}").open("wb")

            env, module = {**self._env, **meeting}, module_for(self._options)
            with started(directory, self._ranks, payload, env, at, stderr, module) as workers:
                try:
                    self._watch(workers)
                finally:
                    self._workers = None
                if workers.interrupted:
                    raise KeyboardInterrupt
                if (failure := workers.failure()) is not None:
                    raise failure
                return workers.report()

    def again_after(self, failure: RankzeroError) -> None:
        """Return when the workers are to start again; raise the failure where they are not, and StoppedError where a
        stop came before they were."""
        if self._stop_at is not None or not may_be_cured(failure):
            raise failure
        saved, where = self._newest()
        if refused := self._restarts.refused(saved):
            if self._restarts.made:
                raise self._given_up(failure, refused)
            raise failure
        self._restarts.make(saved)
        self._record(failure, saved)
        self._say("\n".join([f"[RESTART] {failure.problems[0]}", *_notes(failure)]))
        self._say(f"[RESTART] {self._restarts.made} of {self._restarts.most}: starting again from {where}")
        if self.pause(PAUSE_SECONDS[min(self._restarts.idle, len(PAUSE_SECONDS)) - 1]):
            hint = "give the same command again to continue"
            raise StoppedError("stopped before it was started again", where=str(self._run_dir.root), hint=hint)

    def _newest(self) -> tuple[int | None, str]:
        """The step of the newest checkpoint, and it in words. Where that cannot be seen, for the volume may be what the
        start failed by, it is the one that was."""
        try:
            saved = next(iter(self._run_dir.committed_steps()), None)
        except NotReadError:
            return self._restarts.saved, "its newest checkpoint"
        return saved, f"step {saved}" if saved is not None else "the beginning"

    def pause(self, seconds: float) -> bool:
        """Wait so long, or until a stop is asked for. Returns whether it was."""
        until = time.monotonic() + seconds
        while self._stop_at is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return self._stop_at is not None

    def _watch(self, workers: Workers) -> None:
        """Wait for all, or until the rest has to be killed."""
        compiled = self._spec.train.torch_compile
        hang = HangWatch(workers, self._run_dir, self._say, compiled=compiled, alone=True, attended=True)
        self._workers = workers
        while self._unheard:
            workers.signal(self._unheard.pop(0))
        while workers.running():
            hang.look(end=self._restarts.most > 0 and self._stop_at is None)
            overdue = self._stop_at is not None and time.monotonic() - self._stop_at > GRACE_SECONDS
            if overdue and not hang.gets_on():
                workers.end_overdue(self._asked_by, GRACE_SECONDS, str(self._run_dir.root))
            elif workers.peers_are_late(GRACE_SECONDS, hang.gets_on):
                workers.end_late_peers()
            time.sleep(POLL_SECONDS)

    def _record(self, failure: RankzeroError, saved: int | None) -> None:
        """Also in the run directory: who comes back days later finds why."""
        problem = failure.problems[0]
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "restart": self._restarts.made,
            "from_step": saved,
            "exit_code": int(failure.exit_code),
            "where": self._redact(problem.where),
            "what": self._redact(problem.what),
            "hint": self._redact(problem.hint),
            "traceback": self._redact("\n".join(_notes(failure))),
        }
        try:
            with self._run_dir.restarts.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._recorded = True
        except FileNotFoundError:  # it has no directory yet
            return
        except OSError as error:  # a note only: it hides no failure and ends no run
            self._say(f"[RESTART] not noted in {self._run_dir.restarts}: {error.strerror or error}")

    def _given_up(self, failure: RankzeroError, refused: str) -> RankzeroError:
        """The last failure, and that there were others before it."""
        first, *rest = failure.problems
        kept = "; restarts.jsonl in the run directory has what ended each start" if self._recorded else ""
        given_up = type(failure)([Problem(first.what, first.where, f"{refused}{kept}. {first.hint}".strip()), *rest])
        for note in _notes(failure):
            given_up.add_note(note)
        return given_up

    def _say(self, text: str) -> None:
        write_stderr(self._redact(printable(f"{datetime.now():%H:%M:%S} {text}\n")))


def _notes(failure: RankzeroError) -> list[str]:
    """The traceback of an internal error."""
    return list(getattr(failure, "__notes__", []))
