"""Ranks that do not get on: noticed by what they say of themselves, their stacks kept, their start ended.

The launcher is a process of its own, so a worker that holds the interpreter's lock, or is suspended, is seen too. Only
training steps are judged, by how long they took before: the first one of a start may compile, and evaluations, saving
and loading take what they take, each with a time limit of its own. Knows nothing of what a step is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rankzero.errors import PeerLostError, RankzeroError, ServiceError
from rankzero.launch.processes import Workers, in_collective
from rankzero.run_dir.handover import Beat, read_beat
from rankzero.run_dir.paths import RunDir

FLOOR_SECONDS = 30.0
"""No step of any run is late before this."""
COMPILED_FLOOR_SECONDS = 300.0
"""With train.torch_compile, which compiles again in the middle of a step where lengths are new to it."""
TIMES_MEDIAN = 5.0
LOOK_SECONDS = 0.5
PY_SPY_SECONDS = 10.0
WRITE_SECONDS = 10.0
"""How long the evidence may take to write: the run directory itself may be what hangs."""
LEAVE_SECONDS = 120.0
"""How long a process may take from its last work on a run to its end: pages are written, and trackers told."""
_AS_LONG_AS_IT_TAKES = ("save", "result", "ending")
"""What has time limits of its own, or none: a volume may be slow."""
_AGAIN = "the same command continues from the newest checkpoint"


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that takes too long, or what comes after the last one."""

    step: int
    seconds: float
    median: float
    """Of the steps before it; 0 where there was none."""
    leaving: bool = False

    def __str__(self) -> str:
        if self.leaving:
            return f"a process has not left {self.seconds:.0f} s after its last work"
        usual = f" (a step takes {self.median:.3g} s)" if self.median else ""
        return f"step {self.step} has not ended after {self.seconds:.0f} s{usual}"


@dataclass(slots=True)
class _Rank:
    beat: Beat | None = None
    since: float = 0.0
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=64))


class Progress:
    """Whether ranks get on, from their beats. Pure: the time is given, on any clock that never goes back."""

    def __init__(self, ranks: int, floor_seconds: float = FLOOR_SECONDS) -> None:
        self._ranks = [_Rank() for _ in range(ranks)]
        self._floor = floor_seconds
        self.waits_for_others = False
        """Whether the loop of a rank elsewhere is over, for whose end those here wait."""

    def look(self, beats: Sequence[Beat | None], now: float) -> Stall | None:
        """Take note of the beats; what is late, if anything is."""
        for rank, beat in zip(self._ranks, beats, strict=True):
            self._note(rank, beat, now)
        return self._latest(now)

    def gets_on(self, now: float) -> bool:
        """Whether a run that was asked to stop is on its way to that, by the beats that were looked at last: it saves,
        or is in a step that is not late. Of a start's first step nobody knows when it is."""
        if self._latest(now) is not None:
            return False
        beats = [rank.beat for rank in self._ranks if rank.beat is not None]
        known = (*_AS_LONG_AS_IT_TAKES, "leaving")
        return any(beat.activity in known or (beat.activity == "step" and beat.begun > 1) for beat in beats)

    @property
    def over(self) -> bool:
        """Whether the loop of some rank is over, so that the others wait for it to leave, and then notice."""
        return any(rank.beat is not None and rank.beat.activity in ("ending", "leaving") for rank in self._ranks)

    def _latest(self, now: float) -> Stall | None:
        stalls = [stall for rank in self._ranks if (stall := self._late(rank, now)) is not None]
        told = [stall for stall in stalls if stall.leaving or not (self.over or self.waits_for_others)]
        return max(told, key=lambda stall: stall.seconds, default=None)

    def forgive(self, now: float) -> None:
        """Begin to wait anew: somebody has paused the run."""
        for rank in self._ranks:
            rank.since = now

    def _note(self, rank: _Rank, beat: Beat | None, now: float) -> None:
        before = rank.beat
        if beat != before:
            if before is not None and beat is not None and before.activity == "step":
                rank.steps.append((now - rank.since) / max(1, beat.begun - before.begun))
            rank.beat, rank.since = beat, now

    def _late(self, rank: _Rank, now: float) -> Stall | None:
        beat, seconds = rank.beat, now - rank.since
        if beat is not None and beat.activity == "leaving":
            return Stall(beat.step + 1, seconds, 0.0, leaving=True) if seconds > LEAVE_SECONDS else None
        if beat is None or beat.activity != "step" or beat.begun <= 1:
            return None
        usual = median(rank.steps) if rank.steps else 0.0
        return Stall(beat.step + 1, seconds, usual) if seconds > max(self._floor, TIMES_MEDIAN * usual) else None


