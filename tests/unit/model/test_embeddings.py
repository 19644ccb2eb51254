"""Embeddings in half precision on a CPU: gradients of tokens that come up often are added up in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankzero.model.embeddings import sum_embeddings


class Scaled(torch.nn.Embedding):
    """As Gemma's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def gradient_of(module: Any, dtype: torch.dtype) -> torch.Tensor:
    """Of a token that comes up 4,000 times, another that does once, and padding."""
    torch.manual_seed(0)
    ids = torch.tensor([[0] * 4000 + [3, 1]])
    module = module.to(dtype)
    module.zero_grad()
    out = module(ids)
    assert out.dtype is dtype
    out.backward(torch.rand(out.shape).to(dtype))
    gradient: torch.Tensor = module.weight.grad
    assert gradient.dtype is dtype
    return gradient.float().clone()


@pytest.mark.parametrize("kind", [torch.nn.Embedding, Scaled])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_frequent_tokens_are_whole(kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = kind(5, 16, padding_idx=1)
    wanted = gradient_of(module, torch.float32)
    assert wanted[0].min() > 1900 and not wanted[1].any()
    lacking = gradient_of(module, dtype)
    assert (lacking - wanted).norm() > 0.1 * wanted.norm() or dtype is torch.float16, "torch has mended this"
    names, name = set(module.state_dict()), type(module).__name__
    assert sum_embeddings(module) == 1 == sum_embeddings(module)
    assert (set(module.state_dict()), type(module).__name__) == (names, name)
    torch.testing.assert_close(gradient_of(module, dtype), wanted, rtol=0.01, atol=0.01)


def test_what_is_looked_up_and_frozen_weights_stay() -> None:
    module, ids = Scaled(5, 16).bfloat16(), torch.tensor([1, 4, 1])
    wanted = module(ids)
    sum_embeddings(module)
    assert torch.equal(module(ids), wanted) and isinstance(module, Scaled)
    module.requires_grad_(requires_grad=False)
    assert torch.equal(module(ids), wanted) and not module(ids).requires_grad
