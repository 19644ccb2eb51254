"""Ordered work over processes with bounded memory. Knows nothing of what the work is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from rankzero.errors import RankzeroError
from rankzero.machine import usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

SMALL_BYTES = 8 << 20
"""Below this, starting processes takes longer than the work."""

_MOST_WORKERS = 16
_SAFE_PATH = "PYTHONSAFEPATH"
_work: Callable[[Any], Any] | None = None


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
    # Not fork: a forked child inherits locks held by the threads of tokenizers, torch or a CUDA context.
    context = multiprocessing.get_context("spawn")
    with _modules_of_ours():
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(make,))
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            with _modules_of_ours():
                waiting.append(pool.submit(_run, task))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        hint = "was the machine out of memory? fewer workers need less"
        raise RankzeroError("a data worker process was killed", hint=hint) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _modules_of_ours() -> Iterator[None]:
    """Processes that start meanwhile look for modules where this one does. By itself Python looks into the working
    directory first, where a user's own random.py would stand for Python's."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _work
    # Ctrl-C reaches the whole process group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One process a core already: threads inside each would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _work = make()
    except Exception as error:  # raised here it would only break the pool; as an answer to a task it is told
        _work = partial(_raise, error)


def _raise(error: Exception, _task: Any) -> Any:
    raise error


def _run(task: Any) -> Any:
    assert _work is not None
    return _work(task)


def _end_with_parent() -> None:
    """A parent killed with SIGKILL cannot stop its workers, and they would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
