"""Steps, epochs and what is due when: everything that follows from a row count and the spec. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rankzero.spec.run_spec import Every, TrainSpec


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run's length. A step is an optimizer step; the last one of an epoch may hold fewer rows."""

    steps_per_epoch: int
    total_steps: int
    warmup_steps: int

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, step in that epoch) of the step that comes after `step` finished ones, both from 0."""
        return divmod(step, self.steps_per_epoch)


def make_schedule(n_rows: int, train: TrainSpec) -> Schedule:
    """steps_per_epoch = ceil(rows / global_batch_size); total = max_steps, or ceil(steps_per_epoch * epochs).

    warmup_steps below 1 is a share of all steps, rounded up; never more than all steps.
    """
    steps_per_epoch = math.ceil(n_rows / train.global_batch_size)
    total = train.max_steps or _share(train.num_train_epochs, steps_per_epoch)
    warmup = train.warmup_steps
    warmup_steps = _share(warmup, total) if warmup < 1 else math.floor(warmup)
    return Schedule(steps_per_epoch, total, min(warmup_steps, total))


def _share(share: float, of: int) -> int:
    """ceil(share × of) with the share as it is written: 0.1 of 30 is 3, where floating point makes 4 of it."""
    return math.ceil(Fraction(repr(share)) * of)


def is_due(every: Every, step: int, schedule: Schedule) -> bool:
    """Whether something that happens `every` epoch or N steps happens after `step` finished ones.

    The end of the run is always due.
    """
    interval = schedule.steps_per_epoch if every == "epoch" else every
    return step % interval == 0 or step >= schedule.total_steps
