"""The lease: one run directory belongs to one run at a time. Knows nothing of what the run does.

`lease.json` holds a fencing token that grows with every owner, who the owner is (`owner`, a random name, since a
copy's tokens begin anew), a heartbeat counter, and the launcher that may start it again. An owner on
this host is judged by its process; one on another host, or in a container that has this one's network and so its name,
but numbers of its own for processes, or of another boot, or of another directory, as a copy's is, or hidden by /proc,
by whether its counter moves while we watch, so clocks that disagree between hosts do not matter. The file is only
changed under a short `flock`; on a volume without locks the token and the heartbeat still tell two runs apart.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rankzero.directories import there
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import storage_errors, write_text

BEAT_SECONDS = 5.0
MISSED_BEATS = 3
"""So many mean that an owner is worth a try."""
WATCH_SECONDS = 30.0
"""An owner elsewhere that has not beaten for this long has lost the directory."""
COURTESY_SECONDS, TRY_SECONDS = 3.0, 0.1
"""For how long, and how often, a lock is asked for by who goes on without it."""
LOCK_SECONDS = 60.0
"""For how long one is by who does not: what is done under it takes a moment."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _process_identity(pid: int) -> str | None:
    """Boot id and start time of a process: a recycled pid is another process. None where it does not run.

    Raises OSError where that cannot be told: `hidepid` keeps the processes of other users from /proc, and who has no
    file handle left reads nothing there.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        if not _has_number(pid):
            return None
        if there(Path("/proc/self/stat")):
            raise
        return "running"  # no /proc (macOS): existence has to do
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else f"{BOOT_ID.read_text(encoding='utf-8').strip()}:{fields[19]}"


def _has_number(pid: int) -> bool:
    """Whether a process has this number, of whichever user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _known_identity(pid: int) -> str | None:
    """None, too, where it cannot be told."""
    with suppress(OSError):
        return _process_identity(pid)
    return None


def _namespaces() -> dict[str, str]:
    """Within what process numbers mean the same (`pid`), and with whom a name is shared (`net`), by Linux."""
    found = {}
    for kind in ("pid", "net"):
        with suppress(OSError):
            found[kind] = os.readlink(f"/proc/self/ns/{kind}")
    return found


def is_of_here(current: dict[str, Any]) -> bool:
    """Whether the owner that lease.json names can be judged here by its process number.

    It cannot from beside it, in the same network with other process numbers. A container that has a network of its own
    and an earlier one's name has taken that one's place: by its number here, nobody has, the earlier one is gone.
    """
    if current.get("host") != socket.gethostname():
        return False
    theirs, ours = current.get("namespaces"), _namespaces()
    if not isinstance(theirs, dict) or not theirs or not ours:  # a lease of before, or no Linux
        return True
    return theirs.get("pid") == ours.get("pid") or theirs.get("net") != ours.get("net")


def judged_at_once(current: dict[str, Any]) -> bool:
    """Whether its owner's process number tells here whether it lives. One of another boot does not: that may have been
    this machine's, or be that of a living one with the same name. Nothing but watching tells the two apart: machines
    that share a name are often copies, which share a machine-id too, and how old the file is, some volumes say by the
    clock of whoever wrote it."""
    process = current.get("process")  # None: its own could not be told, and so neither can it be told from another
    theirs, ours = _boot(process), _boot(_known_identity(os.getpid()))
    return is_of_here(current) and process is not None and (not theirs or theirs == ours)


def lives(current: dict[str, Any]) -> bool | None:
    """Whether the process that lease.json names lives, by its number here. None: nothing but watching tells."""
    if not judged_at_once(current):
        return None
    with suppress(OSError):
        return bool(_process_identity(int(current["pid"])) == current["process"])
    return None


def _boot(process: object) -> str:
    return process.rpartition(":")[0] if isinstance(process, str) else ""


def _identity(root: Path) -> str | None:
    """What the directory is by the file system, `device:inode`; None where it does not say."""
    with suppress(OSError):
        about = root.stat()
        return f"{about.st_dev}:{about.st_ino}"
    return None


def _is_of_directory(current: dict[str, Any], root: Path) -> bool | None:
    """Whether its owner took this very directory, by its path or by what it is to the file system. If not, this is a
    copy that was made meanwhile. None: perhaps, since another mount of the same may have a device of its own."""
    theirs, ours = current.get("identity"), _identity(root)
    if not isinstance(theirs, str) or ours is None or current.get("directory") == os.path.realpath(root):
        return True  # one of before says nothing
    return True if theirs == ours else None if theirs.rpartition(":")[2] == ours.rpartition(":")[2] else False


