"""The process that sends a run's numbers to trackers' servers: `python -m rankzero.track.send RUN_DIRECTORY`.

It reads the run directory and talks to servers, so that the process that trains does neither. It ends with the process
that started it: when its standard input closes, one last round may take FLUSH_SECONDS. Whatever is not sent by then is
sent by the next one, of the same run's next start or of `rankzero track sync`.

Exactly once: what a server has accepted is written down (`Sent`) before anything else is sent. Before each request it
is noted what is about to be sent; where that was not answered, or this process died, the server is asked what it has.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rankzero.errors import StorageError
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import storage_errors
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec, TrackingSpec
from rankzero.stderr import write_stderr
from rankzero.track.server import (
    Kind,
    LostRunError,
    NoAnswerError,
    Row,
    RunFacts,
    Server,
    Setting,
    shown,
    without_login,
)
from rankzero.track.spool import EVERY, KINDS, Sent, Spool, last_end, path_of, setting_hash
from rankzero.track.system import SYSTEM_SECONDS, Sampler
from rankzero.wording import listed, printable

LOCK = ".lock"
"""In tracking/: who sends has it."""
POLL_SECONDS = 2.0
FLUSH_SECONDS = 20.0
RETRY_SECONDS = (4.0, 60.0)
"""After a failure: at first, and at most."""
LONGEST_REASON = 300

Connect = Callable[[RunDir], Server]


def server_modules(tracking: TrackingSpec) -> dict[str, ModuleType]:
    """Those trackers of the spec that are servers."""
    names = [name for name in type(tracking).model_fields if getattr(tracking, name)]
    modules = {name: import_module(f"{__package__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "connect")}


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """The spec's values by their dotted names, without secrets: numbers and truths as such, lists as texts."""
    redact = Redactor(os.environ)

    def flat(value: Any, prefix: str) -> Iterator[tuple[str, Setting]]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from flat(inner, f"{prefix}.{name}" if prefix else str(name))
        else:
            text = redact(str(value))
            is_itself = text == str(value) and (value is None or isinstance(value, (int, float)))
            yield prefix, value if is_itself else text

    return dict(flat(spec.model_dump(mode="json", exclude={"tracking"}), ""))


class OvertakenError(Exception):
    """The note is another run's by now, which was begun in this directory while this sender was still busy."""


class RefusedError(Exception):
    """A server that answers takes some of what it is sent, and not these."""

    def __init__(self, what: Sequence[str], error: Exception) -> None:
        super().__init__(f"{listed(what)} refused: {type(error).__name__}: {error}")
        self.what, self.error = tuple(what), error


@contextmanager
def asked(what: str) -> Iterator[None]:
    """What a server does not take is RefusedError of this; that there is none stays what it is."""
    try:
        yield
    except (NoAnswerError, ConnectionError, TimeoutError):
        raise
    except Exception as error:  # a tracker's client has exceptions of its own
        raise RefusedError([what], error) from error


def _refusals(what: str, tell: Callable[[], None]) -> list[RefusedError]:
    """That a server refuses this, if it does. Raises what the client raises of a server that is away."""
    try:
        with asked(what):
            tell()
    except RefusedError as error:
        return [error]
    return []


