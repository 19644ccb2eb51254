"""Loss and, for classes, accuracy over an evaluation set, each row once over all ranks. Knows not when or why."""

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
from rankzero.spec.metrics import macro_f1


@dataclass(frozen=True, slots=True)
class EvalResult:
    """`metrics` holds eval_loss = sum of weight × loss / sum of weights over the targets, and what the task adds to it.

    perplexity = exp(eval_loss), with the exponent cut at 700; accuracy and macro_f1 are shares from 0 to 1.
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
    classes: int | None,
) -> EvalResult | None:
    """Evaluate without gradients or dropout; `tick` hears of the rows of each pass. `classes`: of task classify.

    A collective. Before each pass the ranks agree whether to go on: None where `stop_wanted` came true on one of them.
    """
    work = batches.everything()
    exact = torch.float64 if device.type != "mps" else torch.float32
    total = torch.zeros(2, dtype=exact, device=device)
    confusion_CC = torch.zeros(classes or 0, classes or 0, dtype=exact, device=device)
    model.eval()
    try:
        with torch.no_grad(), closing(batches.collated(work.passes, device)) as passes:
            for _ in range(batches.rounds(work.rows)):
                if any_rank(stop_wanted(), device):
                    return None
                batch = next(passes, None)
                if batch is None:  # another rank has more of them
                    continue
                logits_NV = stepper.predict(batch)
                total[0] += stepper.loss_sum(batch, logits_NV)
                total[1] += len(batch.targets_N) if batch.weights_N is None else batch.weights_N.sum()
                if classes is not None:
                    pairs_N = batch.targets_N * classes + logits_NV.argmax(dim=-1)
                    confusion_CC += torch.bincount(pairs_N, minlength=classes**2).view(classes, classes)
                tick(len(batch.rows))
    finally:
        model.train()
    loss_sum, targets = sum_over_ranks(total).tolist()
    loss = loss_sum / targets
    if classes is None:
        metrics = {"eval_loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    else:
        sum_over_ranks(confusion_CC)
        accuracy = float(confusion_CC.diagonal().sum()) / targets
        metrics = {"eval_loss": loss, "accuracy": accuracy, "macro_f1": macro_f1(confusion_CC.tolist())}
    return EvalResult(metrics, len(batches.dataset), targets)
