"""The loss and its gradient are torch's, in every precision, and what it was computed from is gone behind it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rankzero.model import cross_entropy
from rankzero.model.cross_entropy import cross_entropy_sum


def drawn(dtype: torch.dtype, *, spread: float = 3.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of 7 targets in a vocabulary of 50, the targets and their weights, one of them 0."""
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(7, 50, generator=draw, dtype=torch.double) * spread).to(dtype)
    weights = torch.rand(7, generator=draw)
    weights[3] = 0
    return logits.requires_grad_(), torch.randint(0, 50, (7,), generator=draw), weights


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spread", [0.1, 3.0, 300.0])
def test_it_is_torchs(dtype: torch.dtype, weighted: bool, spread: float) -> None:
    logits, targets, weights = drawn(dtype, spread=spread)
    exact = logits.detach().double().requires_grad_()
    wanted = functional.cross_entropy(exact, targets, reduction="none")
    wanted = (wanted * weights).sum() if weighted else wanted.sum()
    found = cross_entropy_sum(logits, targets, weights if weighted else None)
    assert found.dtype is torch.promote_types(dtype, torch.float32)
    digits = 1e-12 if dtype is torch.float64 and not weighted else 1e-6
    torch.testing.assert_close(found.double(), wanted, rtol=digits, atol=0)
    (of_exact,), (of_found,) = torch.autograd.grad(wanted * 3, exact), torch.autograd.grad(found * 3, logits)
    assert of_found.dtype is dtype
    torch.testing.assert_close(of_found, of_exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_how_many_are_computed_at_once_changes_no_bit(
    dtype: torch.dtype, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for at_once in (1, 3, 7, 100):
        monkeypatch.setattr(cross_entropy, "_AT_ONCE", at_once)
        logits, targets, weights = drawn(dtype)
        loss = cross_entropy_sum(logits, targets, weights if weighted else None)
        with torch.no_grad():
            assert cross_entropy_sum(logits, targets, weights if weighted else None).equal(loss)
        results.append((loss.detach(), *torch.autograd.grad(loss, logits)))
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(results[0], other, strict=True))


def test_certain_predictions_have_a_loss_of_zero_and_wrong_ones_a_finite_one() -> None:
    logits = torch.tensor([[200.0, 0.0], [200.0, 0.0]], requires_grad=True)
    assert cross_entropy_sum(logits[:1], torch.tensor([0])).item() == 0
    assert cross_entropy_sum(logits[1:], torch.tensor([1])).item() == 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_targets_have_no_loss(dtype: torch.dtype) -> None:
    logits = torch.empty(0, 50, dtype=dtype, requires_grad=True)
    loss = cross_entropy_sum(logits, torch.empty(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and logits.grad.shape == (0, 50)


def test_logits_stay_as_they_are_and_gradients_are_computed_once() -> None:
    logits, targets, _ = drawn(torch.float32)
    before = logits.detach().clone()
    loss = cross_entropy_sum(logits, targets)
    loss.backward(retain_graph=True)
    assert torch.equal(logits, before)
    with pytest.raises((RuntimeError, AttributeError)):
        loss.backward()
    with torch.no_grad():
        assert cross_entropy_sum(logits, targets).item() == loss.item()
