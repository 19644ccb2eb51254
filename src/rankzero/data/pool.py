"""Ordered work over processes with bounded memory: `python -m rankzero.data.pool FD` is one of them. Knows nothing of
what the work is."""

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
from queue import SimpleQueue
from typing import Any, TypeVar

from rankzero.errors import RankzeroError
from rankzero.machine import usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

SMALL_BYTES = 8 << 20
"""Below this, starting processes takes longer than the work."""

_MOST_WORKERS = 16


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
        threads.shutdown(wait=True, cancel_futures=True)
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

    def do(self, task: Any) -> Any:
        """The task's result. Raises what its work raised, or RankzeroError where the process was killed."""
        try:
            member = self._idle.pop()
        except IndexError:
            member = _Member()
            self._members.append(member)
            member.tell(sys.path)
            member.tell(self._make)
        member.tell(task)
        done, answer = member.hear()
        self._idle.append(member)
        if not done:
            raise answer
        return answer

    def end(self) -> None:
        """End all of them; none is at work."""
        for member in self._members:
            member.end()


class _Member:
    """One process of a team, as the process that started it sees it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rankzero.data.pool", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def tell(self, value: Any) -> None:
        try:
            self._connection.send(value)
        except OSError as error:
            raise _killed() from error

    def hear(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise _killed() from error

    def end(self) -> None:
        """It waits for a task. The connection closes with the last reference, which may be gone before this is called;
        that alone would not reach the process where a fork of this one has a copy."""
        self._process.kill()
        self._process.wait()


def _killed() -> RankzeroError:
    hint = "was the machine out of memory? fewer workers need less"
    return RankzeroError("a data worker process was killed", hint=hint)


def main() -> None:
    """Do the tasks that come over the connection, until it is closed."""
    # Ctrl-C reaches the whole process group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One process a core already: threads inside each would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    connection: Connection = Connection(int(sys.argv[1]))
    tasks: SimpleQueue[Any] = SimpleQueue()
    try:
        sys.path[:] = connection.recv()  # what is sent next may need it
        make = connection.recv()
    except EOFError:
        return
    except Exception as error:  # raised here it would only end the process; as an answer to a task it is told
        make = partial(_raise, error)
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    try:
        work = make()
    except Exception as error:
        work = partial(_raise, error)
    while True:
        task = tasks.get()
        try:
            answer = True, work(task)
        except Exception as error:
            answer = False, _as_sent(error)
        with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it any more
            connection.send(answer)


def _receive(connection: Connection, tasks: SimpleQueue[Any]) -> None:
    """Pass tasks on, and end this process at once where there will be no more: a parent killed with SIGKILL stops
    nobody."""
    try:
        with suppress(EOFError, OSError):
            while True:
                tasks.put(connection.recv())
    except Exception:  # of a task that cannot be read: who waits for its result hears that this process is gone
        traceback.print_exc()
    os._exit(1)


def _raise(error: Exception, *_task: Any) -> Any:
    raise error


def _as_sent(error: Exception) -> Exception:
    """The error as it can be sent, with its traceback where it is none of ours, which a reader would look for."""
    if not isinstance(error, RankzeroError):
        error.add_note(f"in a data worker process:\n{''.join(traceback.format_exception(error))}")
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # whatever a library's exception makes of being copied
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


if __name__ == "__main__":
    main()
