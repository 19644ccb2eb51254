"""What holds for a whole process while any of its threads needs it. Standard library only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, ExitStack


class ProcessWide(ContextDecorator):
    """The first that enters makes the change, the last that leaves undoes it, in whatever order and thread: each by
    itself would put back what another one had made."""

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change, self._lock, self._inside, self._undo = change, threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._undo.enter_context(self._change())
            self._inside += 1

    def __exit__(self, *_raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._undo.close()