class HangWatch:
    """Looks after the workers of one start.

    `alone`: no other machine has workers of this run. `attended`: where all are suspended, somebody has paused the run.
    """

    def __init__(
        self,
        workers: Workers,
        run_dir: RunDir,
        say: Callable[[str], None],
        *,
        compiled: bool,
        alone: bool,
        attended: bool,
    ) -> None:
        self._workers, self._run_dir, self._say = workers, run_dir, say
        self._alone, self._attended = alone, attended
        self._progress = Progress(len(workers.beats), COMPILED_FLOOR_SECONDS if compiled else FLOOR_SECONDS)
        self._next = 0.0
        self._told: int | None = None

    def look(self, *, end: bool) -> None:
        """Now and then: keep the evidence of a hang, and end the start. Returns at once where nothing is wrong.

        `end`: also where a step is only late, which a slow volume or a debugger may cause: with nobody to start the run
        again, it is said and waited for.
        """
        now = time.monotonic()
        if now < self._next or not self._workers.running() or self._workers.failing:
            return
        self._next = now + LOOK_SECONDS
        suspended, paused = self._workers.long_suspended(), self._attended and self._workers.all_suspended()
        stall = self._progress.look([read_beat(path) for path in self._workers.beats], now)
        if paused:
            self._progress.forgive(now)
        elif suspended:
            self._workers.end(self._found(suspended, None))
        elif stall is not None and (end or self._told != stall.step):
            self._told = stall.step
            found = self._found([], stall)
            if end:
                self._workers.end(found)
            else:
                self._say(f"{found.problems[0]}; it is waited for, since nothing would start the run again")

    @property
    def over(self) -> bool:
        """Whether the loop of a rank here is over, by its beats: ranks on other nodes wait for it to leave."""
        return self._progress.over

    def wait_for_others(self) -> None:
        """The loop of a rank on another node is over: a step here that waits for it is not late."""
        self._progress.waits_for_others = True

    def gets_on(self) -> bool:
        """Whether the workers, asked to stop, are on their way to that: what they save is not cut off. What one that
        has left said last is nothing that goes on."""
        now, workers = time.monotonic(), self._workers
        ranks = zip(workers.beats, workers.processes, strict=True)
        self._progress.look([read_beat(path) if process.poll() is None else None for path, process in ranks], now)
        return self._progress.gets_on(now)

    def _found(self, suspended: list[int], stall: Stall | None) -> RankzeroError:
        """Who is waited for, with the stacks of all kept."""
        workers = self._workers
        places = workers.ask_for_stacks()
        beats = [beat for path in workers.beats if (beat := read_beat(path)) is not None]
        step = stall.step if stall is not None else min((beat.step + 1 for beat in beats), default=0)
        kept = self._keep(step, str(stall or "some are suspended"))
        hint = f"the stacks of all ranks are in {kept}; {_AGAIN}" if kept else _AGAIN
        if suspended:
            names = ", ".join(workers.name(local) for local in suspended)
            return ServiceError(f"{names} was suspended (SIGSTOP) while the others waited", hint=hint)
        busy, silent = waited_for(places)
        stuck = busy or sorted(places)
        at = [f"{workers.name(local)}{f' at {places[local]}' if places[local] else ''}" for local in stuck]
        if busy and len(busy) < len(places):
            kind = ServiceError if self._alone or not silent else PeerLostError
            unheard = "".join(f"; {workers.name(local)} has not answered" for local in silent)
            return kind(f"{stall}: the others wait for {', '.join(at)}{unheard}", hint=hint)
        # All wait, or all are stuck in the same way. Where there are other machines it may be the fault of one of them:
        # a node that has lost a peer leaves it to the others to find out.
        kind = ServiceError if self._alone else PeerLostError
        return kind(f"{stall}: {', '.join(at)}", hint=hint)

    def _keep(self, step: int, why: str) -> Path | None:
        """Write the evidence; None where the volume does not take it in time."""
        directory, begun = self._run_dir.hang(step), threading.Event()
        writing = threading.Thread(target=_write, args=(self._workers, directory, why, begun), daemon=True)
        writing.start()
        writing.join(PY_SPY_SECONDS + WRITE_SECONDS)
        return directory if not writing.is_alive() and begun.is_set() else None  # to look at it might hang, or fail


def waited_for(places: Mapping[int, str]) -> tuple[list[int], list[int]]:
    """Of ranks and where they are (`file:line in function`; empty: it has not answered): for which the others wait, and
    which of those that are left have not answered. On a busy machine they may be about to, or be stuck themselves;
    where nobody was found who is, they are."""
    busy = [local for local, place in places.items() if place and not in_collective(place)]
    silent = [local for local, place in places.items() if not place]
    return (busy, silent) if busy else (silent, [])


def _write(workers: Workers, directory: Path, why: str, begun: threading.Event) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # the hang is told all the same
        directory.mkdir(parents=True, exist_ok=True)
        begun.set()
        for local, process in enumerate(workers.processes):
            path = directory / f"rank-{workers.rank(local)}.txt"
            with path.open("a", encoding="utf-8") as file:
                state = f"{workers.name(local)}, {workers.state(local)}, {read_beat(workers.beats[local])}"
                file.write(f"{now} {state}: {why}\n{workers.stack(local)}\n")
                file.write(_py_spy(process.pid))
        for trace in workers.collective_traces():
            shutil.copy(trace, directory)


def _py_spy(pid: int) -> str:
    """The stacks with C frames, where that program is there and may look; a suspended process has no others."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PY_SPY_SECONDS,
            env={"PATH": os.environ.get("PATH", "")},
            check=False,
        )
        return f"{done.stdout}\n" if done.returncode == 0 else ""
    return ""
