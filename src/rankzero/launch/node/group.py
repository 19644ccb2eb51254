"""One command in a warm pod and all processes that come of it: started, watched, ended. Knows nothing of what it does.

`python -m rankzero.launch.node.group ROOT run ORDER` runs a command after ending the one before, and leaves with its
exit code; `… ROOT end ID` ends the command of that order, or keeps it from starting, and `… ROOT end` whatever runs.
ROOT/group.json says which process leads the group, ROOT/ended/ID that an order is not to go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL, where an order does not say."""
BEAT_SECONDS = 30.0
"""How often whoever listens is shown that the connection lives: a command may print nothing for long."""
MARK_VARIABLE = "RANKZERO_DEV_RUN"
"""In the environment of all that a command starts: launchers put their workers into groups of their own."""
_POLL_SECONDS = 0.05
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


def run(root: Path, order: Order, work: Path) -> int:
    """End what ran before, run a command with its two outputs as one, and return its exit code as a shell would say it.

    What the command leaves running ends with it. Raises BrokenPipeError where nobody listens any more, after ending it.
    """
    end_group(root)
    try:
        return _ENDED if _is_ended(root, order) else _run(root, order, work)
    finally:
        if order.id:
            _note_of(root, order.id).unlink(missing_ok=True)


def _run(root: Path, order: Order, work: Path) -> int:
    try:
        process, mark = begin(root, order, work)
    except OSError as error:
        print(f"{order.command[0]}: {error.strerror}", flush=True)
        return _NOT_STARTED
    try:
        # Whoever ends it now finds the group; whoever did before has left a note.
        code = _ENDED if _is_ended(root, order) else _wait(process)
    finally:
        end_group(root, meanwhile=process.poll, only=mark)
    return code if code >= 0 else 128 - code


def end(root: Path, order: str) -> None:
    """End the command of an order, or keep it from starting: the order may be on its way, or wait for the command
    before to save."""
    note = _note_of(root, order)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    finally:  # what runs is ended on a full disk, too
        end_group(root, only=order)


def _note_of(root: Path, order: str) -> Path:
    return root / "ended" / order


def _is_ended(root: Path, order: Order) -> bool:
    return bool(order.id) and _note_of(root, order.id).exists()


def begin(root: Path, order: Order, work: Path, output: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a command as ROOT's group, its two outputs as one. Returns it and the mark of all that comes of it. Raises
    OSError."""
    mark = uuid4().hex
    work.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        order.command,
        cwd=work,
        env={**os.environ, **order.env, MARK_VARIABLE: mark},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    note = {"leader": process.pid, "started": _started(process.pid), "mark": mark, "grace": order.grace}
    note["order"] = order.id
    _write(root / "group.json", json.dumps(note))
    return process, mark


def leads(root: Path) -> int | None:
    """The process that leads ROOT's group, while it runs."""
    try:
        note = json.loads((root / "group.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    leader = int(note["leader"])
    return leader if _started(leader) == note["started"] else None


def end_group(root: Path, *, meanwhile: Callable[[], object] = lambda: None, only: str | None = None) -> bool:
    """SIGTERM to the group, when its leader is gone to what else it has started, and SIGKILL to all that is left after
    the grace period. Returns whether there was anything. With `only`, nothing is done unless the group is still the one
    of this mark, or order."""
    try:
        note = json.loads((root / "group.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    leader, mark = int(note["leader"]), str(note["mark"])
    if only not in (None, mark, note.get("order")):
        return False
    if not _alive(leader, note["started"], mark):
        return False
    _signal(leader, note["started"], signal.SIGTERM)
    deadline = time.monotonic() + float(note["grace"])
    orphans_told = False
    while _alive(leader, note["started"], mark) and time.monotonic() < deadline:
        if not orphans_told and _started(leader) != note["started"]:  # nobody else would tell them
            orphans_told = True
            _signal_marked(mark, signal.SIGTERM)
        meanwhile()
        time.sleep(_POLL_SECONDS)
    _signal(leader, note["started"], signal.SIGKILL)
    _signal_marked(mark, signal.SIGKILL)
    return True


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait(BEAT_SECONDS)
        except subprocess.TimeoutExpired:
            os.write(2, b"\0")


def _signal(leader: int, started: str, number: int) -> None:
    """To the group, unless its number is another process's by now."""
    if _started(leader) in ("", started):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _signal_marked(mark: str, number: int) -> None:
    for pid in _marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _alive(leader: int, started: str, mark: str) -> bool:
    return _started(leader) == started or bool(_marked(mark))


def _started(pid: int) -> str:
    """When a process started, in ticks since boot, which tells it from a later one of its number; empty where it is
    gone, or has ended and only waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


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


def _write(path: Path, text: str) -> None:
    staged = path.with_suffix(".new")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def main() -> None:
    """Do as the arguments say."""
    root, verb = Path(sys.argv[1]), sys.argv[2]
    root.mkdir(parents=True, exist_ok=True)
    if verb == "end":
        end(root, sys.argv[3]) if len(sys.argv) > 3 else end_group(root)
        return
    told = json.loads(sys.argv[3])
    order = Order(told["command"], told["env"], told["grace"], told.get("id", ""))
    sys.exit(run(root, order, root / told["work"]))


if __name__ == "__main__":
    main()
