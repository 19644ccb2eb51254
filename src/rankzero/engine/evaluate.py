"""Loss and what the task measures besides it, over an evaluation set, each row once over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from rankzero.data.batches.loader import Batches
from rankzero.engine.distributed import any_rank, sum_over_ranks
from rankzero.engine.step import Stepper
from rankzero.engine.tasks.protocol import Meter


@dataclass(frozen=True, slots=True)
class EvalResult:
    """`metrics` holds eval_loss = sum of weight × loss / sum of weights over the targets, and what the task's meter
    adds to it: NaN where eval_loss is no finite number, since what was counted then is no answer of the model.
    """

    metrics: dict[str, float]
    rows: int
    targets: float
    """The sum of their weights: their number where all count in full."""


def evaluate(
    model: Any,
    stepper: Stepper,
    batches: Batches,
    device: torch.device,
    tick: Callable[[int], None],
    *,
    stop_wanted: Callable[[], bool],
    meter: Meter,
) -> EvalResult | None:
    """Evaluate without gradients or dropout; `tick` hears of the rows of each pass.

    A collective. Before each pass the ranks agree whether to go on: None where `stop_wanted` came true on one of them.
    """
    work = batches.everything()
    exact = torch.float64 if device.type != "mps" else torch.float32
    total = torch.zeros(2, dtype=exact, device=device)
    model.eval()
    try:
        passes = batches.collated(work.passes, device)
        with torch.no_grad(), closing(passes), closing(stepper.losses(passes, len(work.passes), meter.add)) as done:
            for _ in range(batches.rounds(work.rows)):
                if any_rank(stop_wanted(), device):
                    return None
                one = next(done, None)
                if one is None:  # another rank has more of them
                    continue
                batch, loss = one
                total[0] += loss
                total[1] += batch.losses
                tick(len(batch.rows))
    finally:
        model.train()
    loss_sum, targets = sum_over_ranks(total).tolist()
    loss = loss_sum / targets
    scores = meter.metrics(loss)
    if not math.isfinite(loss):  # the likeliest class of logits that are NaN is the first
        scores = dict.fromkeys(scores, math.nan)
    return EvalResult({"eval_loss": loss, **scores}, len(batches.dataset), targets)
