"""The processes of a run on one machine: started, watched, signalled, and none left behind. Knows nothing of nodes.

A worker is `python -m rankzero.start MODULE RUN.json`. Rank 0's standard output is its report; errors come as files.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankzero import errors
from rankzero.errors import INTERRUPTED, ExitCode, RankzeroError, ServiceError, StoppedError
from rankzero.machine import usable_cores
from rankzero.run_dir.handover import (
    BEAT_FILE_VARIABLE,
    ERROR_FILE_VARIABLE,
    PARENT_VARIABLE,
    STACK_FILE_VARIABLE,
    STARTED_VARIABLE,
    read_error,
    room_for_a_start,
)
from rankzero.spec.run_options import RunOptions

TRAINS, TESTS = "rankzero.engine.worker", "rankzero.engine.smoke"
"""Modules of workers: those of a run, and those that test its place."""
PEER_SECONDS = 10.0
"""How long peers of a dead worker may take to notice and leave by themselves."""
SUSPENDED_SECONDS = 20.0
"""How long a worker may be suspended while the others wait for it. Well below the time in which no step is late
(hang.py): other nodes' launchers, which see only that theirs wait, must not be first to end the start."""
STACK_SECONDS = 10.0
"""How long a worker may take to write where it is, on a machine that is busy or swaps."""
POLL_SECONDS = 0.05

