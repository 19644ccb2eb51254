"""The loop of a sweep: which trials run, what becomes of them, when it ends. Knows no place, no sampler and no page.

Trials that were under way when the sweep stopped or was killed come first, with the values that they had, as do those
that failed for what may be mended meanwhile. With one trial at a time the whole history follows from the sweep's spec;
with several, they are chosen by what has ended before.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rankzero.errors import (
    ConfigError,
    DataError,
    ExitCode,
    NonFiniteError,
    Problem,
    RankzeroError,
    ServiceError,
    StoppedError,
    StorageError,
)
from rankzero.launch.restarts import Restarts, may_be_cured
from rankzero.persist.run_store import OtherRunError
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.search_space import Choices, chosen_values, shown
from rankzero.spec.sweep_load import Sweep, trial_run
from rankzero.stop_signals import signals_to, stop_signals
from rankzero.sweep.place import SweepDir
from rankzero.sweep.record import Record, Trial
from rankzero.sweep.trainer import Known, Trainer, TrialStart
from rankzero.wording import counted

POLL_SECONDS = 0.2
RESTARTS = 3
"""Of a trial, after failures that may pass."""
PAUSE_SECONDS = (1.0, 10.0, 30.0)
"""Before a restart."""
MENDABLE = frozenset({ExitCode.DATA, ExitCode.SERVICE, ExitCode.ACCESS, ExitCode.CONFIG, ExitCode.STOPPED})
"""What a trial's values need not have caused: the next start of the sweep tries it again."""
ENOUGH_ALIKE = 3
"""First trials that fail with one cause, after which the others are kept for when it is mended."""
Say = Callable[[str], None]


def is_finished(sweep: Sweep, trials: Sequence[Trial]) -> bool:
    """Whether a start has no trial to run, to go on with or to try again."""
    over = all(trial.is_over and trial.exit_code not in MENDABLE for trial in trials)
    return over and len(trials) >= sweep.trials


@dataclass(slots=True)
class _Running:
    """A trial that is trained at this moment, or is about to be."""

    trial: Trial
    spec: RunSpec
    slot: int
    start: TrialStart | None = None
    """None: it is to be started at `not_before`, on the monotonic clock."""
    not_before: float = 0.0
    restarts: Restarts = field(default_factory=lambda: Restarts(RESTARTS))
    reported: int = 0
    """How many of its evaluations are recorded."""
    pruned: bool = False