class Delivery:
    """One run's numbers on their way to one server."""

    def __init__(self, name: str, connect: Connect, run_dir: RunDir, spec: RunSpec) -> None:
        self.name = name
        self.sent = Sent()
        self._path = run_dir.tracking / f"{name}.json"
        self._connect, self._run_dir, self._spec = connect, run_dir, spec
        self._spools = _spools(run_dir)
        self._server: Server | None = None
        self._redact = Redactor(os.environ)
        self._has_read = False

    def round(self, *, is_last: bool = False) -> None:
        """Send all that there is. `is_last`: nobody sends more until the run goes on. Raises RefusedError where a
        server has not taken all of it, or what its client or the disk raises, after noting it; OvertakenError where
        there is no more to be done."""
        try:
            self._round(is_last)
        except OvertakenError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
            self.sent.error = printable(self._redact(without_login(" ".join(reason.split()))))[:LONGEST_REASON]
            self._server = None  # connections and what was cached of them are the first suspects
            if self._has_read:  # else it would be written over: what a server has would go there again
                with suppress(StorageError, ValueError):
                    self._note()
            raise

    def _round(self, is_last: bool) -> None:
        is_first, refused = self._server is None, list[RefusedError]()
        if self._server is None:
            read = Sent.read(self._path)
            if self._has_read and self._path.is_file() and read.key != self.sent.key:
                raise OvertakenError(str(self._path))
            self.sent, self._has_read = read, True
            self._server, refused = self._begin()
        # Of a run that was killed, who begins tells what the one before it may not have come to tell; where something
        # failed, to begin again may have opened a run that had ended.
        told = None if is_first and self.sent.error is not None else (self.sent.ended, self.sent.ended_start)
        end = last_end(self._run_dir)
        refused += self._rows(self._server)
        is_new = end != told or (is_first and end[0] is None)
        if is_new:
            refused += self._end(self._server, *end)
        if is_last or (is_first and not is_new):  # to begin has opened again what had ended there
            refused += _refusals("the end", partial(self._server.close, end[0]))
        if refused:
            raise RefusedError(list(dict.fromkeys(what for one in refused for what in one.what)), refused[0].error)
        if is_new or self.sent.error is not None:
            self.sent.error = None
            self._note()

    def _rows(self, server: Server) -> list[RefusedError]:
        """Send what there is of each kind; what was refused. Raises what the client raises of a server that is away."""
        refused = []
        for kind in KINDS:
            try:
                while self._batch(kind, server):
                    pass
            except RefusedError as error:
                refused += [error, *self._find(server)]
        return refused

    def _end(self, server: Server, ended: Ending | None, begun: float | None) -> list[RefusedError]:
        """As `_rows`: how the run has ended."""
        refused = _refusals("the end", partial(server.end, ended))
        if not refused:
            self.sent.ended, self.sent.ended_start = ended, begun
        return refused

    def _begin(self) -> tuple[Server, list[RefusedError]]:
        """The server, and what of the settings it refused."""
        server = self._connect(self._run_dir)
        if self.sent.place not in (None, server.place):
            # Another server, or the same one by another address: under the same key it is asked for what it has.
            self._forget({**self.sent.last, **self.sent.unsure})
        if (here := _identity(self._run_dir)) != self.sent.directory:
            # A copy, as one brought back: its first machine may have sent more. Older notes do not say where they were.
            if self.sent.directory is not None or self.sent.last:
                self.sent.unsure = dict.fromkeys(KINDS, EVERY)
            self.sent.directory = here
            self._note()
        if self.sent.spec is None or self.sent.place is None:
            self.sent.spec, self.sent.place = self.sent.spec or setting_hash(self._spec), server.place
            self._note()  # the key, before anything carries it
        return server, self._find(server)

    def _find(self, server: Server) -> list[RefusedError]:
        """The run there, which is made where it is not, and its settings. Returns what is refused of those."""
        facts = RunFacts(str(self._spec.name), self._run_dir, settings_of(self._spec))
        try:
            there = server.begin(facts, self.sent.key, self.sent.there)
        except LostRunError:
            say(f"{self.name} does not have {without_login(self.sent.link)} any more: all of it is sent anew")
            self._forget(dict.fromkeys(KINDS, EVERY))  # of a server that was copied it may be there by another name
            self.sent.place = server.place
            self._note()
            there = server.begin(facts, self.sent.key, None)
        if (there, server.link) != (self.sent.there, self.sent.link):
            self.sent.there, self.sent.link = there, server.link
            self._note()
        return _refusals("settings", partial(server.send_settings, facts))

    def _forget(self, unsure: dict[Any, int]) -> None:
        """What is there of the run, up to these steps of each kind: it is sent again unless the server has it."""
        sent = self.sent
        self.sent = Sent(sent.key, sent.spec, sent.made_of, directory=sent.directory, unsure=unsure)
        self._spools = _spools(self._run_dir)

    def _note(self) -> None:
        """Write down what the server has. The start of another run waits for no lock. Raises StorageError,
        OvertakenError."""
        if self._path.is_file():
            with storage_errors(self._path):
                now = json.loads(self._path.read_text(encoding="utf-8"))
            if now.get("key", self.sent.key) != self.sent.key:
                raise OvertakenError(str(self._path))
        self.sent.write(self._path)

    def _batch(self, kind: Any, server: Server) -> bool:
        """Send the next rows of a kind. Returns whether there were any."""
        sent, name = self.sent, path_of(kind, self._run_dir).name
        last = sent.last.get(kind, -1)
        rows = self._spools[kind].after(last, frozenset(sent.names) if kind == "metrics" else frozenset())
        if not rows:
            return False
        wanted, doubtful = rows, sent.unsure.get(kind, -1)
        if perhaps := [row for row in rows if row["step"] <= doubtful]:
            with asked(name):
                known = server.known(kind, perhaps)
            wanted = without(rows, known)
            if doubtful == EVERY and not known:  # steps are sent in their order: it has no later ones either
                doubtful = -1
        if rows[-1]["step"] > doubtful:
            sent.unsure[kind] = rows[-1]["step"]
            self._note()
        if wanted:
            with asked(name):
                server.send(kind, list(shown(wanted, self._redact)) if kind == "samples" else wanted)
        if kind == "metrics":
            before = sent.names if rows[-1]["step"] == last else []
            sent.names = sorted({*before, *rows[-1]})
        sent.last[kind] = rows[-1]["step"]
        if sent.last[kind] >= sent.unsure[kind]:  # else a resume took steps away that may have arrived
            del sent.unsure[kind]
        self._note()
        return True


