"""Standard error: lines that nobody can take are lost, and nothing else is. Knows nothing of what they say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO, cast


def write_stderr(text: str) -> None:
    """Write at once. Where the terminal is closed, whoever read the pipe is gone or the disk is full, it is lost."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def outlive_readers() -> None:
    """Let all that is written in this process be lost in that way, by the parser and by libraries too.

    Else whoever speaks next raises, in the middle of its work, and the interpreter's end makes 120 of any exit code.
    """
    if sys.stderr is None:  # it was closed before Python began
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open till the end
    sys.stderr = cast(TextIO, _Lossy(sys.stderr))


class _Lossy:
    """A stream of text without errors of the device."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        with suppress(OSError):
            self._stream.writelines(lines)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
