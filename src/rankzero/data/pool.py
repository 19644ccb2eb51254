"""Ordered work over processes with bounded memory. Knows nothing of what the work is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import rankzero
from rankzero.errors import RankzeroError
from rankzero.machine import usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

SMALL_BYTES = 8 << 20
"""Below this, starting processes takes longer than the work."""

_MOST_WORKERS = 16
_PACKAGE_PLACE = str(Path(rankzero.__file__).absolute().parents[1])
_WORKER = """
import os, signal, sys
# Ctrl-C reaches the whole process group; the parent alone answers it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
from multiprocessing.connection import Connection
descriptor = int(sys.argv[1])
os.set_inheritable(descriptor, False)  # a process that the work starts would keep it open past the end of this one
connection = Connection(descriptor)
try:
    place, path = connection.recv()
except EOFError:
    sys.exit()
sys.path[:] = [place, *path]
import rankzero
sys.path[:] = path
from rankzero.data.pool import work_for
work_for(connection)
"""
"""Imports what its parent would import, and the very rankzero of its parent, which may have changed sys.path or its
directory since: so nothing that is not Python's own before it was told."""


def worker_count(total_bytes: int, at_most: int | None = None) -> int:
    """Processes for this much input; 1 means this process alone."""
    if total_bytes < SMALL_BYTES:
        return 1
    return max(1, min(_MOST_WORKERS, usable_cores() if at_most is None else at_most))


def ordered_map(make: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """The results of `make()(task)`, in the order of the tasks.

    `make` runs once in every process, so that what is costly to build is built, not sent. Tasks are drawn only as
    results are taken: a few more than there are workers are ever in memory.
    """
    if workers <= 1:
        yield from map(make(), tasks)
        return
    team = _Team(make)
    threads = ThreadPoolExecutor(workers, thread_name_prefix="data")
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(threads.submit(team.do, task))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        try:
            threads.shutdown(wait=True, cancel_futures=True)
        finally:  # a second Ctrl-C does not wait for what is at work
            team.end()


class _Team:
    """Processes that do one kind of work, each a task at a time for the thread that asks; started as they are asked.

    Not multiprocessing's: its processes begin by running the user's script again, and that one trains. Nor a fork's: a
    child would inherit locks held by the threads of tokenizers, torch or a CUDA context.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._make = make
        self._members: list[_Member] = []
        self._idle: list[_Member] = []
        self._starting = threading.Lock()
        self._ended = False

    def do(self, task: Any) -> Any:
        """The task's result. Raises what its work raised, or RankzeroError where the process ended."""
        try:
            member = self._idle.pop()
        except IndexError:
            member = self._started()
            member.tell((_PACKAGE_PLACE, sys.path))
            member.tell(self._make)
        member.tell(task)
        done, answer = member.hear()
        self._idle.append(member)
        if not done:
            raise answer
        return answer

    def end(self) -> None:
        """End all of them, also those at work, and start no more."""
        with self._starting:
            self._ended = True
        for member in self._members:
            member.end()

    def _started(self) -> _Member:
        with self._starting:
            if self._ended:
                raise RankzeroError("the data workers were ended")
            member = _Member()
            self._members.append(member)
        return member


class _Member:
    """One process of a team, as the process that started it sees it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_interpreter_flags(), "-P", "-c", _WORKER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def tell(self, value: Any) -> None:
        sent = ForkingPickler.dumps(value)
        try:
            self._connection.send_bytes(sent)
        except OSError as error:
            raise self._gone() from error

    def hear(self) -> Any:
        try:
            heard = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        return ForkingPickler.loads(heard)

    def end(self) -> None:
        """The connection closes with the last reference, which may be gone before this is called; that alone would not
        reach the process where a fork of this one has a copy."""
        self._process.kill()
        self._process.wait()

    def _gone(self) -> RankzeroError:
        """How it ended: its connection is closed, so it did or is about to."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            hint = "was the machine out of memory? fewer workers need less"
            return RankzeroError("a data worker process was killed", hint=hint)
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        return RankzeroError(f"a data worker process ended {how}", hint="what it said of that is on stderr")


def _interpreter_flags() -> list[str]:
    """The options that this process was started with (-I, -E, -B, -W, -X …), as multiprocessing passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def work_for(connection: Connection) -> None:
    """Do the tasks that come over the connection, until it is closed."""
    # One process a core already: threads inside each would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tasks: SimpleQueue[bytes] = SimpleQueue()
    try:
        made = connection.recv_bytes()
    except EOFError:
        return
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    try:
        work = ForkingPickler.loads(made)()
    except BaseException as error:  # raised here it would only end the process; as an answer to a task it is told
        work = partial(_raise, error)
    while True:
        answer = _answer(work, tasks.get())
        with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it any more
            connection.send_bytes(answer)
        del answer  # may be large, and the next task takes its time


def _answer(work: Callable[[Any], Any], task: bytes) -> Any:
    """What is sent of a task: (True, its result), or (False, what was raised as it was read, done or written)."""
    try:
        return ForkingPickler.dumps((True, work(ForkingPickler.loads(task))))
    except BaseException as error:  # also a panic of an extension, or SystemExit: this process goes on
        return ForkingPickler.dumps((False, _as_sent(error)))


def _receive(connection: Connection, tasks: SimpleQueue[bytes]) -> None:
    """Pass tasks on, and end this process at once where there will be no more: a parent killed with SIGKILL stops
    nobody."""
    try:
        with suppress(EOFError, OSError):
            while True:
                tasks.put(connection.recv_bytes())
    except Exception:  # who waits for a result hears that this process is gone
        traceback.print_exc()
    os._exit(1)


def _raise(error: BaseException, *_task: Any) -> Any:
    raise error


def _as_sent(error: BaseException) -> Exception:
    """The error as it can be sent, with its traceback where it is none of ours, which a reader would look for. What is
    no Exception here must not end the process that asked."""
    if not isinstance(error, Exception):
        return RuntimeError("".join(traceback.format_exception(error)))
    if not isinstance(error, RankzeroError):
        error.add_note(f"in a data worker process:\n{''.join(traceback.format_exception(error))}")
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # whatever a library's exception makes of being copied
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