def holder(root: Path, *, perhaps: bool = False) -> str | None:
    """The process that holds a run directory, where it is known here; `perhaps`: or may hold it. One elsewhere is only
    told by watching it, and so is what may be a copy: who takes the lease afterwards leaves both to it."""
    lease = Lease(root)
    current = lease.read()
    if "pid" not in current or not judged_at_once(current):
        return None
    alive, ours = lives(current), _is_of_directory(current, root)
    if alive is False or ours is False or (not perhaps and None in (alive, ours)):
        return None
    return f"process {current['pid']} on {current['host']}"


def known_process(pid: int) -> dict[str, Any]:
    """By what a process can be judged later, from here or from elsewhere."""
    return {
        "host": socket.gethostname(),
        "namespaces": _namespaces(),
        "pid": pid,
        "process": _known_identity(pid),
    }


def starts_again(current: dict[str, Any]) -> bool:
    """Whether the launcher that lease.json names may start its last owner again: its process lives here, and still has
    the directory that it has for as long as it may, or neither can be looked at. Elsewhere nobody can ask."""
    launcher = current.get("launcher")
    if not isinstance(launcher, dict) or not isinstance(launcher.get("pid"), int) or not judged_at_once(launcher):
        return False
    try:
        return lives(launcher) is not False and there(Path(str(launcher.get("directory"))))
    except OSError:
        return True


class Watch:
    """A look at who holds a run directory, now and again, by one who does something else meanwhile."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease, self._clock = Lease(root), clock
        self._seen: tuple[object, object] | None = None
        self._since = 0.0

    def holder(self) -> str | None:
        """The process that holds it, or may: one that only watching tells of, until it has missed some beats. Who takes
        the lease then watches it once more, for as long as is right."""
        current = self._lease.read()
        if not self._lease.is_held(current):
            return None
        beat = (current.get("token"), current.get("beat"))
        if beat != self._seen:
            self._seen, self._since = beat, self._clock()
        is_known = lives(current) and _is_of_directory(current, self._lease.path.parent)
        may_live = is_known or self._clock() - self._since < MISSED_BEATS * BEAT_SECONDS
        return f"process {current['pid']} on {current.get('host')}" if may_live else None


def _silent(_line: str) -> None:
    """Says nothing."""


@contextmanager
def exclusive(guard: Path, *, wait: Callable[[float], object] = time.sleep) -> Iterator[None]:
    """Within, one process at a time of those that name this file, which is made. On a volume without locks all of them.
    Raises StorageError, also where another process does not let go of it."""
    with storage_errors(guard), _opened(guard) as file:
        if not _locked_within(file, LOCK_SECONDS, wait):
            what = f"another process has held this lock for {LOCK_SECONDS:.0f} s"
            hint = (
                f"look for one that is suspended or hangs: `fuser {shlex.quote(str(guard))}`, on each host that has it"
            )
            raise StorageError(what, where=str(guard), hint=hint)
        yield


@contextmanager
def exclusive_if_free(guard: Path, *, wait: Callable[[float], object] = time.sleep) -> Iterator[str]:
    """As `exclusive`, for who cannot do without the work within: where the lock is not to be had in a few seconds, it
    goes on without. Yields why; nothing where it has it."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(_opened(guard))
        except OSError as error:
            why = error.strerror or str(error)
        else:
            why = "" if _locked_within(file, COURTESY_SECONDS, wait) else "another process holds it"
        yield why


def _locked_within(file: IO[bytes], seconds: float, wait: Callable[[float], object]) -> bool:
    left = seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left <= 0:
                return False
        except OSError:  # a volume without locks
            return True
        else:
            return True
        wait(TRY_SECONDS)
        left -= TRY_SECONDS


def _opened(guard: Path) -> IO[bytes]:
    """For all who may write the directory. Raises OSError."""
    is_new = not os.path.lexists(guard)
    try:
        file = guard.open("ab")
    except PermissionError:
        with suppress(OSError):
            return guard.open("rb")  # another user has made it, who shares the directory
        raise
    if is_new:
        with suppress(OSError):  # another user was faster, or a volume that knows no such permissions
            guard.chmod(guard.parent.stat().st_mode & 0o666)
    return file