class SweepRun:
    """One start of a sweep."""

    def __init__(self, sweep: Sweep, record: Record, trainer: Trainer, parallel: int, say: Say) -> None:
        self._sweep, self._record, self._trainer, self._say = sweep, record, trainer, say
        self._place = SweepDir(sweep.directory)
        self._free = list(range(parallel))
        self._running: list[_Running] = []
        for trial in record.trials:
            if trial.exit_code in MENDABLE:
                record.take_up(trial.number)
                say(f"[TRIAL {trial.number}] had failed ({trial.exit_code}), and is tried again")
        self._waiting = [trial for trial in record.trials if not trial.is_over]
        self._made = len(record.trials)
        self._exhausted = False
        self._stopping = self._stop_told = False
        self._lost: RankzeroError | None = None
        """What keeps every trial from going on."""

    def to_its_end(self) -> None:
        """Return when every trial is over. Raises StoppedError where a signal came before, with the trials saved,
        StorageError where their directories cannot be written, OtherRunError where their store has other runs, and the
        first trials' error where all fail with it."""
        with signals_to(self._heard, stop_signals()):
            try:
                while self._go_on():
                    time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                left = counted(len(self._running), "trial")
                self._say(f"[STOP] left at once: the same command takes {left} up at the newest checkpoint")
                raise
            finally:
                for one in self._running:
                    if one.start is not None:
                        one.start.close()
        if self._lost is not None:
            raise self._lost
        over = sum(trial.is_over for trial in self._record.trials)
        if self._stopping and not (self._is_over() and over == self._made):
            what = f"stopped: {over} of {self._sweep.trials} trials are over, the others have saved what they had"
            raise StoppedError(what, where=str(self._place.root), hint="give the same command again")

    def _heard(self, number: int) -> None:
        if self._stopping and number == signal.SIGINT:  # a second Ctrl-C does not wait for what is being saved
            raise KeyboardInterrupt
        self._stopping = True

    def _go_on(self) -> bool:
        """One look at everything. Returns whether there is anything left to wait for."""
        if self._stopping and self._running and not self._stop_told:
            self._stop_told = True
            saving = counted(len(self._running), "trial")
            self._say(f"[STOP] {saving} to save; Ctrl-C again: leave now, losing what they did since they last saved")
        while self._free and not self._is_ending() and (trial := self._next()) is not None:
            self._begin(trial)
        for one in list(self._running):
            if one.start is None and self._is_ending():
                self._leave(one)
            elif one.start is None:
                self._start(one)
            else:
                self._look(one, one.start)
        return bool(self._running) or not (self._is_ending() or self._is_over())

    def _is_ending(self) -> bool:
        return self._stopping or self._lost is not None

    def _is_over(self) -> bool:
        return not self._waiting and not self._running and (self._exhausted or self._made >= self._sweep.trials)

    def _next(self) -> Trial | None:
        if self._waiting:
            return self._waiting.pop(0)
        if self._exhausted or self._made >= self._sweep.trials:
            return None
        trial = self._record.draw()
        if trial is None:
            self._exhausted = True
        else:
            self._made += 1
        return trial

    def _begin(self, trial: Trial) -> None:
        values = chosen_values(self._sweep.space, trial.labels)
        words = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
        self._say(f"[TRIAL {trial.number}] {trial.number + 1} of {self._sweep.trials}: {words}")
        try:
            spec = trial_run(self._sweep, values, trial.number)
        except ConfigError as error:
            self._fail(trial.number, error)
            return
        one = _Running(trial, spec, self._free.pop(0), reported=len(trial.evaluations))
        self._running.append(one)

    def _start(self, one: _Running) -> None:
        if time.monotonic() < one.not_before:
            return
        try:
            one.start = self._trainer.start(one.spec, one.slot, self._known(one))
        except (StorageError, ServiceError) as error:  # the others save before the sweep ends
            self._lose(error)
            self._leave(one)

    def _lose(self, error: StorageError | ServiceError) -> None:
        """No trial goes on. Raises a ServiceError at once where nobody has asked to stop: what a place runs goes on
        there though it does not answer, and the next start takes it up."""
        if isinstance(error, ServiceError) and not self._stopping:
            raise error
        self._lost = self._lost or error

    def _known(self, one: _Running) -> Known:
        trial = one.trial
        name = trial.run
        if name is None and self._sweep.for_pods:  # the sweep may have been renamed since an earlier version drew it
            name = replace(self._sweep, name=self._record.begun_as).run_name(trial.number)
        before = one.spec.model_copy(update={"name": name}) if name and name != one.spec.name else None

        def note(name: str, digest: str) -> None:
            one.trial = self._record.note_run(trial.number, name, digest)

        return Known(before, bool(trial.run), trial.submitted, note)

    def _look(self, one: _Running, start: TrialStart) -> None:
        """Record what is new of a trial that was started."""
        try:
            running = start.running()  # first, so that what it wrote last is read after it has ended
        except ServiceError as error:
            self._lose(error)
            start.stop()
            return
        unread: RankzeroError | None = None
        if not one.pruned:
            try:
                found = start.evaluations()
            except StorageError as error:  # it is looked at again: soon while it runs, else when it is started again
                unread = error
            else:
                self._report(one, found)
        if one.pruned or self._is_ending():
            start.stop()
        if running:
            return
        failure = start.failure() or unread
        start.close()
        one.start = None
        if one.pruned:
            self._leave(one)
        elif failure is None:
            self._finished(one, start)
        else:
            self._failed(one, failure)

    def _finished(self, one: _Running, start: TrialStart) -> None:
        """What it scored is recorded. Where that is not to be read, that is a failure of another kind than a score that
        is no number."""
        try:
            value = start.result()
        except (StorageError, DataError) as error:
            self._failed(one, error)
        else:
            self._ended(one, value)

    def _report(self, one: _Running, found: Sequence[float]) -> None:
        number, metric = one.trial.number, self._sweep.metric
        for value in found[one.reported :]:
            one.reported += 1
            one.pruned = self._record.report(number, value)
            self._say(f"[TRIAL {number}] evaluation {one.reported}: {metric} {shown(value)}")
            if one.pruned:
                self._say(f"[TRIAL {number}] ends here: others were better by then")
                return

    def _ended(self, one: _Running, value: float | None) -> None:
        number = one.trial.number
        if value is None:
            self._fail(number, NonFiniteError(f"{self._sweep.metric} of its result is not a finite number"))
        else:
            self._record.complete(number, value)
            best = best_of(self._sweep, self._record.trials)
            now = " (the best so far)" if best is not None and best.number == number else ""
            self._say(f"[TRIAL {number}] done: {self._sweep.metric} {shown(value)}{now}")
        self._leave(one)

    def _failed(self, one: _Running, failure: RankzeroError) -> None:
        number = one.trial.number
        stopped = failure.exit_code == ExitCode.STOPPED
        if stopped and self._is_ending():
            pass
        elif stopped or (
            may_be_cured(failure) and not isinstance(failure, NonFiniteError)
        ):  # the same numbers come again
            try:
                saved = self._trainer.saved(one.spec)
            except StorageError as error:  # whether it got on cannot be seen: the next start of the sweep goes on
                self._lost = self._lost or error
                self._leave(one)
                return
            refused = one.restarts.refused(saved, charged=not stopped)
            if not refused:
                self._again(one, failure, saved)
                return
            self._say(f"[TRIAL {number}] is not started again: {refused}")
            if isinstance(failure, StorageError):  # no fault of its values: the next trial would meet the same
                self._lost = self._lost or failure
            else:
                self._fail(number, failure)
        elif isinstance(failure, OtherRunError):  # nor is the place of its results
            self._lost = self._lost or failure
        else:
            self._fail(number, failure)
        self._leave(one)

    def _again(self, one: _Running, failure: RankzeroError, saved: int | None) -> None:
        """After a stop that somebody else asked for as often as it gets on, after a failure up to its restarts."""
        number, stopped = one.trial.number, failure.exit_code == ExitCode.STOPPED
        one.restarts.make(saved, charged=not stopped)
        one.not_before = time.monotonic() + PAUSE_SECONDS[min(one.restarts.idle, len(PAUSE_SECONDS)) - 1]
        if stopped:
            self._say(f"[TRIAL {number}] was stopped by somebody, and goes on")
        else:
            self._say(f"[TRIAL {number}] {failure.problems[0]}")
            self._say(f"[TRIAL {number}] is started again, {one.restarts.made} of {RESTARTS}")

    def _fail(self, number: int, failure: RankzeroError) -> None:
        cause = "; ".join(str(problem) for problem in failure.problems)
        self._record.fail(number, cause, int(failure.exit_code))
        self._say(f"[TRIAL {number}] failed ({int(failure.exit_code)}): {failure.problems[0]}")
        self._lost = self._lost or _failed_alike(self._sweep, self._record.trials)

    def _leave(self, one: _Running) -> None:
        self._running.remove(one)
        self._free.append(one.slot)
        self._free.sort()


