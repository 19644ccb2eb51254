"""Cross entropy whose gradient takes the place of what the loss was computed from. Knows tensors.

Torch's keeps logits in float32, their logarithmic softmax, and makes the gradient of each: four tensors of the size of
all logits, and as many ways through memory. Here it is one, P = softmax(logits) in float32:

    loss = -log P[target] = top - logits[target] - log max P,  where top is the largest logit
    gradient = weight (P - 1 at the target), in place, then in the precision of the logits

On a CPU P of logits in 16 bits exists for some targets at a time, which stay in a core's cache on the way.
The largest of P stands for its sum: exp(top - top) over the sum. P[target] itself can be too small for a float32.
"""

from __future__ import annotations

from typing import Any

import torch


def cross_entropy_sum(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, weights_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum of each target's loss times its weight, in float32 at least. Its gradient can be computed once."""
    loss: torch.Tensor = _CrossEntropy.apply(logits_NV, targets_N, weights_N)  # type: ignore[no-untyped-call]
    return loss


def target_log_probs(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """The logarithm of each target's probability, (N), in float32 at least."""
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    at_target_N = logits_NV.gather(1, targets_N[:, None]).squeeze(1)
    return at_target_N.to(exact) - torch.logsumexp(logits_NV.to(exact), dim=-1)


_AT_ONCE = 8
"""Targets whose P is in float32 at once, where the logits of all are in 16 bits on a CPU. From 2 to 16 are as fast."""


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor, weights_N: torch.Tensor | None
    ) -> torch.Tensor:
        targets_N1 = targets_N[:, None]
        exact = torch.promote_types(logits_NV.dtype, torch.float32)
        in_parts = logits_NV.dtype is not exact and logits_NV.device.type == "cpu"
        gradient_NV = torch.empty_like(logits_NV) if in_parts and logits_NV.requires_grad else None
        largest_N1 = logits_NV.new_empty(targets_N1.shape, dtype=exact)
        for part in _parts(len(logits_NV), _AT_ONCE if in_parts else len(logits_NV)):
            softmax_nV = logits_NV[part].to(exact).softmax(-1)
            largest_N1[part] = softmax_nV.amax(-1, keepdim=True)
            if logits_NV.requires_grad:
                softmax_nV.scatter_add_(1, targets_N1[part], softmax_nV.new_full(softmax_nV[:, :1].shape, -1.0))
                if weights_N is not None:
                    softmax_nV.mul_(weights_N[part, None])
                if gradient_NV is None:
                    gradient_NV = softmax_nV
                else:
                    gradient_NV[part] = softmax_nV
        top_N1, at_target_N1 = logits_NV.amax(-1, keepdim=True), logits_NV.gather(1, targets_N1)
        losses_N1 = top_N1.to(exact) - at_target_N1.to(exact) - largest_N1.log_()
        ctx.gradient_NV, ctx.dtype = gradient_NV, logits_NV.dtype
        return losses_N1.sum() if weights_N is None else losses_N1[:, 0].mul_(weights_N).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gradient_NV, ctx.gradient_NV = ctx.gradient_NV, None
        return gradient_NV.mul_(gradient).to(ctx.dtype), None, None


def _parts(count: int, at_once: int) -> list[slice]:
    """At least one, that may have nothing."""
    return [slice(first, first + at_once) for first in range(0, max(count, 1), max(at_once, 1))]
