"""What a sweep asks of a place where trials are trained. Two are there: this machine, and a cluster's backend."""

from __future__ import annotations

from typing import Protocol

from rankzero.errors import RankzeroError
from rankzero.spec.run_spec import RunSpec


class TrialStart(Protocol):
    """One start of a trial's run."""

    def running(self) -> bool:
        """Whether anything of it is alive; called again and again, it also looks after what is."""

    def evaluations(self) -> list[float]:
        """What the run has scored so far, in order, without its evaluation before the first step and the one that
        ends it, by its steps or by its patience: where that is, there is nothing left to end."""

    def stop(self) -> None:
        """Ask it to save and leave. Asking twice is asking once."""

    def failure(self) -> RankzeroError | None:
        """Of one that has ended: why it has no result; None where it has."""

    def result(self) -> float | None:
        """Of one that has ended with a result: what that scored; None where it has no such number."""

    def close(self) -> None:
        """End whatever is left."""


class Trainer(Protocol):
    """Starts runs."""

    def start(self, spec: RunSpec, slot: int) -> TrialStart | None:
        """Train a run, or continue it where it stopped. None: somebody else has it at this moment. `slot` tells trials
        that run at the same time apart, from 0."""

    def saved(self, spec: RunSpec) -> int | None:
        """The step of the newest checkpoint, where that is known."""
