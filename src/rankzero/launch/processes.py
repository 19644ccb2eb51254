"""The processes of a run on one machine: started, watched, signalled, and none left behind. Knows nothing of nodes.

A worker is `python -m rankzero.engine.worker RUN.json`. Rank 0's standard output is its report; errors come as files.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankzero import errors
from rankzero.errors import INTERRUPTED, ExitCode, RankzeroError, ServiceError, StoppedError
from rankzero.machine import usable_cores
from rankzero.run_dir.handover import (
    ERROR_FILE_VARIABLE,
    PARENT_VARIABLE,
    STACK_FILE_VARIABLE,
    STARTED_VARIABLE,
    read_error,
)

PEER_SECONDS = 10.0
"""How long peers of a dead worker may take to notice and leave by themselves."""
SUSPENDED_SECONDS = 30.0
"""How long a worker may be suspended while the others wait for it."""
STACK_SECONDS = 2.0
"""How long a worker may take to write where it is."""
POLL_SECONDS = 0.05

OpenStderr = Callable[[int], IO[bytes] | int | None]
"""Where the standard error of a rank goes, as subprocess takes it."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which ranks run here, of how many."""

    first: int
    count: int
    world_size: int


class Workers:
    """The workers of one start, in the order of their local ranks."""

    def __init__(self, directory: Path, ranks: Ranks, *, module: str = "rankzero.engine.worker") -> None:
        self._directory, self._ranks, self._module = directory, ranks, module
        self.processes: list[subprocess.Popen[bytes]] = []
        self._first_failed: int | None = None
        self._failed_at = 0.0
        self._ended: RankzeroError | None = None
        self._suspended_since: dict[int, float] = {}
        self._late: dict[int, str] = {}
        self._passed_on: set[int] = set()
        self._asked = itertools.count()

    def start(self, payload: Path, env: Mapping[str, str], started: float, open_stderr: OpenStderr) -> None:
        """Start all of them; `env` has the rendezvous."""
        ranks = self._ranks
        for local in range(ranks.count):
            place = {
                "RANK": ranks.first + local,
                "LOCAL_RANK": local,
                "WORLD_SIZE": ranks.world_size,
                "LOCAL_WORLD_SIZE": ranks.count,
                ERROR_FILE_VARIABLE: self._directory / f"error-{local}.json",
                STACK_FILE_VARIABLE: self._stack(local),
                STARTED_VARIABLE: started,
                PARENT_VARIABLE: os.getpid(),
            }
            defaults = {"OMP_NUM_THREADS": str(max(1, usable_cores() // ranks.count))}
            with (self._directory / f"stdout-{local}").open("wb") as stdout:
                stderr = open_stderr(local)
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", self._module, str(payload)],
                        env={**defaults, **env, **{key: str(value) for key, value in place.items()}},
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        process_group=0,  # Ctrl-C reaches this process only, which passes it on once
                    )
                )
                if stderr is not None and not isinstance(stderr, int):
                    stderr.close()

    def running(self) -> bool:
        """Whether any is alive. Notes which one failed first."""
        if self._first_failed is None:
            codes = [process.poll() for process in self.processes]
            self._first_failed = next((local for local, code in enumerate(codes) if code not in (None, 0)), None)
            self._failed_at = time.monotonic()
        return any(process.poll() is None for process in self.processes)

    def peers_are_late(self, grace_seconds: float) -> bool:
        """Whether one failed and the others had their time to notice. A stopped one's peers are still saving; those
        that are suspended never will, and those of an interrupted one need not."""
        if self._first_failed is None:
            return False
        code = self.processes[self._first_failed].returncode
        left = [local for local, process in enumerate(self.processes) if process.poll() is None]
        if code == INTERRUPTED or (left and len(self._suspended()) == len(left)):
            return True
        return time.monotonic() - self._failed_at > (grace_seconds if code == ExitCode.STOPPED else PEER_SECONDS)

    def end_late_peers(self) -> None:
        """End those that are late, after asking them where they are: of peers that waited for one, that one is left."""
        self._late = dict.fromkeys(self._suspended(), ", which is suspended")
        asked = [local for local, process in enumerate(self.processes) if process.poll() is None]
        asked = [local for local in asked if self._listens(local) and local not in self._late]
        for local in asked:
            self.processes[local].send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_SECONDS
        while not all(_innermost(self._stack(local)) for local in asked) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for local, process in enumerate(self.processes):
            if process.poll() is None and local not in self._late:
                place = _innermost(self._stack(local))
                self._late[local] = f" at {place}" if place else ""
        self.kill()

    def end_where_suspended(self, *, all_of_them: bool) -> None:
        """End all where some have been suspended for long, which the others would wait for until their time limit.

        `all_of_them`: also where none is left to wait here. Without it that is someone's pause.
        """
        suspended = self._suspended()
        now = time.monotonic()
        self._suspended_since = {local: self._suspended_since.get(local, now) for local in suspended}
        if not suspended or (len(suspended) == len(self.processes) and not all_of_them):
            return
        long = [local for local, since in self._suspended_since.items() if now - since > SUSPENDED_SECONDS]
        if long:
            ranks = ", ".join(str(self._ranks.first + local) for local in long)
            what = f"process {ranks} was suspended (SIGSTOP) for {SUSPENDED_SECONDS:.0f} s while the others waited"
            self._ended = ServiceError(what, hint="the same command continues from the newest checkpoint")
            self.kill()

    @property
    def interrupted(self) -> bool:
        """Whether a second Ctrl-C has ended one, which has said so."""
        return any(process.returncode == INTERRUPTED for process in self.processes)

    def _stack(self, local: int) -> Path:
        """Where a worker writes its stacks when it gets SIGUSR1; it makes the file when it begins to listen."""
        return self._directory / f"stack-{local}"

    def _listens(self, local: int) -> bool:
        return self._stack(local).exists()

    def _suspended(self) -> list[int]:
        return [local for local, process in enumerate(self.processes) if _is_suspended(process)]

    def ask_to_stop(self, number: int) -> None:
        """Pass a stop signal on, the first time: a second one would end processes that are saving.

        Callable from a signal handler at any moment, hence the counter, which is drawn from in one step.
        """
        if next(self._asked) == 0:
            self.signal(number)

    def signal(self, number: int) -> None:
        """Pass a signal on, also to those that are suspended: they go on to hear it. What does not listen yet is ended
        by SIGTERM instead of Ctrl-C's signal, at which Python would print where it was."""
        for local, process in enumerate(self.processes):
            heard = number if self._listens(local) else signal.SIGTERM
            self._passed_on.add(heard)
            for each in (heard, signal.SIGCONT):
                if process.poll() is None:
                    process.send_signal(each)

    def kill(self) -> None:
        """End whatever is left, with all that they have started: each leads a group of its own."""
        for process in self.processes:
            process.poll()
            with suppress(ProcessLookupError, PermissionError):  # nobody is left; some systems say it in this way
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def failure(self) -> RankzeroError | None:
        """What the first one that failed said; None where all succeeded. Of several the one that did not lose a peer:
        processes of a dead one fail too, and theirs would only bury the cause."""
        if self._ended is not None:
            return self._ended
        failed = [local for local, process in enumerate(self.processes) if process.returncode != 0]
        if not failed:
            return None
        first = failed[0] if self._first_failed is None else self._first_failed
        found = {local: self._error_of(local) for local in [first, *failed]}
        if self._late and isinstance(found[first], errors.PeerLostError):
            return self._hung()
        return next((error for error in found.values() if not isinstance(error, errors.PeerLostError)), found[first])

    def _hung(self) -> RankzeroError:
        """Those that were left when the others had given up waiting."""
        words = [f"process {self._ranks.first + local}{place}" for local, place in sorted(self._late.items())]
        what = f"the other processes waited in vain for {', '.join(words)}"
        return ServiceError(what, hint="the same command continues from the newest checkpoint")

    def report(self) -> str:
        """Rank 0's report as JSON."""
        return (self._directory / "stdout-0").read_text(encoding="utf-8")

    def _error_of(self, local: int) -> RankzeroError:
        """A worker's own error, or what its death says."""
        rank, code = self._ranks.first + local, self.processes[local].returncode
        error = read_error(self._directory / f"error-{local}.json")
        if error is not None:
            return error
        if code == ExitCode.STOPPED:
            return StoppedError("stopped", hint="give the same command again")
        ending = -code if code < 0 else code - 128
        if ending in self._passed_on:  # before it could listen, or it was asked twice
            name = signal.Signals(ending).name
            return StoppedError(f"stopped by {name} without saving", hint="give the same command again")
        stderr = self._directory / f"stderr-{local}"
        tail = stderr.read_text(encoding="utf-8", errors="replace")[-2000:] if stderr.is_file() else ""
        if code < 0:
            name = signal.Signals(-code).name
            hint = "the machine may be out of memory: lower train.micro_batch_tokens" if name == "SIGKILL" else ""
            return RankzeroError(f"process {rank} was killed by {name}\n{tail}".rstrip(), hint=hint)
        return RankzeroError(f"process {rank} failed with exit code {code}\n{tail}".rstrip())


def _innermost(stack: Path) -> str:
    """`file:line in function`, where the main thread of a worker is; empty where it has not said so (yet)."""
    text = stack.read_text(encoding="utf-8", errors="replace") if stack.is_file() else ""
    threads = re.findall(r"^(?:Current t|T)hread .*\n((?:  .*\n)+)", text, flags=re.MULTILINE)
    frame = re.match(r'  File "(.*)", line (\d+) in (.*)\n', threads[-1]) if threads else None
    return f"{frame[1]}:{frame[2]} in {frame[3]}" if frame else ""


def _is_suspended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has been stopped by SIGSTOP or its like. A debugger's stop is another; without /proc: False."""
    if process.poll() is not None:
        return False
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


@contextmanager
def started(
    directory: Path, ranks: Ranks, payload: Path, env: Mapping[str, str], at: float, open_stderr: OpenStderr
) -> Iterator[Workers]:
    """Workers for the duration; whatever happens, none is left behind."""
    workers = Workers(directory, ranks)
    try:
        workers.start(payload, env, at, open_stderr)
        yield workers
    finally:
        workers.kill()


@contextmanager
def signals_to(handler: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
    """Call `handler` on these signals for the duration."""
    previous = {number: signal.signal(number, lambda received, _frame: handler(received)) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
