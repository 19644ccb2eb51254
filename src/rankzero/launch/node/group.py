"""One command in a warm pod and all processes that come of it: started, watched, ended. Knows nothing of what it does.

`python -m rankzero.launch.node.group ROOT run ORDER` runs a command after ending the one before, and leaves with its
exit code; `… ROOT end ID` ends the command of that order, or keeps it from starting, and `… ROOT end` whatever runs.
ROOT/group.json says which process leads the group, ROOT/ended/ID that an order is not to go on.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from rankzero.errors import ExitCode
from rankzero.launch.node.beat import Beat, beating

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL, where an order does not say."""
MARK_VARIABLE = "RANKZERO_DEV_RUN"
"""In the environment of all that a command starts: launchers put their workers into groups of their own."""
SAME_MOMENT_SECONDS = 30.0
"""An order that comes so long after another's command began may have been given before that one. Longer than an order
is on its way; for longer no user's clock that is behind keeps its orders from going first."""
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0
"""How often it is looked whether anybody listens."""
NOT_BEGUN = "not begun"
"""What `end` prints where nothing of the order was there to be ended; from now on nothing of it begins."""
_NOT_STARTED = 127
_ENDED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Order:
    """A command, as whoever wants it run says it."""

    command: Sequence[str]
    env: Mapping[str, str]
    grace: float = GRACE_SECONDS
    """From SIGTERM to SIGKILL."""
    id: str = ""
    """What `end` knows it by; nothing where an older rankzero gives it."""
    by: str = ""
    """Who gives it."""
    at: float = 0.0
    """When, by the clock of whoever does: the same in all pods. Nothing where an older rankzero gives it."""


def run(root: Path, order: Order, work: Path) -> int:
    """End what ran before, run a command with its two outputs as one, and return its exit code as a shell would say it.

    What the command leaves running ends with it. Raises BrokenPipeError where nobody listens any more, after ending it.
    """
    with beating() as beat:  # what ran before may save for long
        try:
            code = _run(root, order, work, beat)
            if order.id and (why := _why_ended(root, order.id)):
                print(f"ended by {why}", flush=True)
            return code
        finally:
            if order.id:
                with suppress(OSError):  # one that stays is in no other order's way
                    _note_of(root, order.id).unlink()


def _run(root: Path, order: Order, work: Path, beat: Beat) -> int:
    with _in_turn(root):
        if not _is_ended(root, order) and not _end_earlier(root, order):
            return ExitCode.SERVICE
        beat.now()
        begun = _ENDED if _is_ended(root, order) else _begin(root, order, work)
    if isinstance(begun, int):
        return begun
    process, mark = begun
    try:
        # Whoever ends it now finds the group; whoever did before has left a note.
        code = _ENDED if _is_ended(root, order) else _wait(process, beat)
    finally:
        end_group(root, meanwhile=process.poll, only=mark)
    return code if code >= 0 else 128 - code


@contextmanager
def _in_turn(root: Path) -> Iterator[None]:
    """Of two that began at once both would run, and nobody could find one of them again."""
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another `dev run` is about to start here, and comes first", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_earlier(root: Path, order: Order) -> bool:
    """What ran before, and let both sides know: it may be another user's. Returns whether it is the order's turn."""
    before = _Group.read(root)
    if before is None or not before.is_alive():
        return True
    whose = f" of {before.by}" if before.by else ""
    if _overtook(before, order):
        another = f"another `dev run`,{whose}," if whose else "another `dev run`"
        print(f"not started: {another} was started at the same time, and goes on", flush=True)
        return False
    print(f"the command{whose} that still ran here is ended first; it has {before.grace:.0f} s to save", flush=True)
    if before.order:
        with suppress(OSError):  # a full disk: it is ended all the same
            _leave_note(root, before.order, f"another `dev run`{f', of {order.by}' if order.by else ''}")
    end_group(root)
    return True


def _overtook(before: _Group, order: Order) -> bool:
    """Whether what runs was asked for after the order was, and only came here first. Of two at once one comes first in
    some pods, the other in others: if whichever came last ended the other, neither would run in all."""
    is_young = time.monotonic() - before.begun < SAME_MOMENT_SECONDS
    return is_young and order.at > 0 and (before.at, before.order) > (order.at, order.id)


