"""What a model predicts in a pass, and the loss of it: of the trained tokens, or of each row's class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from transformers.utils import ModelOutput

from rankzero.data.batches.loader import MicroBatch
from rankzero.engine.balance import same_draws_again
from rankzero.engine.console import logger
from rankzero.engine.distributed import any_rank
from rankzero.model.activations import offloaded
from rankzero.model.chunked_loss import Tail
from rankzero.model.cross_entropy import cross_entropy_sum
from rankzero.model.varlen import rows_of_pass

LossSum = Callable[[torch.Tensor, MicroBatch], torch.Tensor]
"""From the logits of targets to the sum of their losses, each times its weight. The batch has these targets only."""


def weighted_cross_entropy(logits_NV: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Cross entropy of each target times its weight, summed up: what most tasks train with."""
    return cross_entropy_sum(logits_NV, batch.targets_N, batch.weights_N)


class Head(Protocol):
    """Logits for a pass's targets, and their loss."""

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        """Shape (N, vocabulary) or (N, classes), one row for each of the batch's targets."""
        ...

    def loss_sum(self, batch: MicroBatch, of_logits: LossSum) -> torch.Tensor:
        """The sum of the losses of the batch's targets, by `of_logits` of all of them, or of some after the other."""
        ...


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a pass predicts: the logits of its targets, or the hidden states that logits are made of, some of them at a
    time."""

    logits_NV: torch.Tensor | None
    decoded: tuple[torch.Tensor, type[ModelOutput]] | None = None
    tail: Tail | None = None

    def loss_sum(self, batch: MicroBatch, of_logits: LossSum) -> torch.Tensor:
        """By `of_logits` of all targets of the pass, or of some after the other."""
        if self.tail is None or self.decoded is None:
            assert self.logits_NV is not None
            return of_logits(self.logits_NV, batch)

        def part_loss(logits_nV: torch.Tensor, part: slice) -> torch.Tensor:
            weights_N = None if batch.weights_N is None else batch.weights_N[part]
            return of_logits(logits_nV, replace(batch, targets_N=batch.targets_N[part], weights_N=weights_N))

        return self.tail.loss_sum(*self.decoded, part_loss)


class SupervisedHead:
    """Lets the output head see only the positions whose next token is trained, and only some of them at a time.

    Logits are the largest tensor of a pass (T x vocabulary) and most of them are never used. A forward pre-hook on the
    head drops the others, so this works for any architecture, adapters included, without touching its code.
    """

    def __init__(
        self,
        model: Any,
        module: Any,
        *,
        offload_activations: bool = False,
        in_parts: bool = False,
        called_once: bool = False,
        together: bool = False,
        any_length: bool = True,
    ) -> None:
        """`model` is called; `module` is the Hugging Face model inside it, whose output head is hooked. `in_parts`:
        the loss is computed some targets at a time, where it can be. `called_once`: as in `Tail`. `together`: all ranks
        run the same passes. `any_length`: a pass of a few tokens is as good as any other, and nothing is compiled for
        it."""
        self._model = model
        self._module = module
        self._offload = offload_activations
        self._in_parts = in_parts
        self._called_once = called_once
        self._together = together
        self._any_length = any_length
        self._places_N: torch.Tensor | None = None
        self._tail: Tail | None = None
        module.get_output_embeddings().register_forward_pre_hook(self._select)

    def _select(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._places_N is None:
            return None
        return (inputs[0].flatten(0, 1)[self._places_N], *inputs[1:])

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        return self._logits_at(batch, batch.predicts_N)

    def _logits_at(self, batch: MicroBatch, places_N: torch.Tensor | None) -> torch.Tensor:
        self._places_N = places_N
        try:
            with offloaded(True) if self._offload else nullcontext(), rows_of_pass(batch.sequences):
                logits_NV: torch.Tensor = self._model(**batch.inputs, use_cache=False).logits
        finally:
            self._places_N = None
        return logits_NV

    def loss_sum(self, batch: MicroBatch, of_logits: LossSum) -> torch.Tensor:
        return self.predict(batch).loss_sum(batch, of_logits)

    def predict(self, batch: MicroBatch) -> Predicted:
        """The pass, as far as its targets' loss."""
        places_N = batch.predicts_N
        if self._in_parts and self._tail is None and places_N is not None:
            self._tail = self._find_tail(batch)
        tail = self._tail
        if tail is None or places_N is None:
            return Predicted(self.logits(batch))
        with tail.without_head():
            decoded = tail.decoded(places_N, lambda: self._logits_at(batch, None))
        return Predicted(None, decoded, tail)

    def _find_tail(self, batch: MicroBatch) -> Tail | None:
        """Look in the first pass whether what the model does behind its decoder can be done by itself, and comes to
        the same. Where it cannot, logits of all targets are there at once from now on.

        At the pass's first token, whether or not it has a target: this is a pass of the model more, which ranks that
        have slices of the same rows make together. A pass of text is cut to its first tokens: no token sees later ones.
        """
        if self._any_length:
            batch = first_tokens(batch)
        try:
            tail = Tail(self._module, called_once=self._called_once)
            place_1 = torch.zeros(1, dtype=torch.int64, device=batch.targets_N.device)
            with torch.no_grad(), same_draws_again(place_1.device):
                usual: list[torch.Tensor] = []
                decoded = tail.decoded(place_1, lambda: usual.append(self._logits_at(batch, place_1).float()))
                found = tail.logits(*decoded).float()
            bound = 1e-2 * (usual[0].abs() + usual[0].abs().max())
            if not ((found - usual[0]).abs() <= bound).all():
                raise ValueError("logits of the same hidden states differ")
            why = None
        except (ValueError, TypeError, AttributeError) as error:
            why = error
        # Casts of weights, which autocast would have the real pass use again: made before its blocks begin, their
        # backward would come after FSDP has taken the blocks' gradients.
        torch.clear_autocast_cache()
        others = self._together and any_rank(why is not None, batch.targets_N.device)
        if why is not None or others:
            logger.debug("[TRAIN] logits of a pass are computed at once: %s", why or "on another rank they must be")
            self._in_parts = False
            return None
        return tail