class Lease:
    """Ownership of one run directory, kept alive by a thread until released."""

    def __init__(self, root: Path, *, launcher: dict[str, Any] | None = None) -> None:
        """`launcher`: the process that may start this one's work again when it has ended, and its directory."""
        self.path = root / "lease.json"
        self._launched = {} if launcher is None else {"launcher": launcher}
        self._guard = root / ".lease.lock"
        self._token, self.owner = 0, ""
        self.alive_before: float | None = None
        """When the owner before, who did not give the directory back, last showed that it lived: Unix seconds."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, *, wait: Callable[[float], None] = time.sleep, say: Callable[[str], None] = _silent) -> None:
        """Take the directory. Raises StorageError that names the holder where another run has it. `say` is told whom it
        watches before it does, which takes a while."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(self._guard, wait=wait):
            current = self.read()
            if not self.is_held(current):
                self._take(current)
                return
        self._refuse_unless_lapsed(current, wait, say)
        with exclusive(self._guard, wait=wait):
            latest = self.read()
            if (latest.get("token"), latest.get("beat")) != (current.get("token"), current.get("beat")):
                raise self._held(latest)
            self._take(latest)

    def check(self) -> None:
        """Raise StorageError where another run has taken the directory since: nothing may be committed any more."""
        if self._is_mine(current := self.read()):
            return
        if not current and not there(self.path):
            hint = "was it removed, or its volume unmounted? The same command continues from what is there"
            raise StorageError("the run directory is not as this run left it", where=str(self.path.parent), hint=hint)
        raise self._held(current)

    def _is_mine(self, current: dict[str, Any]) -> bool:
        """Also by its name: on a volume without locks two may take the same token."""
        return (current.get("token"), current.get("owner")) == (self._token, self.owner)

    def release(self) -> None:
        """Give the directory back; the token stays, so that it only ever grows, and so does the launcher."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with exclusive_if_free(self._guard):  # who has it for long has lost it, or takes what is ours no more
            if self._is_mine(self.read()):
                write_text(self.path, json.dumps({"token": self._token, **self._launched}))

    def _take(self, current: dict[str, Any]) -> None:
        self._token, self.owner = int(current.get("token", 0)) + 1, secrets.token_hex(8)
        if "pid" in current:
            with suppress(OSError):
                self.alive_before = self.path.stat().st_mtime
        self._write(0)
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beat = 0
        while not self._stop.wait(BEAT_SECONDS):
            beat += 1
            try:
                with exclusive(self._guard, wait=self._stop.wait):
                    if not self._is_mine(self.read()):
                        return
                    self._write(beat)
            except StorageError:
                continue  # a full or slow volume is reported by whoever writes results; check() guards commits

    def _write(self, beat: int) -> None:
        holder = {
            "owner": self.owner,
            "directory": os.path.realpath(self.path.parent),
            "identity": _identity(self.path.parent),
            **known_process(os.getpid()),
            **self._launched,
        }
        write_text(self.path, json.dumps({"token": self._token, "beat": beat, **holder}))

    def read(self) -> dict[str, Any]:
        """What lease.json says; empty where there is none. Raises StorageError."""
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):  # never partly written; an unreadable one is nobody's
            return {}
        except OSError as error:
            raise StorageError(error.strerror or str(error), where=str(self.path)) from error
        return value if isinstance(value, dict) and isinstance(value.get("pid", 0), int) else {}

    def is_held(self, current: dict[str, Any]) -> bool:
        """Whether its owner may be alive, by what can be told from here at once."""
        return "pid" in current and lives(current) is not False

    def _refuse_unless_lapsed(
        self, current: dict[str, Any], wait: Callable[[float], None], say: Callable[[str], None]
    ) -> None:
        alive = lives(current)
        if alive and _is_of_directory(current, self.path.parent):
            raise self._held(current)
        who = f"process {current['pid']} on {current.get('host')}"
        what = "whether it lives"
        if alive:
            who, what = f"{who}, which trains in {current.get('directory')}", "whether this is a copy of that"
        say(f"{self.path} names {who}; watching for {WATCH_SECONDS:.0f} s {what}")
        waited = 0.0
        while waited < WATCH_SECONDS:
            wait(1.0)
            waited += 1.0
            latest = self.read()
            if (latest.get("token"), latest.get("beat")) != (current.get("token"), current.get("beat")):
                raise self._held(latest)

    def _held(self, current: dict[str, Any]) -> StorageError:
        who = f"process {current.get('pid')} on {current.get('host')}" if "pid" in current else "another run"
        return StorageError(
            f"this run directory is in use by {who}",
            where=str(self.path.parent),
            hint="wait for it, stop it, or give this run another name or output_dir",
        )
