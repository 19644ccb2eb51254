"""Steps, epochs, learning rates and what is due when: all that follows from a row count and the spec. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rankzero.spec.run_spec import Every, LearningRateShape, TrainSpec


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run's length. A step is an optimizer step; the last one of an epoch may hold fewer rows."""

    steps_per_epoch: int
    total_steps: int
    warmup_steps: int
    shape: LearningRateShape = "linear"

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, step in that epoch) of the step that comes after `step` finished ones, both from 0."""
        return divmod(step, self.steps_per_epoch)

    def learning_rate(self, step: int, peak: float) -> float:
        """The learning rate of the step that comes after `step` finished ones, with S steps in all and W of warm-up:

            step < W   peak (step + 1) / W
            linear     peak (S - step) / (S - W)
            cosine     peak (1 + cos(pi (step - W) / (S - W))) / 2
            constant   peak

        So the W-th step is the first at the peak, no step is at 0, and what would be the step after the last one is.
        Warm-up: Goyal et al., "Accurate, Large Minibatch SGD", 2017. Cosine: Loshchilov & Hutter, "SGDR", 2017, without
        restarts. There is no state: a run that goes on, also with another length or peak, takes its rate from here.
        """
        if step < self.warmup_steps:
            return peak * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return peak
        left = max(0, self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        return peak * (left if self.shape == "linear" else (1 + math.cos(math.pi * (1 - left))) / 2)


def make_schedule(n_rows: int | None, train: TrainSpec) -> Schedule:
    """steps_per_epoch = ceil(rows / global_batch_size); total = max_steps, or ceil(steps_per_epoch * epochs).

    warmup_steps below 1 is a share of all steps, rounded down; never more than all steps. None: nobody has counted the
    rows, so that the run, which needs max_steps, is one stretch.
    """
    if n_rows is None:
        if train.max_steps is None:
            raise ValueError("a stream has no length of its own")
        steps_per_epoch = train.max_steps
    else:
        steps_per_epoch = math.ceil(n_rows / train.global_batch_size)
    total = train.max_steps or math.ceil(_share(train.num_train_epochs, steps_per_epoch))
    warmup = train.warmup_steps
    warmup_steps = math.floor(_share(warmup, total) if warmup < 1 else warmup)
    return Schedule(steps_per_epoch, total, min(warmup_steps, total), train.lr_scheduler_type)


def rows_taken(step: int, n_rows: int, train: TrainSpec) -> int:
    """How many rows a run of this setting has taken by the end of `step`, or of its last step before: a row counts once
    in each epoch."""
    schedule = make_schedule(n_rows, train)
    epoch, step_in_epoch = schedule.position(min(step, schedule.total_steps))
    return epoch * n_rows + step_in_epoch * train.global_batch_size


def _share(share: float, of: int) -> Fraction:
    """share × of with the share as it is written: 0.1 of 30 is 3, where floating point makes a little more of it."""
    return Fraction(repr(share)) * of


def is_due(every: Every, step: int, schedule: Schedule) -> bool:
    """Whether something that happens `every` epoch or N steps happens after `step` finished ones.

    The end of the run is always due.
    """
    interval = schedule.steps_per_epoch if every == "epoch" else every
    return step % interval == 0 or step >= schedule.total_steps
