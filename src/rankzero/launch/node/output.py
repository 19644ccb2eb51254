"""What a pod's log shows of its processes: their lines, told apart by rank, with the values of secrets taken out."""

from __future__ import annotations

import os
import sys
import threading
from typing import IO

from rankzero.errors import RankzeroError
from rankzero.redaction import Redactor


class Output:
    """Copies the lines of processes to this one's standard error, each whole."""

    def __init__(self, redact: Redactor) -> None:
        self.redact = redact
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def pipe(self, prefix: str) -> IO[bytes]:
        """The end of a pipe for a process to write to."""
        reading, writing = os.pipe()
        thread = threading.Thread(target=self._copy, args=(reading, prefix), daemon=True)
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

    def _copy(self, reading: int, prefix: str) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                self._write(f"{prefix}{line}" if line.endswith("\n") else f"{prefix}{line}\n")

    def _write(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(self.redact(text))
            sys.stderr.flush()
