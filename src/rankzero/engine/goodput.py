"""What the wall time of this start goes to, as it goes: each moment to exactly one kind of run_dir/goodput.KINDS.

The main rank's is kept in the run directory from the moment that the directory is this run's. A step costs two calls
of the system for it, as it begins and as it ends, and two more where it waits for the rows of a stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rankzero.engine.console import logger
from rankzero.errors import RankzeroError, StopNow, StoppedError, StorageError
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import write_json
from rankzero.run_dir.goodput import Ending, Goodput, Start, StartLine, read_starts, summed_up
from rankzero.run_dir.handover import STARTED_VARIABLE, write_error
from rankzero.run_dir.paths import RunDir


class Ledger:
    """Seconds by kind. What is in no phase counts to the stage that the start is in: startup, logging or final."""

    def __init__(self, begun: float | None = None) -> None:
        """`begun`: when the start began, on the monotonic clock; else what the launcher says, else now."""
        given = os.environ.get(STARTED_VARIABLE)
        began = (time.monotonic() if given is None else float(given)) if begun is None else begun
        self._origin = self._since = began
        self._kind = self._stage = "startup"
        self._reached = 0
        self._line: StartLine | None = None
        self._before: list[Start] = []
        self.seconds: dict[str, float] = {}
        self._seen: set[str] = set()
        self.time_to_first_step: float | None = None

    @contextmanager
    def phase(self, kind: str) -> Iterator[None]:
        """What happens inside is of this kind; of the outer one again afterwards."""
        outer = self._kind
        self._turn_to(kind)
        if self._kind != outer:
            self._write()
        try:
            yield
        finally:
            self._turn_to(outer)
            self._write()

    def first(self, what: str) -> bool:
        """Whether nobody has asked this of `what` in this start; asked once each time that it is done."""
        known = what in self._seen
        self._seen.add(what)
        return not known

    def stage(self, kind: str) -> None:
        """What is in no phase is of this kind from now on."""
        self._stage = kind
        self._turn_to(kind)
        self._write()

    def loop_at(self, step: int) -> None:
        """The loop is about to do what comes after `step` steps, or to do it again."""
        again = step < self._reached
        if again != (self._stage == "repeated") or self._stage == "startup":
            self.stage("repeated" if again else "logging")

    def waited_for_input(self, seconds: float) -> None:
        """So much of the last step was waiting for the tensors of its passes."""
        if self._stage != "repeated":
            self.seconds["step"] = self.seconds.get("step", 0.0) - seconds
            self.seconds["input_wait"] = self.seconds.get("input_wait", 0.0) + seconds

    def step_done(self, step: int) -> None:
        """This optimizer step has finished; the phase that it was made in has not."""
        if self._line is not None:
            self._line.start.step = step
        if self.time_to_first_step is None:
            self.time_to_first_step = time.monotonic() - self._origin

    def _turn_to(self, kind: str) -> None:
        if self._stage == "repeated":
            kind = "repeated"
        now = time.monotonic()
        self.seconds[self._kind] = self.seconds.get(self._kind, 0.0) + now - self._since
        self._kind, self._since = kind, now

    def _write(self) -> None:
        if self._line is None:
            return
        self._line.start.kind = self._kind
        try:
            self._line.write(self.seconds)
        except OSError as error:  # a note: the run goes on without it
            logger.warning("[STEP] where the time goes is not noted any more: %s", error.strerror or error)
            self._let_go()

    def _let_go(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.close()
            self._line = None

    @contextmanager
    def kept_in(
        self,
        run_dir: RunDir,
        *,
        alive_before: float | None,
        world_size: int,
        owner: str,
        at_end: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Note in the run directory where the time goes, until the block ends, and how it did. `alive_before`: when the
        start before this one last showed that it lived, where it did not say goodbye (Unix seconds). `at_end` is called
        when the directory says how the start has ended; it raises nothing, and its time is counted too."""
        begun = time.time() - (time.monotonic() - self._origin)
        try:
            self._before = read_starts(run_dir.starts)
            self._reached = max((start.step for start in self._before), default=0)
            start = Start(begun=begun, updated=begun, alive_before=alive_before, world_size=world_size, owner=owner)
            self._line = StartLine(run_dir.starts, start)
        except OSError as error:
            logger.warning("[STEP] where the time goes is not noted: %s", error.strerror or error)
        self.stage(self._stage)
        ended: Ending = "failed"
        with suppress(OSError):
            run_dir.error.unlink(missing_ok=True)
        try:
            yield
            ended = "finished"
        except BaseException as error:
            if isinstance(error, (StoppedError, StopNow)):
                ended = "stopped"
            elif isinstance(error, KeyboardInterrupt):
                ended = "interrupted"
            elif isinstance(error, Exception):
                _note(error, run_dir)
            raise
        finally:
            self._end(run_dir, ended, at_end)

    def continues_from(self, step: int, total_steps: int, compared_from: int) -> None:
        """The start begins with the step after this one, and is to end with that one. `compared_from` as in `Start`."""
        if self._line is not None:
            start = self._line.start
            start.from_step = start.step = step
            start.total_steps, start.compared_from = total_steps, compared_from

    def _end(self, run_dir: RunDir, ended: Ending, at_end: Callable[[], None]) -> None:
        if self._line is not None:
            self._line.start.ended = ended
        self.stage("final")
        at_end()
        if self._line is None:
            return
        total = self.summary()
        self._write()
        self._let_go()
        with suppress(OSError, StorageError):  # goodput.json can be made of starts.jsonl at any time
            write_json(run_dir.goodput, total.to_json())
        logger.info("[GOODPUT] %s", total)

    def leaves(self, ended: Ending) -> None:
        """Note that the process ends at this moment, which the main thread does not come to. From any thread."""
        line = self._line
        if line is None:
            return
        seconds = dict(self.seconds)
        seconds["lost"] = seconds.get("lost", 0.0) + time.monotonic() - self._since
        line.start.ended = ended
        with suppress(OSError):  # a note
            line.write(seconds)

    def summary(self) -> Goodput:
        """Of all starts of the run, up to now."""
        self._turn_to(self._kind)
        now = Start(begun=0.0, updated=0.0) if self._line is None else self._line.start
        return summed_up([*self._before, replace(now, seconds=self.seconds)])


def _note(error: Exception, run_dir: RunDir) -> None:
    """Why the start failed, for whoever looks at the run later. The traceback of an internal error is in the log."""
    known = error if isinstance(error, RankzeroError) else RankzeroError(f"{type(error).__name__}: {error}")
    with suppress(OSError, StorageError):  # a full volume may be what it is about
        write_error(run_dir.error, known, "", Redactor(os.environ))
