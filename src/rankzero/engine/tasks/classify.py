"""classify: texts are put into classes, one prediction a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rankzero.data.batches.collators.text import Collator, LabelledText, MicroBatch
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.labels import classes_of
from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.distributed import sum_over_ranks
from rankzero.engine.heads import ClassHead, Head, weighted_cross_entropy
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.tasks.protocol import Meter, Task
from rankzero.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from rankzero.engine.inputs import Inputs


class Confusion:
    """Accuracy and macro F1, shares from 0 to 1, from one table of targets and predictions."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self._classes = classes
        exact = torch.float64 if device.type != "mps" else torch.float32
        self._counts_CC = torch.zeros(classes, classes, dtype=exact, device=device)

    def add(self, logits_NV: torch.Tensor, batch: MicroBatch) -> None:
        pairs_N = batch.targets_N * self._classes + logits_NV.argmax(dim=-1)
        counts = torch.bincount(pairs_N, minlength=self._classes**2)
        self._counts_CC += counts.view(self._classes, self._classes)

    def metrics(self, eval_loss: float) -> dict[str, float]:
        counts_CC = sum_over_ranks(self._counts_CC)
        accuracy = float(counts_CC.diagonal().sum() / counts_CC.sum())
        return {"accuracy": accuracy, "macro_f1": macro_f1(counts_CC.tolist())}


class Classification:
    """The class of each row."""

    def labels(self, spec: RunSpec, data: TrainingData) -> tuple[str, ...] | None:
        train = data.train if isinstance(data.train, TokenizedDataset) else None
        return classes_of(train, data.eval, spec.data.labels)

    def collator(self, inputs: Inputs, *, padding_free: bool, always_image: bool) -> Collator:
        return LabelledText(inputs.labels or (), pad_id=inputs.pad_token_id)

    def head(self, parallel: Parallel, spec: RunSpec) -> Head:
        return ClassHead(parallel.model, offload_activations=spec.train.activation_offloading)

    def loss_sum(self, logits_NV: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return weighted_cross_entropy(logits_NV, batch)

    def step_meter(self, device: torch.device) -> Meter | None:
        return None

    def meter(self, labels: tuple[str, ...] | None, device: torch.device) -> Meter:
        return Confusion(len(labels or ()), device)


TASK: Task = Classification()


def macro_f1(confusion: Sequence[Sequence[float]]) -> float:
    """Mean F1 over the classes that occur, as a target or as a prediction; `confusion[target][predicted]` counts.

    F1 of a class = 2 x hits / (rows of the class + rows predicted as it).
    """
    predicted: list[float] = [sum(column) for column in zip(*confusion, strict=True)]
    scores: list[float] = [
        2 * confusion[i][i] / (sum(confusion[i]) + predicted[i])
        for i in range(len(confusion))
        if sum(confusion[i]) + predicted[i]
    ]
    return sum(scores) / len(scores)
