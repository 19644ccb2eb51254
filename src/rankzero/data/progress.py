"""How far a long job over files has come: a bar on a terminal, a line now and then elsewhere, nothing when quick."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Progress = Callable[[int], None]
"""Called with the bytes that were done since the last call."""

_QUIET_SECONDS = 1.5
_LINE_SECONDS = 15.0


def no_progress(_bytes: int) -> None:
    """Report nothing."""


@contextmanager
def show_progress(label: str, total: int, stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress of `total` bytes, 0 where that is not known, on `stream` (absent: stderr), in the way that suits it."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(label, total, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(file=stream), transient=True)
    task = bar.add_task(label, total=total or None)
    begun = time.monotonic()

    def advance(count: int) -> None:
        if not bar.live.is_started and time.monotonic() - begun > _QUIET_SECONDS:
            bar.start()
        bar.update(task, advance=count)

    try:
        yield advance
    finally:
        bar.stop()


class _Lines:
    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self.label, self.total, self.stream = label, total, stream
        self.done = 0
        self.begun = time.monotonic()
        self.next = self.begun + _QUIET_SECONDS

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now >= self.next:
            self.next = now + _LINE_SECONDS
            of_all = f"{self.done / self.total:.0%} of {self.total / 1e6:.0f} MB" if self.total else ""
            share = of_all or f"{self.done / 1e6:.0f} MB"
            print(f"{self.label}: {share}, {now - self.begun:.0f} s", file=self.stream, flush=True)
