"""A beat on standard error: who waits for a command in a pod sees that it lives, and the command whether anybody waits.

Connections that nothing comes over are taken for dead, and a command may print nothing for long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 30.0


class Beat:
    """From another thread, whatever this one waits for."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._unheard: OSError | None = None
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more."""
        self._over.set()

    def check(self) -> None:
        """Raise OSError where nobody has heard the last one."""
        if self._unheard is not None:
            raise self._unheard

    def now(self) -> None:
        """Beat once more. Raises OSError where nobody hears it."""
        self.check()
        os.write(2, b"\0")

    def _go_on(self) -> None:
        while not self._over.wait(SECONDS):
            try:
                os.write(2, b"\0")
            except OSError as error:
                self._unheard = error
                return


@contextmanager
def beating() -> Iterator[Beat]:
    """As long as the context lasts."""
    beat = Beat()
    beat.start()
    try:
        yield beat
    finally:
        beat.stop()