LAST_WORDS = 2000
"""Characters of a worker's standard error that are kept for an error."""
_HOST = socket.gethostname()
_ABORTED = re.compile(r"(?i)watchdog caught collective operation timeout|nccl operations have failed or timed out")
"""How NCCL's own thread ends a process whose peer is gone or does not answer: by SIGABRT, with these words."""
_KINDS: dict[int, type[RankzeroError]] = {
    kind.exit_code: kind
    for kind in (errors.DataError, ServiceError, errors.StorageError, errors.AccessError, errors.ConfigError)
}
"""Of errors, by the exit codes that no other program ends with by chance."""
_AGAIN = "the same command continues from the newest checkpoint"

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

    def __init__(self, directory: Path, ranks: Ranks, *, module: str = TRAINS) -> None:
        self._directory, self._ranks, self._module = directory, ranks, module
        self.processes: list[subprocess.Popen[bytes]] = []
        self._first_failed: int | None = None
        self._failed_at = 0.0
        self._ended: RankzeroError | None = None
        self._suspended_since: dict[int, float] = {}
        self._late: dict[int, str] = {}
        self._late_wait = False
        """Whether all that are late are in a collective, so for others than each other."""
        self._passed_on: set[int] = set()
        self._asked = itertools.count()

    @property
    def beats(self) -> list[Path]:
        """Where each says what it is doing."""
        return [self._directory / f"beat-{local}" for local in range(self._ranks.count)]

    def rank(self, local: int) -> int:
        """Of all of the run."""
        return self._ranks.first + local

    def name(self, local: int) -> str:
        """`rank 3 on gpu-a`."""
        return f"rank {self.rank(local)} on {_HOST}"

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
                BEAT_FILE_VARIABLE: self.beats[local],
                STARTED_VARIABLE: started,
                PARENT_VARIABLE: os.getpid(),
            }
            defaults = {
                "OMP_NUM_THREADS": str(max(1, usable_cores() // ranks.count)),
                # NCCL's record of the last collectives: written to the second when something is written to the first.
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(self._directory / "nccl-"),
                "TORCH_FR_DUMP_TEMP_FILE": str(self._directory / "nccl-trace-rank-"),
            }
            with room_for_a_start():
                stdout, stderr = (self._directory / f"stdout-{local}").open("wb"), open_stderr(local)
            with stdout:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "rankzero.start", self._module, str(payload)],
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

    @property
    def failing(self) -> bool:
        """Whether one has failed, so that the others are about to notice."""
        return self._first_failed is not None

    def peers_are_late(self, grace_seconds: float, gets_on: Callable[[], bool]) -> bool:
        """Whether one failed and the others had their time to notice. A stopped one's peers are still saving, after
        their time as long as they get on with it; those that are suspended never will, and those of an interrupted one
        need not."""
        if self._first_failed is None:
            return False
        code = self.processes[self._first_failed].returncode
        left = [local for local, process in enumerate(self.processes) if process.poll() is None]
        if code == INTERRUPTED or (left and len(self._suspended()) == len(left)):
            return True
        waited = time.monotonic() - self._failed_at
        return waited > grace_seconds and not gets_on() if code == ExitCode.STOPPED else waited > PEER_SECONDS

    def end_late_peers(self) -> None:
        """End those that are late, after asking them where they are: of peers that waited for one, that one is left."""
        self._late = dict.fromkeys(self._suspended(), ", which is suspended")
        places = self.ask_for_stacks()
        for local, place in places.items():
            self._late.setdefault(local, f" at {place}" if place else "")
        self._late_wait = all(in_collective(place) for place in places.values())
        self.kill()

    def ask_for_stacks(self) -> dict[int, str]:
        """Have all that are alive write where they are. Returns `file:line in function` of each; empty of one that is
        suspended, or did not answer in time."""
        alive = [local for local, process in enumerate(self.processes) if process.poll() is None]
        suspended = self._suspended()
        asked = [local for local in alive if self._listens(local) and local not in suspended]
        said = {local: len(self.stack(local)) for local in asked}  # when they were asked before
        for local in asked:
            self.processes[local].send_signal(signal.SIGUSR1)
        self._ask_for_traces(asked)
        deadline = time.monotonic() + STACK_SECONDS
        while any(self._owes_a_stack(local, said[local]) for local in asked) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return {local: _innermost(self.stack(local)[said[local] :]) if local in asked else "" for local in alive}

    def stack(self, local: int) -> str:
        """What a worker has written when it was asked where it is."""
        path = self._stack(local)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def collective_traces(self) -> list[Path]:
        """What NCCL has recorded, by rank; only kept, never read: it is a pickle."""
        return sorted(self._directory.glob("nccl-trace-rank-*"))

    def _ask_for_traces(self, asked: list[int]) -> None:
        for local in asked:
            pipe = self._directory / f"nccl-{self.rank(local)}.pipe"
            with suppress(OSError):  # no NCCL in it, or nobody who listens
                file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(file, b"1")
                os.close(file)

    def state(self, local: int) -> str:
        """`pid 12, suspended`, and the like."""
        process = self.processes[local]
        alive = process.poll() is None
        how = "suspended" if _is_suspended(process) else "running" if alive else f"ended with {process.returncode}"
        return f"pid {process.pid}, {how}"

    def long_suspended(self) -> list[int]:
        """Those that have been suspended for SUSPENDED_SECONDS, which the others would wait for until their time limit.
        Looks each time that it is called, so it has to be called now and then."""
        now = time.monotonic()
        self._suspended_since = {local: self._suspended_since.get(local, now) for local in self._suspended()}
        return [local for local, since in self._suspended_since.items() if now - since > SUSPENDED_SECONDS]

    def all_suspended(self) -> bool:
        """Whether nobody is left to wait here."""
        return len(self._suspended()) == len(self.processes)

    def end(self, error: RankzeroError) -> None:
        """End all that are left, for this reason."""
        self._ended = error
        self.kill()

    def end_overdue(self, number: int, grace_seconds: float, where: str = "", mend: str = "") -> None:
        """End those that were asked to stop by this signal and have not saved in time; `mend` says what gives more."""
        what = f"stopped by {signal.Signals(number).name}; not saved in {grace_seconds:.0f} s, so ended"
        self.end(StoppedError(what, where=where, hint=f"{_AGAIN}; {mend}" if mend else _AGAIN))

    @property
    def interrupted(self) -> bool:
        """Whether a second Ctrl-C has ended one, which has said so."""
        return any(process.returncode == INTERRUPTED for process in self.processes)

    def _stack(self, local: int) -> Path:
        """Where a worker writes its stacks when it gets SIGUSR1; it makes the file when it begins to listen."""
        return self._directory / f"stack-{local}"

    def _listens(self, local: int) -> bool:
        return self._stack(local).exists()

    def _owes_a_stack(self, local: int, said: int) -> bool:
        """Whether one that lives has written none behind the first `said` characters."""
        return self.processes[local].poll() is None and not _innermost(self.stack(local)[said:])

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
        failed = [local for local, process in enumerate(self.processes) if process.returncode != 0]
        if not failed:
            return None
        if self._ended is not None:
            return self._ended
        first = failed[0] if self._first_failed is None else self._first_failed
        found = {local: self._error_of(local) for local in [first, *failed]}
        if self._late and isinstance(found[first], errors.PeerLostError):
            elsewhere = self._late_wait and self._ranks.world_size > self._ranks.count
            return found[first] if elsewhere else self._hung()
        return next((error for error in found.values() if not isinstance(error, errors.PeerLostError)), found[first])

    def _hung(self) -> RankzeroError:
        """Those that were left when the others had given up waiting."""
        return ServiceError(f"the other processes waited in vain for {self._late_in_words()}", hint=_AGAIN)

    def _late_in_words(self) -> str:
        return ", ".join(f"process {self.rank(local)}{place}" for local, place in sorted(self._late.items()))

    def report(self) -> str:
        """Rank 0's report as JSON."""
        return (self._directory / "stdout-0").read_text(encoding="utf-8")

    def _error_of(self, local: int) -> RankzeroError:
        """A worker's own error, or what its death says."""
        rank, code = self.rank(local), self.processes[local].returncode
        error = read_error(self._directory / f"error-{local}.json")
        if error is not None:
            return error
        if code == ExitCode.STOPPED:
            return StoppedError("stopped", hint="give the same command again")
        ending = -code if code < 0 else code - 128
        if ending in self._passed_on:  # before it could listen, or it was asked twice
            name = signal.Signals(ending).name
            return StoppedError(f"stopped by {name} without saving", hint="give the same command again")
        tail = self._stderr(local)[-LAST_WORDS:]
        if code == -signal.SIGABRT and any(_ABORTED.search(self._stderr(one)) for one in range(self._ranks.count)):
            what = f"process {rank} gave up waiting for another one in a collective\n{tail}".rstrip()
            return errors.PeerLostError(what, where=self.name(local), hint=_AGAIN)
        if code < 0:
            name = signal.Signals(-code).name
            hint = "the machine may be out of memory: lower train.micro_batch_tokens" if name == "SIGKILL" else ""
            if name == "SIGABRT" and self._late and not tail:  # NCCL's words, if they were, went to the terminal
                hint = f"if it says above that a collective timed out, it waited for {self._late_in_words()}"
            return RankzeroError(
                f"process {rank} was killed by {name}\n{tail}".rstrip(), where=self.name(local), hint=hint
            )
        kind = _KINDS.get(code, RankzeroError)  # one that found no room for its error has left with its code
        return kind(f"process {rank} failed with exit code {code}\n{tail}".rstrip(), where=self.name(local))

    def _stderr(self, local: int) -> str:
        """What a worker wrote to standard error, where that is kept: what caused a crash, then its stacks."""
        path = self._directory / f"stderr-{local}"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _innermost(stack: str) -> str:
    """`file:line in function`, where the main thread of a worker is; empty where it has not said so (yet).

    The signal that asks is answered in the main thread, which faulthandler calls the current one and writes last,
    behind threads that save or listen.
    """
    frames = re.findall(r'^Current thread .*\n  File "(.*)", line (\d+) in (.*)\n', stack, flags=re.MULTILINE)
    return "{}:{} in {}".format(*frames[-1]) if frames else ""


def in_collective(place: str) -> bool:
    """Whether a process that is at `file:line in function` waits for others, or reads what they have brought."""
    return "distributed_c10d" in place or place.endswith((" in sums_of_step", " in sum_over_ranks", " in wait_for_sum"))


def _is_suspended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has been stopped by SIGSTOP or its like. A debugger's stop is another; without /proc: False."""
    if process.poll() is not None:
        return False
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def module_for(options: RunOptions) -> str:
    """What workers with these options are."""
    return TRAINS if options.smoke is None else TESTS


@contextmanager
def started(
    directory: Path,
    ranks: Ranks,
    payload: Path,
    env: Mapping[str, str],
    at: float,
    open_stderr: OpenStderr,
    module: str = TRAINS,
) -> Iterator[Workers]:
    """Workers for the duration; whatever happens, none is left behind."""
    workers = Workers(directory, ranks, module=module)
    try:
        workers.start(payload, env, at, open_stderr)
        yield workers
    finally:
        workers.kill()
