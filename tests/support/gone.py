"""A console that is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class Gone:
    """A stream that takes nothing."""

    def __init__(self, number: int) -> None:
        self._error = OSError(number, os.strerror(number))

    def write(self, _text: str) -> None:
        raise self._error

    def flush(self) -> None:
        raise self._error

    def isatty(self) -> bool:
        return False


@contextmanager
def unread_pipe() -> Iterator[int]:
    """The end to write to of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
