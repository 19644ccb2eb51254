"""sft: a language or vision-language model learns the trained tokens of its rows, each from what stands before it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rankzero.data.batches.collators.images import PicturedText
from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import Collator, MicroBatch, PaddedText
from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.heads import Head, SupervisedHead, weighted_cross_entropy
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.tasks.protocol import Meter, Task
from rankzero.model.image_positions import image_positions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.shardings import sharding_section

if TYPE_CHECKING:
    from rankzero.engine.inputs import Inputs


class Perplexity:
    """exp(eval_loss), with the exponent cut at 700: what the loss of a token says of choices."""

    def add(self, logits_NV: torch.Tensor, batch: MicroBatch) -> None:
        """Follows from the loss alone."""

    def metrics(self, eval_loss: float) -> dict[str, float]:
        return {"perplexity": math.exp(min(eval_loss, 700.0))}


class SupervisedFineTuning:
    """Tokens of answers."""

    def labels(self, spec: RunSpec, data: TrainingData) -> tuple[str, ...] | None:
        return None

    def collator(self, inputs: Inputs, *, padding_free: bool, always_image: bool) -> Collator:
        if inputs.vision is not None:
            threads = torch.get_num_threads()  # this process's share of the cores
            return PicturedText(
                inputs.vision,
                always_image=always_image,
                workers=threads,
                padding_free=padding_free,
                positions=image_positions(inputs.config, inputs.vision) if padding_free else None,
            )
        return text_collator(inputs, padding_free=padding_free)

    def head(self, parallel: Parallel, spec: RunSpec) -> Head:
        return head_over_vocabulary(parallel, spec)

    def loss_sum(self, logits_NV: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return weighted_cross_entropy(logits_NV, batch)

    def step_meter(self, device: torch.device) -> Meter | None:
        return None

    def meter(self, labels: tuple[str, ...] | None, device: torch.device) -> Meter:
        return Perplexity()


def text_collator(inputs: Inputs, *, padding_free: bool) -> Collator:
    """Of rows without images, whatever the model sees."""
    if not padding_free:
        return PaddedText()
    return PackedText(None if inputs.vision is None else image_positions(inputs.config, inputs.vision))


def head_over_vocabulary(parallel: Parallel, spec: RunSpec) -> SupervisedHead:
    """Of a model that writes text."""
    return SupervisedHead(
        parallel.model,
        parallel.module,
        offload_activations=spec.train.activation_offloading,
        in_parts=True,
        called_once=not sharding_section(parallel.name).head_stays,
        together=parallel.same_passes,
        any_length=not spec.train.torch_compile,
    )


TASK: Task = SupervisedFineTuning()
