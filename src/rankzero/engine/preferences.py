"""Rewards of better and worse answers: how much likelier each has become than the reference has it.

    reward = beta x (log p(answer) - log p_reference(answer)), both sums over the answer's trained tokens

(Rafailov et al., "Direct Preference Optimization", 2023, section 4). The reference is the model without its adapters,
or with the weights that it began with, in a pass of its own ahead of the one that trains. What a task makes of the
rewards is its own loss; its gradient with respect to them says how much each token's cross entropy counts, so that
nothing is asked of a model but that: logits of some targets at a time, whatever spreads the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rankzero.data.batches.collators.text import MicroBatch
from rankzero.engine.heads import LossSum, Predicted, SupervisedHead, weighted_cross_entropy
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.reference_weights import ReferenceWeights
from rankzero.model.block_attention import as_trained
from rankzero.model.cross_entropy import target_log_probs
from rankzero.model.lora import adapted_layers, base_alone


class PreferenceHead:
    """Of each row of a pass the reward of its better answer and that of its worse one."""

    def __init__(self, answers: SupervisedHead, parallel: Parallel, *, beta: float) -> None:
        """The model of `parallel` is the reference as it is now."""
        self._answers, self._beta = answers, beta
        self._module = parallel.module
        layers = adapted_layers(parallel.module)
        kept = None if layers else ReferenceWeights(parallel.module)
        self._as_reference = partial(base_alone, layers) if kept is None else kept.in_place

    def logits(self, batch: MicroBatch) -> torch.Tensor:
        """Of the pass's trained tokens."""
        return self._answers.logits(batch)

    def loss_sum(self, batch: MicroBatch, of_logits: LossSum) -> torch.Tensor:
        """`of_logits` is given rewards, (P, 2), and a batch whose P targets are rows: the better answer is number 0."""
        reference_N = self._reference(batch)
        predicted = self._answers.predict(batch)
        with torch.no_grad():  # token by token: of sums over thousands, most digits would be of what has not changed
            gained_A = of_answers(log_probs(predicted, batch) - reference_N, batch)
        # Casts of weights that were made without gradients, which autocast would have the loss use again.
        torch.clear_autocast_cache()
        rewards_P2 = self._beta * gained_A.view(-1, 2)
        rows = replace(batch, targets_N=batch.targets_N.new_zeros(len(rewards_P2)), weights_N=None)
        if not torch.is_grad_enabled():
            return of_logits(rewards_P2, rows)
        loss = of_logits(rewards_P2.requires_grad_(), rows)
        (of_rewards_P2,) = torch.autograd.grad(loss, rewards_P2)
        answer_N = batch.targets_N[:0] if batch.answer_N is None else batch.answer_N
        weights_N = -self._beta * of_rewards_P2.view(-1)[answer_N]
        of_tokens = predicted.loss_sum(replace(batch, weights_N=weights_N), weighted_cross_entropy)
        told: torch.Tensor = _Told.apply(of_tokens, loss.detach())  # type: ignore[no-untyped-call]
        return told

    def _reference(self, batch: MicroBatch) -> torch.Tensor:
        """Log probabilities of the pass's targets by the reference, without dropout."""
        trains = self._module.training  # of what is around it, DeepSpeed's engine say, this need not be so
        self._module.eval()
        alike = as_trained() if torch.is_grad_enabled() else nullcontext()
        try:
            with alike, torch.no_grad(), self._as_reference():
                return log_probs(self._answers.predict(batch), batch)
        finally:
            self._module.train(trains)
            torch.clear_autocast_cache()


def log_probs(predicted: Predicted, batch: MicroBatch) -> torch.Tensor:
    """The logarithm of the probability of each target of a pass, (N), in float32."""
    found: list[torch.Tensor] = []

    def keep(logits_NV: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        found.append(target_log_probs(logits_NV, part.targets_N))
        return logits_NV.new_zeros(())

    predicted.loss_sum(batch, keep)
    return torch.cat(found)


def of_answers(values_N: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """The sum over the targets of each answer of a pass, (A)."""
    if batch.answer_N is None:  # an idle pass has none
        return values_N
    answers_A1 = torch.arange(2 * len(batch.rows), device=values_N.device)[:, None]
    # A scatter would add up in another order each time on a GPU.
    return torch.where(batch.answer_N == answers_A1, values_N, 0.0).sum(dim=1)


class _Told(torch.autograd.Function):
    """The one value, with the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, computed: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        return told.to(computed.dtype).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
