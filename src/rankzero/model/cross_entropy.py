"""Cross entropy whose gradient takes the place of what the loss was computed from. Knows tensors.

Torch's keeps logits in float32, their logarithmic softmax, and makes the gradient of each: four tensors of the size of
all logits, and as many ways through memory. Here it is one, P = softmax(logits) in float32:

    loss = -log P[target] = top - logits[target] - log max P,  where top is the largest logit
    gradient = weight (P - 1 at the target), in place, then in the precision of the logits

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


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor, weights_N: torch.Tensor | None
    ) -> torch.Tensor:
        targets_N1 = targets_N[:, None]
        exact = torch.promote_types(logits_NV.dtype, torch.float32)
        softmax_NV = logits_NV.to(exact).softmax(-1)
        top_N1, at_target_N1 = logits_NV.amax(-1, keepdim=True), logits_NV.gather(1, targets_N1)
        losses_N1 = top_N1.to(exact) - at_target_N1.to(exact) - softmax_NV.amax(-1, keepdim=True).log()
        ctx.softmax_NV, ctx.dtype = softmax_NV if logits_NV.requires_grad else None, logits_NV.dtype
        ctx.save_for_backward(targets_N1, weights_N)
        return losses_N1.sum() if weights_N is None else losses_N1[:, 0].mul_(weights_N).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        targets_N1, weights_N = ctx.saved_tensors
        softmax_NV, ctx.softmax_NV = ctx.softmax_NV, None
        softmax_NV.scatter_add_(1, targets_N1, softmax_NV.new_full(targets_N1.shape, -1.0))
        softmax_NV.mul_(gradient if weights_N is None else gradient * weights_N[:, None])
        return softmax_NV.to(ctx.dtype), None, None
