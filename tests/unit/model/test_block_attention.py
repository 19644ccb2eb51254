"""Attention in blocks: what torch's own computes, forward and backward, and torch's own where it is not made for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig

from rankzero.model import block_attention, varlen
from rankzero.model.attention import Attention, choose_attention
from rankzero.model.varlen import Borders, Rule


class Layer(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


def tensors(dtype: torch.dtype, *, length: int = 11) -> list[torch.Tensor]:
    """Query of 4 heads, key and value of 2, for 3 rows; as projections leave them, heads behind tokens."""
    torch.manual_seed(0)
    shapes = [(3, length, heads, 8) for heads in (4, 2, 2)]
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def torchs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


@pytest.mark.parametrize(("queries", "at_once"), [(128, 2**19), (4, 2**19), (4, 1), (3, 200)])
@pytest.mark.parametrize("borders", [(0, 11), (0, 4, 5, 11)])
def test_values_and_gradients_are_torchs(
    queries: int, at_once: int, borders: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def row_by_row(*of_rows: torch.Tensor, scale: float) -> torch.Tensor:
        rows = [torchs(*(x[:, :, first:end] for x in of_rows), scale) for first, end in pairwise(borders)]
        return torch.cat(rows, dim=2)

    monkeypatch.setattr(block_attention, "QUERIES", queries)
    monkeypatch.setattr(block_attention, "AT_ONCE", at_once)
    given = tensors(torch.float64)
    results = []
    for attended in (row_by_row(*given, scale=0.3), block_attention.attend(*given, 0.3, borders)):
        results.append((attended, *torch.autograd.grad(attended.square().sum(), given)))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # weights are float32 at least


def test_what_it_returns_may_be_changed_in_place() -> None:
    """No view of a tensor that only it knows, which could not be differentiated then."""
    given = tensors(torch.float64)
    attended = block_attention.attend(*given, 0.3, (0, 11))
    (kept,) = torch.autograd.grad(block_attention.attend(*given, 0.3, (0, 11)).mul(3).sum(), given[:1])
    (found,) = torch.autograd.grad(attended.mul_(3).sum(), given[:1])
    assert torch.equal(found, kept)


@pytest.mark.parametrize("in_float32", [False, True])
def test_bfloat16_is_as_near_to_float32_as_its_digits_allow(in_float32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_attention._Passes, "in_float32", False)
    block_attention.compute_in_float32(in_float32)
    multiplied, own = set(), torch.bmm

    def bmm(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        multiplied.add(one.dtype)
        return own(one, other)

    monkeypatch.setattr(torch, "bmm", bmm)
    exact = tensors(torch.float32, length=150)
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    wanted = torchs(*exact, 8**-0.5)
    found, _ = block_attention.attention(Layer(), *rounded, None)
    assert found.dtype is torch.bfloat16 and "_Attend" in str(found.grad_fn.next_functions[0][0])
    assert found.is_contiguous(), "as the layer behind it takes it"
    wanted.square().sum().backward()
    found.float().square().sum().backward()
    pairs = [(found.transpose(1, 2), wanted), *((r.grad, e.grad) for r, e in zip(rounded, exact, strict=True))]
    for ours, theirs in pairs:
        assert (ours.float() - theirs).norm() < 0.01 * theirs.norm()
    assert multiplied == {torch.float32 if in_float32 else torch.bfloat16}
    assert all(x.grad is not None and x.grad.dtype is torch.bfloat16 for x in rounded)


@pytest.mark.parametrize("case", ["float32", "no gradients", "mask", "both sides"])
def test_what_it_is_not_made_for_is_torchs_own(case: str) -> None:
    query, key, value = tensors(torch.float32 if case == "float32" else torch.bfloat16)
    options: dict[str, Any] = {"is_causal": False} if case == "both sides" else {}
    mask = torch.ones(1, 1, 11, 11, dtype=torch.bool) if case == "mask" else None
    with torch.set_grad_enabled(case != "no gradients"):
        found, _ = block_attention.attention(Layer(), query, key, value, mask, **options)
    key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
    causal = case in ("float32", "no gradients")
    wanted = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal).transpose(1, 2)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", ["rows end to end", "one row", "a window that none fills", "a window", "float32"])
def test_varlen_takes_it_for_whole_rows_in_bfloat16(case: str) -> None:
    query, key, value = (x[:1] for x in tensors(torch.float32 if case == "float32" else torch.bfloat16))
    ends = [0, 11] if case == "one row" else [0, 4, 5, 11]
    window = {"a window": 3, "a window that none fills": 6}.get(case)
    rows = Borders.of(torch.tensor(ends, dtype=torch.int32), max(b - a for a, b in pairwise(ends)))
    found = varlen.attend(query, key, value, rows, Rule(0.3, causal=True, window=window))
    assert (_names(found) & {"_AttendBackward"} != set()) == (case not in ("a window", "float32"))
    wanted = varlen.attend(*(x.float() for x in (query, key, value)), rows, Rule(0.3, causal=True, window=window))
    assert (found.float() - wanted).norm() < 0.01 * wanted.norm()


def test_rows_end_to_end_do_not_see_each_other() -> None:
    """What another row has changes neither values nor gradients of a row, to the last bit."""
    results = []
    for other in (1.0, -3.0):
        given = [x[:1].detach().clone() for x in tensors(torch.bfloat16)]
        for x in given:
            x[:, :, 4:9] *= other
            x.requires_grad_()
        attended = block_attention.attend(*given, 0.3, (0, 4, 9, 11))
        results.append((attended, *torch.autograd.grad(attended.float().square().sum(), given)))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[:, :, :4], after[:, :, :4]) and torch.equal(before[:, :, 9:], after[:, :, 9:])
        assert not torch.equal(before[:, :, 4:9], after[:, :, 4:9])


def _names(result: torch.Tensor) -> set[str]:
    """Of all steps that its gradient takes."""
    found, ahead = set(), [result.grad_fn]
    while ahead:
        step = ahead.pop()
        if step is not None:
            found.add(step.name())
            ahead += [before for before, _ in step.next_functions]
    return found


@pytest.mark.parametrize(("model_type", "padding_free"), [("llama", True), ("nemotron", False)])
def test_it_is_taken_for_causal_models_in_bfloat16_on_a_cpu(model_type: str, padding_free: bool) -> None:
    def chosen(*, dtype: torch.dtype = torch.bfloat16, device: str = "cpu", wanted: str = "auto") -> Attention:
        return choose_attention("causal", AutoConfig.for_model(model_type), device, dtype, wanted=wanted, free="auto")

    assert chosen() == Attention("varlen" if padding_free else "blocks", padding_free)
    assert chosen(dtype=torch.float32) == Attention(None, False)
    assert chosen(device="mps") == Attention(None, False)
    assert chosen(wanted="sdpa") == Attention("sdpa", False)
