"""dpo: of the two answers of each row the better one becomes likelier against the worse, from the reference on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankzero.data.batches.collators.text import Collator, MicroBatch
from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.distributed import sum_over_ranks
from rankzero.engine.heads import Head
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.preferences import PreferenceHead
from rankzero.engine.tasks.protocol import Meter, Task
from rankzero.engine.tasks.sft import head_over_vocabulary, text_collator
from rankzero.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from rankzero.engine.inputs import Inputs


class Rewards:
    """Means over rows: how often the better answer has the higher reward, by how much, and both rewards."""

    def __init__(self, device: torch.device) -> None:
        exact = torch.float64 if device.type != "mps" else torch.float32
        self._sums = torch.zeros(5, dtype=exact, device=device)

    def add(self, logits_NV: torch.Tensor, batch: MicroBatch) -> None:
        chosen_P, rejected_P = logits_NV.to(self._sums.dtype).unbind(dim=1)
        margin_P = chosen_P - rejected_P
        measured = (torch.ones_like(margin_P), (margin_P > 0).to(margin_P.dtype), margin_P, chosen_P, rejected_P)
        self._sums += torch.stack([values_P.sum() for values_P in measured])

    def metrics(self, eval_loss: float) -> dict[str, float]:
        rows, *sums = sum_over_ranks(self._sums).tolist()
        names = ("reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected")
        return {name: total / rows for name, total in zip(names, sums, strict=True)}


class DirectPreferenceOptimization:
    """Loss of a row = -log sigmoid(reward of the better answer - reward of the worse one)."""

    def labels(self, spec: RunSpec, data: TrainingData) -> tuple[str, ...] | None:
        return None

    def collator(self, inputs: Inputs, *, padding_free: bool, always_image: bool) -> Collator:
        return text_collator(inputs, padding_free=padding_free)

    def head(self, parallel: Parallel, spec: RunSpec) -> Head:
        return PreferenceHead(head_over_vocabulary(parallel, spec), parallel, beta=spec.beta)

    def loss_sum(self, logits_NV: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return -torch.nn.functional.logsigmoid(logits_NV[:, 0] - logits_NV[:, 1]).sum()

    def step_meter(self, device: torch.device) -> Meter | None:
        return Rewards(device)

    def meter(self, labels: tuple[str, ...] | None, device: torch.device) -> Meter:
        return Rewards(device)


TASK: Task = DirectPreferenceOptimization()
