"""What a sweep asks of a place where trials are trained. Two are there: this machine, and a cluster's backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rankzero.errors import RankzeroError
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a trial's run where runs are found by their names."""

    before: RunSpec | None
    """The trial under the name that its run has, or may have; None where only its sweep's name now counts."""
    is_noted: bool
    """Whether that is its run's name. Else an earlier version may have submitted it under that name."""
    submitted: tuple[str, ...]
    """What tells each rendering that was submitted under that name."""
    note: Callable[[str, str], None]
    """Given the run's name and what tells its rendering, before that is submitted."""


class TrialStart(Protocol):
    """One start of a trial's run."""

    def running(self) -> bool:
        """Whether anything of it is alive; called again and again, it also looks after what is. Raises ServiceError
        where that cannot be seen, and no more once it has been asked to stop."""

    def evaluations(self) -> list[float]:
        """What the run has scored so far, in order, without its evaluation before the first step and the one that
        ends it, by its steps or by its patience: where that is, there is nothing left to end. Raises
        StorageError where that cannot be read at the moment."""

    def stop(self) -> None:
        """Ask it to save and leave. Asking twice is asking once."""

    def failure(self) -> RankzeroError | None:
        """Of one that has ended: why it has no result; None where it has."""

    def result(self) -> float | None:
        """Of one that has ended with a result: what that scored; None where it has no such number. Raises
        StorageError where that cannot be read at the moment, and DataError where it says nothing of it."""

    def close(self) -> None:
        """End whatever is left."""


class Trainer(Protocol):
    """Starts runs."""

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        """Train a run, or continue it where it stopped. None: somebody else has it at this moment. `slot` tells trials
        that run at the same time apart, from 0. What is `known` counts where a run outlives its sweep's process."""

    def saved(self, spec: RunSpec) -> int | None:
        """The step of the newest checkpoint, where that is known. Raises StorageError."""