def best_of(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """The completed trial that scored best, of equals the first one; None where none is completed."""
    done = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    sign = -1.0 if sweep.higher_is_better else 1.0
    return min(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def _failed_alike(sweep: Sweep, trials: Sequence[Trial]) -> RankzeroError | None:
    """The error of the first trials, where nothing else came of any and no value that they share may be its cause."""
    failed = [trial for trial in trials if trial.state == "failed"]
    got_on = any(trial.state in ("complete", "pruned") or trial.evaluations for trial in trials)
    if got_on or len(failed) < ENOUGH_ALIKE:
        return None
    causes = {trial.cause.replace(trial.run_name(sweep), "") for trial in failed}
    codes = {trial.exit_code for trial in failed}
    searched = [name for name, one in sweep.space.items() if not isinstance(one, Choices) or len(one.values) > 1]
    shared = [name for name in searched if len({trial.labels[name] for trial in failed}) == 1]
    if len(causes) > 1 or len(codes) > 1 or not codes <= MENDABLE or shared:
        return None
    what = f"the first {len(failed)} trials failed alike: {failed[0].cause}"
    hint = "the same command tries them again, when that is mended"
    error = RankzeroError(Problem(what, str(sweep.directory), hint))
    error.exit_code = ExitCode(codes.pop() or 0)
    return error