def _spools(run_dir: RunDir) -> dict[Kind, Spool]:
    return {kind: Spool(path_of(kind, run_dir), joined=kind if kind == "samples" else None) for kind in KINDS}


def _identity(run_dir: RunDir) -> str:
    """Of a directory by its machine, its file system, and when its first sender locked it: one that is made again may
    have the number of the one before. Raises OSError."""
    about, lock = run_dir.root.stat(), run_dir.tracking / LOCK
    locked = lock.stat().st_mtime_ns if lock.is_file() else 0
    return f"{socket.gethostname()}:{about.st_dev}:{about.st_ino}:{locked}"


def without(rows: list[Row], known: set[tuple[int, str]]) -> list[Row]:
    """The rows without the values that are known."""
    left = (
        {name: value for name, value in row.items() if name in {"step", "time"} or (row["step"], name) not in known}
        for row in rows
    )
    return [row for row in left if row.keys() - {"step", "time"}]


@contextmanager
def only_sender(run_dir: RunDir) -> Iterator[bool]:
    """Whether no other process sends this run's numbers, and none begins to within the block. Raises StorageError."""
    path = run_dir.tracking / LOCK
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:  # a volume without locks
                pass
            yield True


def say(text: str) -> None:
    """A line among those of the run."""
    write_stderr(printable(f"{datetime.now():%H:%M:%S} [TRACK] {text}\n"))


def keep_sending(delivery: Delivery, over: threading.Event) -> None:
    """Rounds until one that began after the run was over. What fails is said once, until it succeeds."""
    pause, told = POLL_SECONDS, frozenset[str]()
    while True:
        last = over.is_set()
        try:
            delivery.round(is_last=last)
            pause, told = POLL_SECONDS, frozenset()
        except OvertakenError:
            return
        except Exception as error:  # noted by the delivery; a tracker's client has exceptions of its own
            pause = RETRY_SECONDS[0] if pause == POLL_SECONDS else min(2 * pause, RETRY_SECONDS[1])
            refused = error.what if isinstance(error, RefusedError) else ()
            failed = frozenset(refused or ["everything"])
            if not failed <= told and not last:
                how = "does not take all of it; what it lacks is" if refused else "takes no numbers; they are"
                say(f"{delivery.name} {how} kept, and sent later: {delivery.sent.error}")
            told = failed if refused else told | failed
        if last:
            return
        over.wait(pause)


def keep_sampling(run_dir: RunDir, over: threading.Event) -> None:
    """Note how busy this machine is."""
    with suppress(OSError):  # a full disk ends the run; here it only ends the samples
        sampler = Sampler(path_of("system", run_dir), run_dir.root)
        while not over.wait(SYSTEM_SECONDS):
            sampler.sample()


def send_until(run_dir: RunDir, spec: RunSpec, over: threading.Event) -> None:
    """Send to all servers at once, until the run is over; first wait for the sender of an earlier start to leave."""
    while True:
        with only_sender(run_dir) as alone:
            if alone:
                send_to_all(run_dir, spec, over)
                return
        if over.wait(POLL_SECONDS):
            return


def send_to_all(run_dir: RunDir, spec: RunSpec, over: threading.Event) -> None:
    """A thread for each server: none waits for another."""
    modules = server_modules(spec.tracking)
    deliveries = [Delivery(name, module.connect, run_dir, spec) for name, module in modules.items()]
    threads = [threading.Thread(target=keep_sending, args=(delivery, over), daemon=True) for delivery in deliveries]
    if any(getattr(module, "WANTS_SYSTEM", False) for module in modules.values()):
        threading.Thread(target=keep_sampling, args=(run_dir, over), daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for_the_end(parent: int) -> None:
    """Until the process that trains has closed our standard input, or is gone."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.buffer], [], [], POLL_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def main(root: str) -> None:
    """Send until the run is over."""
    from rankzero.spec.load import load_run_spec

    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the run saves for a while after those, and this process ends with it
    run_dir, over = RunDir(Path(root)), threading.Event()
    spec = load_run_spec(run_dir.spec, env={}).spec
    work = threading.Thread(target=send_until, args=(run_dir, spec, over), daemon=True)
    work.start()
    wait_for_the_end(parent)
    over.set()
    work.join(FLUSH_SECONDS)
    write_stderr("")  # what libraries have said
    os._exit(0)  # a request may still be waiting for its answer


if __name__ == "__main__":
    main(sys.argv[1])
