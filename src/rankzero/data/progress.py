"""How far a long job has come: a bar on a terminal, a line now and then elsewhere, nothing when quick. Knows no job:
how one is told is a Telling, as BYTES is for jobs over files and STEPS, in engine/console.py, for training."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int], None]
"""Called with the bytes that were done since the last call."""
Advance = Callable[[int, str], None]
"""Called with how much was done since the last call, and what else is shown. Time before a call with nothing done went
into something else and is not counted."""


_PACE_LINES = 4
"""The time left is told from the speed since so many lines ago: a slow start is soon forgotten."""


def no_progress(_bytes: int) -> None:
    """Report nothing."""


class Reached(NamedTuple):
    """Where a job is: what is done of how much, after how many seconds, and how many are left at the speed of late."""

    label: str
    done: int
    total: int
    facts: str
    seconds: float
    left: float


@dataclass(frozen=True, slots=True)
class Telling:
    """How a kind of job is told: by a `line`, or on a terminal by a bar of rich's `columns` for its width."""

    line: Callable[[Reached], str]
    columns: Callable[[int], tuple[Any, ...]]
    quiet_seconds: float
    """A job that is done by then is not shown."""
    line_seconds: float
    """Between two lines."""
    end: bool
    """Whether the end has a line of its own."""
    redirects: bool
    """Whether what else is printed goes above the bar; not where all that speak use its console."""


@contextmanager
def told(
    telling: Telling, label: str, total: int, done: int = 0, *, terminal: Console | None, say: Callable[[str], None]
) -> Iterator[Advance]:
    """Show a job on `terminal`, or `say` its lines where there is none."""
    if terminal is None:
        yield _Lines(telling, label, total, done, say)
        return
    from rich.progress import Progress as Bar

    columns, redirects = telling.columns(terminal.width), telling.redirects
    bar = Bar(*columns, console=terminal, transient=True, redirect_stdout=redirects, redirect_stderr=redirects)
    task, begun = bar.add_task(label, total=total or None, completed=done, facts=""), time.monotonic()

    def advance(count: int, facts: str) -> None:
        if not bar.live.is_started and time.monotonic() - begun > telling.quiet_seconds:
            bar.start()
        bar.update(task, advance=count, facts=facts)

    if not telling.quiet_seconds:
        bar.start()
    try:
        yield advance
    finally:
        bar.stop()


class _Lines:
    def __init__(self, telling: Telling, label: str, total: int, done: int, say: Callable[[str], None]) -> None:
        self._telling, self._label, self._total, self._say = telling, label, total, say
        self._done = done
        self._begun = self._last = time.monotonic()
        self._next = self._begun + telling.quiet_seconds
        self._lines = deque([(0.0, done)], maxlen=_PACE_LINES)

    def __call__(self, count: int, facts: str) -> None:
        now = time.monotonic()
        since, self._last = now - self._last, now
        self._done += count
        if not count:
            self._begun += since
        elif now >= self._next or (self._telling.end and self._done >= self._total):
            self._next = now + self._telling.line_seconds
            seconds = now - self._begun
            then, before = self._lines[0]
            left = (seconds - then) / max(1, self._done - before) * (self._total - self._done)
            self._lines.append((seconds, self._done))
            self._say(self._telling.line(Reached(self._label, self._done, self._total, facts, seconds, left)))


def _bar_of_bytes(_width: int) -> tuple[Any, ...]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    return TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()


def _line_of_bytes(at: Reached) -> str:
    share = f"{at.done / at.total:.0%} of {at.total / 1e6:.0f} MB" if at.total else f"{at.done / 1e6:.0f} MB"
    return f"{at.label}: {share}, {at.seconds:.0f} s"


BYTES = Telling(_line_of_bytes, _bar_of_bytes, quiet_seconds=1.5, line_seconds=15.0, end=False, redirects=True)


@contextmanager
def show_progress(label: str, total: int, stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress of `total` bytes, 0 where that is not known, on `stream` (absent: stderr), in the way that suits it."""
    from rich.console import Console

    out = stream or sys.stderr
    terminal = Console(file=out) if out.isatty() else None
    with told(BYTES, label, total, terminal=terminal, say=lambda line: print(line, file=out, flush=True)) as advance:
        yield lambda count: advance(count, "")
