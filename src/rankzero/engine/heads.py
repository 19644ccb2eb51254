"""What a model predicts in a pass: logits of the trained tokens, or of each row's class."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol

import torch

from rankzero.data.batches.loader import MicroBatch
from rankzero.model.activations import offloaded


class Head(Protocol):
    """Logits for a pass's targets."""

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        """Shape (N, vocabulary) or (N, classes), one row for each of the batch's targets."""
        ...


class SupervisedHead:
    """Lets the output head see only the positions whose next token is trained.

    Logits are the largest tensor of a pass (T x vocabulary) and most of them are never used. A forward pre-hook on the
    head drops the others, so this works for any architecture, adapters included, without touching its code.
    """

    def __init__(self, model: Any, module: Any, *, offload_activations: bool = False) -> None:
        """`model` is called; `module` is the Hugging Face model inside it, whose output head is hooked."""
        self._model = model
        self._offload = offload_activations
        self._predicts_BT: torch.Tensor | None = None
        module.get_output_embeddings().register_forward_pre_hook(self._select)

    def _select(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._predicts_BT is None:
            return None
        return (inputs[0][self._predicts_BT], *inputs[1:])

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        self._predicts_BT = batch.predicts_BT
        try:
            with offloaded(True) if self._offload else nullcontext():
                logits_NV: torch.Tensor = self._model(**batch.inputs, use_cache=False).logits
        finally:
            self._predicts_BT = None
        return logits_NV


class ClassHead:
    """One prediction for each row, from a sequence classification model."""

    def __init__(self, model: Any, *, offload_activations: bool = False) -> None:
        self._model = model
        self._offload = offload_activations

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        with offloaded(True) if self._offload else nullcontext():
            logits_BC: torch.Tensor = self._model(**batch.inputs).logits
        return logits_BC[: len(batch.targets_N)]  # an idle pass has a row, and no target
