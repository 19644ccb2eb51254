"""The training side of what is sent to trackers' servers: start the process that sends, and end it. Sends nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rankzero.errors import RankzeroError, StorageError
from rankzero.run_dir.atomic import write_text
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import spec_hash, to_yaml
from rankzero.spec.run_spec import RunSpec
from rankzero.track.send import FLUSH_SECONDS, server_modules
from rankzero.track.spool import MADE_OF, Sent, last_end, path_of, setting_hash, unsent

Say = Callable[[str], None]
_IDLE_SECONDS = 5.0
"""How long the sender may take for the rest in the time that others leave."""
_LEAVING_SECONDS = 5.0
"""More than the sender takes by itself, before it is killed."""


class Sending:
    """The process that sends a run's numbers, where its spec has a tracker that is a server. What fails is said."""

    def __init__(self, run_dir: RunDir, spec: RunSpec | None, warn: Say) -> None:
        self._run_dir, self._spec, self._warn = run_dir, spec, warn
        self._names = () if spec is None else tuple(server_modules(spec.tracking))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, anew: Mapping[str, Any] | None) -> None:
        """Begin to send, in the time that training leaves. `anew`: where the run begins with its first step, what it is
        made of, as checkpoints' manifests have it: what an earlier run of another spec, or of other content, has sent
        from this directory is not its own."""
        if self._spec is None:
            return
        try:
            if anew is not None:  # also where nothing is sent: a later start may send
                spec, made_of = setting_hash(self._spec), {name: anew.get(name) for name in MADE_OF}
                before = {name: value for name, value in made_of.items() if name != "eval_data"}
                self._forget_other_runs(((spec, made_of), (spec_hash(self._spec), before)))
                for path in (self._run_dir.tracking / f"{name}.json" for name in self._names):
                    if not path.exists():
                        Sent(spec=spec, made_of=made_of).write(path)
            if self._names:
                self._process = self._started()
                _only_when_idle(self._process.pid)
        except (OSError, StorageError) as error:
            if self._names:
                self._say_nothing_is_sent(error)

    def _say_nothing_is_sent(self, error: Exception) -> None:
        names, reason = ", ".join(self._names), getattr(error, "strerror", None) or error
        self._warn(f"[TRACK] nothing is sent to {names} in this start: {reason}")

    def _started(self) -> subprocess.Popen[bytes]:
        """Another group than ours, so that Ctrl-C does not reach it."""
        command = [sys.executable, "-P", "-m", "rankzero.track.send", str(self._run_dir.root)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0)

    def finish_what_is_left(self) -> None:
        """Of a run that is over: send what its starts could not, and everything to a tracker that was switched on
        since."""
        if any(_left(self._run_dir, name) for name in self._names):
            try:
                self._name_trackers()
            except (OSError, RankzeroError) as error:
                self._say_nothing_is_sent(error)
            else:
                self.start(anew=None)

    def _name_trackers(self) -> None:
        """Into the run's own spec, by which is sent now and by `track sync`: all else in it is as it was trained."""
        from rankzero.spec.load import load_run_spec

        kept, path = load_run_spec(self._run_dir.spec, env={}).spec, self._run_dir.spec
        if self._spec is not None and kept.tracking != self._spec.tracking:
            write_text(path, to_yaml(kept.model_copy(update={"tracking": self._spec.tracking})))

    def _forget_other_runs(self, known_as: Collection[tuple[str, Mapping[str, Any]]]) -> None:
        """Drop what was noted of runs of other specs or of other content, and the machine's numbers where no server has
        this run yet: they are an earlier one's. `known_as`: how this one's spec and content may be noted. Raises
        OSError."""
        begun = False
        for path in sorted(self._run_dir.tracking.glob("*.json")):
            with suppress(ValueError, TypeError):
                noted = Sent.read(path)
                if (noted.spec, noted.made_of) in known_as:
                    begun = True
                    continue
            path.unlink(missing_ok=True)
        if not begun:
            path_of("system", self._run_dir).unlink(missing_ok=True)

    def end(self, inform: Say) -> None:
        """Let it send the rest, for a bounded time, and say what every server has."""
        if self._process is None:
            return
        if not _ends(self._process, _IDLE_SECONDS):
            # Others keep the processors busy, and who has yielded them cannot take that back. Whatever it was at, the
            # next one knows what was sent.
            _end_now(self._process)
            with suppress(OSError):  # none can be started: what is not sent is said below
                self._process = self._started()
                if not _ends(self._process, FLUSH_SECONDS + _LEAVING_SECONDS):
                    _end_now(self._process)
        for name in self._names:
            text = _left(self._run_dir, name)
            if text is None:
                inform(f"[TRACK] {name} has the whole run: {_read(self._run_dir, name).link}")
            else:
                again = f"rankzero track sync {shlex.quote(str(self._run_dir.root))}"
                self._warn(f"[TRACK] {name}: {text}; `{again}` sends the rest")


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Tell it that the run is over. Whether it ends within this time."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def _end_now(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _only_when_idle(pid: int) -> None:
    """Let a process just started run only where those that train leave a core idle.

    Why it is no session of its own: Linux shares processors among sessions first (sched(7), autogroup), and to a
    priority outside the own one it pays no heed.
    """
    with suppress(OSError):  # it is gone, or the system refuses: then it shares the cores
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, 19)


@contextmanager
def sending(run_dir: RunDir, spec: RunSpec | None, inform: Say, warn: Say) -> Iterator[Sending]:
    """What is started within has until the end of the block, and a bounded time then. None: this process sends nothing.

    Enclose with it what notes how the run ended: servers are told that too.
    """
    process = Sending(run_dir, spec, warn)
    try:
        yield process
    finally:
        with suppress(OSError):
            process.end(inform)


def _read(run_dir: RunDir, name: str) -> Sent:
    try:
        return Sent.read(run_dir.tracking / f"{name}.json")
    except (OSError, ValueError, TypeError):
        return Sent()


def _left(run_dir: RunDir, name: str) -> str | None:
    """What a server lacks of a run that is over, in words; None where it has everything."""
    sent = _read(run_dir, name)
    try:
        steps, end = unsent(run_dir, sent), last_end(run_dir)
    except (OSError, StorageError):
        return None
    reason = f" ({sent.error})" if sent.error else ""
    if steps:
        return f"{steps} step{'s' * (steps != 1)} not sent yet{reason}"
    if sent.ended is None or end != (sent.ended, sent.ended_start):
        return f"the end of the run not sent yet{reason}"
    return f"not all of it is sent yet{reason}" if sent.error else None