def first_tokens(batch: MicroBatch) -> MicroBatch:
    """The first tokens of the first row, predicting from the first of them, where a pass is nothing but text; else all
    of it."""
    if batch.predicts_N is None or not batch.inputs.keys() <= _OF_TOKENS | _OF_BORDERS:
        return batch
    few = {name: batch.inputs[name][..., :1, :_LOOKED_AT] for name in _OF_TOKENS & batch.inputs.keys()}
    return replace(
        batch,
        rows=batch.rows[:1],
        inputs=few,
        predicts_N=batch.predicts_N.new_zeros(1),
        targets_N=batch.targets_N.new_zeros(1),
        weights_N=None,
        answer_N=None,
        row_of_BT=batch.row_of_BT[:1, :_LOOKED_AT],
        position_BT=batch.position_BT[:1, :_LOOKED_AT],
    )


_OF_TOKENS = {"input_ids", "position_ids"}
_OF_BORDERS = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
"""Where rows end to end begin."""
_LOOKED_AT = 8
"""Tokens. Of one, or of none, some kernels make something else."""


class ClassHead:
    """One prediction for each row, from a sequence classification model."""

    def __init__(self, model: Any, *, offload_activations: bool = False) -> None:
        self._model = model
        self._offload = offload_activations

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        with offloaded(True) if self._offload else nullcontext():
            logits_BC: torch.Tensor = self._model(**batch.inputs).logits
        return logits_BC[: len(batch.targets_N)]  # an idle pass has a row, and no target

    def loss_sum(self, batch: MicroBatch, of_logits: LossSum) -> torch.Tensor:
        return of_logits(self.logits(batch), batch)
