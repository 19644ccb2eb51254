"""What a pod's log shows of its processes: their lines, told apart by rank, with the values of secrets taken out."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rankzero.errors import RankzeroError
from rankzero.redaction import LineRedactor, Redactor
from rankzero.stderr import write_stderr

STAMPS_VARIABLE = "RANKZERO_LOG_STAMPS"
"""Is set where the platform keeps no times of lines (launch/render/sbatch.py)."""
LAST_LINES = 300
"""Of a process, for the error that its death is told with."""


class Output:
    """Copies the lines of processes to this one's standard error, each whole, with its time where that is asked for."""

    def __init__(self, redact: Redactor, *, stamps: bool = False) -> None:
        self.redact, self._stamps = redact, stamps
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def pipe(self, prefix: str, last_words: Path | None = None) -> IO[bytes]:
        """The end of a pipe for a process to write to. The last lines of it are left in a file when it has ended."""
        reading, writing = os.pipe()
        thread = threading.Thread(target=self._copy, args=(reading, prefix, last_words), daemon=True)
        thread.start()
        self._threads.append(thread)
        return os.fdopen(writing, "wb")

    def say(self, text: str) -> None:
        """A line of the node command itself."""
        self._write(f"[NODE] {text}\n")

    def error(self, error: RankzeroError) -> None:
        """Everything that an error says."""
        for text in (str(error), *getattr(error, "__notes__", [])):
            for line in text.splitlines():
                self.say(line)

    def flush(self) -> None:
        """Wait until what ended processes wrote has been copied."""
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._threads.clear()

    def _copy(self, reading: int, prefix: str, last_words: Path | None) -> None:
        last: deque[str] = deque(maxlen=LAST_LINES)
        redact = LineRedactor(self.redact)
        with os.fdopen(reading, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                last.append(line)
                told = redact(line)
                if told is not None:
                    self._write(f"{prefix}{told}" if told.endswith("\n") else f"{prefix}{told}\n")
        if last_words is None:
            return
        with suppress(OSError):  # the directory goes when the start is over
            last_words.write_text(self.redact("".join(last)), encoding="utf-8", errors="replace")

    def _write(self, text: str) -> None:
        stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} " if self._stamps else ""
        with self._lock:
            write_stderr(stamp + self.redact(text))