def _begin(root: Path, order: Order, work: Path) -> tuple[subprocess.Popen[bytes], str] | int:
    """As `begin`; or the exit code of a command that is not started, when it has been said why."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        return begin(root, order, work)
    except UnnotedError as error:
        print(f"not started: {error.filename}: {error.strerror}", flush=True)
        return ExitCode.STORAGE
    except OSError as error:
        print(f"{error.filename or order.command[0]}: {error.strerror}", flush=True)
        return _NOT_STARTED


def end(root: Path, order: str) -> bool:
    """End the command of an order, or keep it from starting: the order may be on its way, or wait for the command
    before to save. Returns whether it had begun. Raises OSError where it had not, and still may."""
    unnoted: OSError | None = None
    try:
        _leave_note(root, order, "")
    except OSError as error:  # what runs is ended on a full disk, too
        unnoted = error
    has_begun = end_group(root, only=order) or ((last := _Group.read(root)) is not None and last.order == order)
    if unnoted is not None and not has_begun and not _note_of(root, order).exists():
        raise unnoted
    return has_begun


def _note_of(root: Path, order: str) -> Path:
    return root / "ended" / order


def _leave_note(root: Path, order: str, why: str) -> None:
    note = _note_of(root, order)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(why, encoding="utf-8")


def _why_ended(root: Path, order: str) -> str:
    """What is to be said of it to whoever gave the order; nothing where that was asked for there."""
    try:
        return _note_of(root, order).read_text(encoding="utf-8")
    except OSError:  # none was left, or none could be
        return ""


def _is_ended(root: Path, order: Order) -> bool:
    return bool(order.id) and _note_of(root, order.id).exists()


@dataclass(frozen=True, slots=True)
class _Group:
    """What ROOT/group.json says."""

    mark: str
    grace: float
    order: str = ""
    by: str = ""
    at: float = 0.0
    begun: float = 0.0
    """By the clock that all processes of a machine share."""
    leader: int = 0
    started: str = ""
    """When the leader did. Nothing until it is known: what comes of the command is found by its mark."""

    @classmethod
    def read(cls, root: Path) -> _Group | None:
        try:
            note = json.loads((root / "group.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in note.items() if name in known})

    def write(self, root: Path) -> None:
        """Raises UnnotedError."""
        path = root / "group.json"
        staged = path.with_suffix(".new")
        try:
            staged.write_text(json.dumps(asdict(self)), encoding="utf-8")
            staged.replace(path)
        except OSError as error:
            raise UnnotedError(error.errno, error.strerror, str(path)) from error

    def is_led(self) -> bool:
        """Whether its leader runs."""
        return bool(self.started) and _started(self.leader) == self.started

    def is_alive(self) -> bool:
        """Whether anything of it runs."""
        return self.is_led() or bool(self._processes())

    def signal_each(self, number: int) -> None:
        """To all that come of it, whatever group they have made for themselves."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _processes(self) -> set[int]:
        """By their mark; and by their session or group, since a title that a process gives itself (setproctitle, as in
        vLLM and Ray) may be written over its environment."""
        is_its_number = bool(self.started) and _started(self.leader) in ("", self.started)
        return {*_marked(self.mark), *(_members(self.leader) if is_its_number else ())}

    def signal(self, number: int) -> None:
        """To the leader's group, unless its number is another process's by now."""
        if self.started and _started(self.leader) in ("", self.started):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader, number)


class UnnotedError(OSError):
    """A command is not started, since nobody could find again what comes of it."""


def begin(root: Path, order: Order, work: Path, output: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a command as ROOT's group, its two outputs as one. Returns it and the mark of all that comes of it. Raises
    UnnotedError, or OSError where it cannot be started."""
    group = _Group(uuid4().hex, order.grace, order.id, order.by, order.at, time.monotonic())
    group.write(root)
    process = subprocess.Popen(
        order.command,
        cwd=work,
        env={**os.environ, **order.env, MARK_VARIABLE: group.mark},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # and a group: what its processes put into groups of their own stays in the session
    )
    led = replace(group, leader=process.pid, started=_started(process.pid))
    try:
        led.write(root)
    except UnnotedError:
        led.signal(signal.SIGKILL)
        led.signal_each(signal.SIGKILL)
        process.wait()
        raise
    return process, group.mark


def leads(root: Path) -> int | None:
    """The process that leads ROOT's group, while it runs."""
    group = _Group.read(root)
    return group.leader if group is not None and group.is_led() else None


def end_group(root: Path, *, meanwhile: Callable[[], object] = lambda: None, only: str | None = None) -> bool:
    """SIGTERM to the group, when its leader is gone to what else it has started, and SIGKILL to all that is left after
    the grace period. Returns whether there was anything. With `only`, nothing is done unless the group is still the one
    of this mark, or order."""
    group = _Group.read(root)
    if group is None or only not in (None, group.mark, group.order) or not group.is_alive():
        return False
    group.signal(signal.SIGTERM)
    deadline = time.monotonic() + group.grace
    orphans_told = False
    while group.is_alive() and time.monotonic() < deadline:
        if not orphans_told and not group.is_led():  # nobody else would tell them
            orphans_told = True
            group.signal_each(signal.SIGTERM)
        meanwhile()
        time.sleep(_POLL_SECONDS)
    group.signal(signal.SIGKILL)
    group.signal_each(signal.SIGKILL)
    return True


def _wait(process: subprocess.Popen[bytes], beat: Beat) -> int:
    while True:
        try:
            return process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            beat.check()


def _started(pid: int) -> str:
    """When a process started, in ticks since boot, which tells it from a later one of its number; empty where it is
    gone, or has ended and only waits to be collected."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int | str) -> list[str]:
    """What /proc says of a process from its state on; nothing where it is gone, or only waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if not fields or fields[0] in "ZX" else fields


def _members(leader: int) -> list[int]:
    """Processes of the session or the group that this one leads, or led."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and str(leader) in _stat(pid)[2:4]]


def _marked(mark: str) -> list[int]:
    """Processes that have the mark in their environment, and are no zombies: those have none."""
    needle = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):  # ended meanwhile, or another user's
                if needle in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def main() -> None:
    """Do as the arguments say, or say what the disk does not take."""
    root, verb, *more = Path(sys.argv[1]), *sys.argv[2:]
    try:
        root.mkdir(parents=True, exist_ok=True)
        if verb == "run":
            sys.exit(_run_told(root, json.loads(more[0])))
        with beating():
            if not more:
                end_group(root)
            elif not end(root, more[0]):
                print(NOT_BEGUN)
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _run_told(root: Path, told: Mapping[str, Any]) -> int:
    more = {name: told[name] for name in ("id", "by", "at") if name in told}  # an older rankzero says fewer
    return run(root, Order(told["command"], told["env"], told["grace"], **more), root / told["work"])


if __name__ == "__main__":
    main()
