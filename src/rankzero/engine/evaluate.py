"""Token-weighted loss over an evaluation set, each row once over all ranks. Knows nothing of when or why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rankzero.data.loader import Batches
from rankzero.engine.distributed import sum_over_ranks
from rankzero.engine.step import Stepper


@dataclass(frozen=True, slots=True)
class EvalResult:
    """`eval_loss` = sum of token losses / trained tokens; perplexity = exp(eval_loss), with the exponent cut at 700."""

    eval_loss: float
    perplexity: float
    rows: int
    tokens: int


def evaluate(
    model: Any, stepper: Stepper, batches: Batches, device: torch.device, tick: Callable[[int], None]
) -> EvalResult:
    """Evaluate without gradients or dropout; `tick` hears of the rows of each pass."""
    work = batches.everything()
    total = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    model.eval()
    try:
        with torch.no_grad():
            for rows in work.passes:
                batch = batches.collate(rows, device)
                total[0] += stepper.loss_sum(batch)
                total[1] += len(batch.targets_N)
                tick(len(rows))
    finally:
        model.train()
    loss_sum, supervised = sum_over_ranks(total).tolist()
    loss = loss_sum / supervised
    return EvalResult(loss, math.exp(min(loss, 700.0)), len(batches.dataset), int(supervised))
