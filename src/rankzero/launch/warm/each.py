"""The same for several pods at once. Knows nothing of what is done."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

MOST = 16
"""At once."""
_One = TypeVar("_One")
_Result = TypeVar("_Result")


def each(ones: Sequence[_One], work: Callable[[_One], _Result]) -> list[_Result]:
    """Results in order, when all are done. Raises the first error among them. Ctrl-C waits for none: what is under way
    may take minutes, and a pool would hold the process until then."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Result | Exception]] = queue.SimpleQueue()
    for at in range(len(ones)):
        todo.put(at)

    def go_on() -> None:
        while True:
            try:
                at = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((at, work(ones[at])))
            except Exception as error:  # raised where it is waited for
                done.put((at, error))

    for _ in range(min(len(ones), MOST)):
        threading.Thread(target=go_on, daemon=True).start()
    found = dict(done.get() for _ in ones)
    results: list[_Result] = []
    for at in range(len(ones)):
        result = found[at]
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results
