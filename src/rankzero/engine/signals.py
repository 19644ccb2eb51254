"""A request to stop: SIGTERM, SIGINT or a flag file becomes a wish that the loop lets all ranks agree on.

Signal handlers only note the request; nothing is saved inside one. Before training starts there is nothing to save,
so a request then ends the process at once with exit code 75.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rankzero.errors import StoppedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether this process was asked to stop, and by what."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._flag: Path | None = None
        self._deferred = False

    def defer(self, flag: Path) -> None:
        """From now on note requests instead of raising: the loop saves first. Also watches `flag` from here on."""
        self._deferred = True
        self._flag = flag

    @property
    def wanted(self) -> bool:
        """Whether to stop at the next step boundary."""
        if self.reason is None and self._flag is not None and self._flag.exists():
            self.reason = f"the file {self._flag}"
        return self.reason is not None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.reason is not None:  # asked twice: now, with the newest checkpoint as it is
            os._exit(128 + number)
        self.reason = name
        if not self._deferred:
            raise StoppedError(f"stopped by {name} before the first step", hint="give the same command again")


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGINT into a StopRequest for the duration."""
    request = StopRequest()
    previous = {number: signal.signal(number, request._on_signal) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
