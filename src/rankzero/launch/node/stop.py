"""A request to stop this node, by SIGTERM or SIGINT. Knows nothing of who acts on it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class StopWish:
    """Whether it came, when, and whom to tell at once."""

    at: float | None = None
    """On the monotonic clock."""
    number: int = signal.SIGTERM
    on_first: Callable[[int], None] | None = field(default=None, repr=False)

    def __call__(self, number: int) -> None:
        """The signal handler."""
        if self.at is None:
            self.at, self.number = time.monotonic(), number
            if self.on_first is not None:
                self.on_first(number)

    @property
    def wanted(self) -> bool:
        """Whether it came."""
        return self.at is not None

    @property
    def name(self) -> str:
        """SIGTERM or SIGINT."""
        return signal.Signals(self.number).name


def listen() -> StopWish:
    """A wish that SIGTERM and SIGINT make from here on.

    PID 1 ignores signals that it has no handler for, and importing the rest takes a second or two: this comes first.
    """
    stop = StopWish()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stop(received))
    return stop
