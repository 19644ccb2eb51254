"""Task: what the engine asks of what is learned from a row. Knows no task; each is a file beside this one.

A task is the name of a section in spec/tasks.py and of a module here that has a constant TASK. The loop, the step and
the evaluation know this protocol and nothing else of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import torch

from rankzero.data.batches.collators.text import Collator, MicroBatch
from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.heads import Head
from rankzero.engine.parallel.base import Parallel
from rankzero.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from rankzero.engine.inputs import Inputs


class Meter(Protocol):
    """What an evaluation measures besides its loss, added up over the passes of one rank."""

    def add(self, logits_NV: torch.Tensor, batch: MicroBatch) -> None:
        """The logits of a pass's targets, or of a part of them, each once."""
        ...

    def metrics(self, eval_loss: float) -> dict[str, float]:
        """Of all ranks; a collective. Names are those of the task's section in the spec."""
        ...


class Task(Protocol):
    """Stateless: everything that it is given it gets by argument."""

    def labels(self, spec: RunSpec, data: TrainingData) -> tuple[str, ...] | None:
        """The classes by number, where rows have them. Raises DataError where they do not fit."""
        ...

    def collator(self, inputs: Inputs, *, padding_free: bool, always_image: bool) -> Collator:
        """How the rows of a pass become tensors. `always_image`: every pass runs the vision tower, see PicturedText."""
        ...

    def head(self, parallel: Parallel, spec: RunSpec) -> Head:
        """What gives the logits of a pass's targets."""
        ...

    def loss_sum(self, logits_NV: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """Sum of the losses of a pass's targets, each times its weight, in float32. There is a row of logits for each
        target, in the precision in which the model computes.

        May be called for some of a pass's targets at a time, with a batch that has no others.
        """
        ...

    def step_meter(self, device: torch.device) -> Meter | None:
        """What is measured of each step besides its loss, a new one for each; None: nothing. Its names get `train_`
        before them."""
        ...

    def meter(self, labels: tuple[str, ...] | None, device: torch.device) -> Meter:
        """A new one for each evaluation."""
        ...


def find_task(name: str) -> Task:
    """The task of this name. Imports it and no other."""
    task: Task = import_module(f"{__package__}.{name}").TASK
    return task
