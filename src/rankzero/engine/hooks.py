"""What others hear of a run while it trains. Hooks are told, never asked: the loop knows nothing of who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rankzero.data.batches.loader import MicroBatch


def _nothing(*_told: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that the loop calls in the run's own thread, on every rank; steps count from 1. What one raises ends
    the run as an error of its own would, so one that must not do so catches it itself.

    A hook may look at the run and ask it to stop (by a signal to its process). It draws no random numbers from the
    process's generators and calls no collective: ranks would differ, or wait for one that never comes.
    """

    step_begins: Callable[[int], None] = _nothing
    """Before anything of the step is computed: its number."""
    pass_done: Callable[[int, MicroBatch, torch.Tensor], None] = _nothing
    """After a backward pass: the step, what was in the pass on this rank, and the sum of its targets' losses (a scalar
    on the run's device, without a graph). A step whose gradients overflow float16, or that runs out of
    memory, has its passes again."""
    step_ends: Callable[[int, dict[str, Any]], None] = _nothing
    """After the optimizer has moved: the step, and what metrics.jsonl gets of it besides an evaluation."""
    saved: Callable[[int], None] = _nothing
    """Between two steps, after a checkpoint was committed: the step that it is of."""
