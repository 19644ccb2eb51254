"""What a person sees of a run: log lines, and a progress bar on a terminal. Knows nothing of what is being done.

Everything goes to stderr; results are stdout's. Each rank also writes its lines to logs/rank-<n>.log; on the console
only rank 0 speaks, except in errors. Neither shows the values of secrets. A console or a volume that takes no more
lines costs the lines, never the run.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.data.progress import Advance, Reached, Telling, told
from rankzero.process_wide import ProcessWide
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import storage_errors
from rankzero.wording import duration, printable

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("rankzero")
_STDOUT, _STDERR = 1, 2


class _Redacted(logging.Formatter):
    """The time and the message, without secrets and without what would drive a terminal: names of classes and files
    are somebody else's. A warning or an error has that word before its message, which a run's page looks for."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")
        self._redact = Redactor(os.environ)

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(printable(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        word = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        return f"{record.asctime} {word}{record.message}"


class _LogFile(logging.FileHandler):
    """A file whose first line that cannot be written is spoken of, instead of a traceback for each."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            logger.warning("[STEP] %s takes no more lines: %s", self.baseFilename, error.strerror or error)


class _ConsoleHandler(logging.Handler):
    """On a terminal through rich, so that lines and a live progress bar do not overwrite each other."""

    def __init__(self, terminal: Console | None) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the terminal is closed, or whoever read the pipe is gone: the log file has the line
            if self._terminal is None:
                sys.stderr.write(f"{self.format(record)}\n")
            else:
                style = {"WARNING": "yellow", "ERROR": "red"}.get(record.levelname, "")
                self._terminal.print(self.format(record), style=style, markup=False, highlight=False, soft_wrap=True)


class RunConsole:
    """The console of one process, to which its logger belongs until it is closed. `speaks` is true for rank 0."""

    _open: RunConsole | None = None

    def __init__(self, *, speaks: bool, level: str) -> None:
        from rich.console import Console

        if RunConsole._open is not None:
            RunConsole._open.close()
        self.console = Console(stderr=True)
        self.speaks = speaks
        self.live = speaks and self.console.is_terminal
        self._format = _Redacted()
        self._before = list(logger.handlers), logger.propagate, logger.level
        logger.setLevel(level)  # raises for one that is none, before the logger is taken
        RunConsole._open = self
        # What somebody has set up for it sees nothing meanwhile: lines reach handlers of ours without secrets alone.
        logger.handlers.clear()
        logger.propagate = False
        self._early = logging.handlers.MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL)
        logger.addHandler(self._early)
        if speaks:
            self._add(_ConsoleHandler(self.console if self.live else None))

    def log_to(self, path: Path) -> None:
        """Also write every line to `path`, those from before it existed included. Raises StorageError."""
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = _LogFile(path, encoding="utf-8")
        self._add(handler)
        self._early.setTarget(handler)
        self._early.flush()
        logger.removeHandler(self._early)

    def close(self) -> None:
        """Let go of the log file, and leave the logger as it was."""
        if RunConsole._open is not self:
            return
        RunConsole._open = None
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            with suppress(OSError):  # lines that could not be written, which has been said
                handler.close()
        logger.handlers[:], logger.propagate, level = self._before
        logger.setLevel(level)

    def _add(self, handler: logging.Handler) -> None:
        handler.setFormatter(self._format)
        logger.addHandler(handler)

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        """A bar on a terminal, a line every ten seconds elsewhere. Yields advance(count, facts)."""
        if not self.speaks:
            yield lambda _count, _facts: None
            return
        terminal = self.console if self.live else None
        with told(STEPS, label, total, done, terminal=terminal, say=logger.info) as advance:
            yield advance


class Speed:
    """Tokens a second of the last steps, those of about `seconds`: what a run is doing now, slow starts left out."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._window, self._steps = seconds, deque[tuple[int, float]]()

    def after(self, facts: Mapping[str, Any]) -> float:
        """With the step of these facts, an object of metrics.jsonl, as the last one."""
        rate = facts["tokens_per_second"]
        self._steps.append((facts["tokens"], facts["tokens"] / rate if rate else 0.0))
        while len(self._steps) > 1 and sum(seconds for _, seconds in self._steps) - self._steps[0][1] > self._window:
            self._steps.popleft()
        seconds = sum(seconds for _, seconds in self._steps)
        return sum(tokens for tokens, _ in self._steps) / seconds if seconds else 0.0


def step_in_words(facts: Mapping[str, Any], tokens_per_second: float) -> str:
    """What is shown of a step, by its object in metrics.jsonl."""
    rate = f"{facts['learning_rate']:.1e}".replace("e-0", "e-").replace("e+00", "")
    shown = f"loss {facts['loss']:.4f} {tokens_per_second:,.0f} tok/s ep {facts['epoch']:.2f} lr {rate}"
    return f"{shown} |g| {facts['grad_norm']:.2g} {facts['peak_memory_bytes'] / 1e9:.1f}GB"


def _bar_of_steps(width: int) -> tuple[Any, ...]:
    """All in one line of 80 columns; where there are more, with a bar, where there are less, the time left first."""
    from rich.progress import BarColumn, ProgressColumn, Task
    from rich.text import Text

    class Steps(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            left = "?" if task.time_remaining is None else duration(task.time_remaining)
            times = f"{duration(task.elapsed or 0)}<{left}"
            count, facts = f"{task.completed:.0f}/{task.total or 0:.0f}", task.fields["facts"]
            words = (count, facts, times) if width >= 80 else (count, times, facts)
            return Text(" ".join(word for word in words if word), no_wrap=True, overflow="ellipsis")

    return (BarColumn(bar_width=width - 90), Steps()) if width >= 100 else (Steps(),)


def _line_of_steps(at: Reached) -> str:
    times = f"elapsed {duration(at.seconds)} ETA {duration(at.left)}"
    return f"[TRAIN] {at.label} {at.done}/{at.total} {at.facts} {times}"


STEPS = Telling(_line_of_steps, _bar_of_steps, quiet_seconds=0.0, line_seconds=10.0, end=True, redirects=False)
"""`launch/log_lines.py` reads these lines. An evaluation between the steps has its own, and no share in the ETA."""


def results_alone_on_stdout() -> AbstractContextManager[None]:
    """What libraries print inside goes to stderr: DeepSpeed logs to stdout as soon as anything imports it, and there a
    program reads the result. Holds for the file descriptor too: for libraries in C and for child processes."""
    return _stdout_is_stderr


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


_stdout_is_stderr = ProcessWide(_stdout_to_stderr)


def print_result(text: str) -> None:
    """A result, to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
