"""Models over slices of a pass compute what they compute over all of it: losses, and gradients summed over slices."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.sliced import SlicedText
from rankzero.errors import ConfigError
from rankzero.model import context_attention, varlen
from rankzero.model.attention import PROVEN, Attention, choose_attention
from tests.support.slices import in_slices
from tests.unit.model.packed import CPU, LENGTHS, Rows, collated, losses, tiny
from tests.unit.model.test_varlen import reference_kernel

BORDERS_INSIDE, ONE_ROW = LENGTHS, (29,)


def of_slices(model: Any, rows: Rows, slices: int, *, gradients: bool = False) -> list[tuple[float, dict[str, Any]]]:
    """Each slice's sum of losses and, where asked for, its share of the gradients. A model for each of them, since what
    transformers keeps on one is not made for threads."""
    numbers, copies = np.arange(len(rows.ids)), [copy.deepcopy(model) for _ in range(slices)]

    def one(number: int, gather: Any) -> tuple[float, dict[str, Any]]:
        batch = SlicedText(number=number, slices=slices, gather=gather)(rows, numbers, CPU)  # type: ignore[arg-type]
        with torch.set_grad_enabled(gradients), varlen.rows_of_pass(len(batch.rows)):
            loss = losses(copies[number], batch).sum()
        if gradients:
            loss.backward()
        return loss.item(), {name: parameter.grad for name, parameter in copies[number].named_parameters()}

    return in_slices(slices, one)


def whole(model_type: str, rows: Rows, **sizes: Any) -> tuple[Any, torch.Tensor]:
    """A model that takes slices, and its sum of losses over a whole pass."""
    model = tiny(model_type, **sizes)
    context_attention.register()
    loss = losses(model, collated(rows, PackedText())).sum()
    model.config._attn_implementation = context_attention.NAME
    return model, loss


@pytest.mark.parametrize("model_type", sorted(PROVEN))
def test_every_model_that_is_packed_is_computed_in_slices(model_type: str) -> None:
    rows = Rows(BORDERS_INSIDE)
    with torch.no_grad():
        model, expected = whole(model_type, rows)
    found = sum(loss for loss, _ in of_slices(model, rows, 2))
    assert found == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("lengths", [BORDERS_INSIDE, ONE_ROW])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3", "gpt2"])
@pytest.mark.parametrize(("slices", "checkpointing"), [(2, True), (3, False)])
def test_gradients_of_slices_add_up_to_those_of_the_pass(
    model_type: str, lengths: tuple[int, ...], slices: int, checkpointing: bool
) -> None:
    """Also of a row that is longer than a slice, and where layers are computed again for the backward pass."""
    rows = Rows(lengths)
    model, loss = whole(model_type, rows, resid_pdrop=0.0, embd_pdrop=0.0)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    parts = of_slices(model, rows, slices, gradients=True)
    assert sum(part for part, _ in parts) == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in expected.items():
        shares = [of_part[name] for _, of_part in parts if of_part[name] is not None]
        if gradient is None:
            assert not shares, name
        else:
            torch.testing.assert_close(sum(shares), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [5, 9, 14])
def test_a_window_that_is_wider_than_a_slice_is_kept(window: int) -> None:
    """The slices have 8 tokens of a row of 29; a model that is told of no window gives another loss."""
    rows = Rows(ONE_ROW)
    with torch.no_grad():
        model, expected = whole("mistral", rows, sliding_window=window)
        _, without = whole("mistral", rows, sliding_window=64)
    assert abs(without.item() - expected.item()) > 1e-3
    assert sum(loss for loss, _ in of_slices(model, rows, 4)) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "mistral", "deepseek_v3"])
def test_the_kernel_is_given_what_it_asks_for(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer two chunks, of fewer queries than keys, against a kernel written from its definition."""
    rows, kernel = Rows(BORDERS_INSIDE), Mock(side_effect=reference_kernel)
    with torch.no_grad():
        model, expected = whole(model_type, rows)
    monkeypatch.setattr(varlen, "_KERNEL", kernel)
    monkeypatch.setattr(varlen, "_kernel_takes", lambda query, value: True)
    assert sum(loss for loss, _ in of_slices(model, rows, 2)) == pytest.approx(expected.item(), rel=1e-5)
    assert kernel.call_count == 2 * 2 * model.config.num_hidden_layers


def test_half_precision_under_autocast_agrees() -> None:
    rows = Rows(BORDERS_INSIDE)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model, expected = whole("qwen3", rows)

    def one(number: int, gather: Any) -> float:
        batch = SlicedText(number=number, slices=2, gather=gather)(rows, np.arange(4), CPU)  # type: ignore[arg-type]
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return losses(copies[number], batch).sum().item()

    copies = [copy.deepcopy(model) for _ in range(2)]
    assert sum(in_slices(2, one)) == pytest.approx(expected.item(), rel=5e-3)


def test_whole_passes_and_generation_are_computed_as_sdpa_does() -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 90, (3, 11)))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[2, :7] = 0
    context_attention.register()
    out = {}
    for implementation in ("sdpa", context_attention.NAME):
        model = tiny("gemma3_text", implementation)
        with torch.no_grad():
            written = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None)
            alone = model.generate(ids[:1, 4:], max_new_tokens=8, do_sample=False, eos_token_id=None)
            out[implementation] = [written, alone, model(ids, attention_mask=mask).logits, model(ids).logits]
    for sdpa, context in zip(out["sdpa"], out[context_attention.NAME], strict=True):
        torch.testing.assert_close(context, sdpa, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"softcap": 30.0}, "needs softcap"),
        ({"dropout": 0.1}, "needs attention dropout"),
        ({"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)}, "makes a mask of its own"),
    ],
)
def test_what_the_kernel_lacks_is_refused(given: dict[str, Any], message: str) -> None:
    rows: Any = Rows((6,))
    part = SlicedText(number=0, slices=1, gather=lambda own: own[None])(rows, np.arange(1), CPU)
    query = torch.zeros(1, 4, 6, 8)
    call = {"attention_mask": None, "context_slice": part.inputs["context_slice"], **given}
    with pytest.raises(ConfigError, match=message) as caught:
        context_attention.attention(torch.nn.Identity(), query, query, query, **call)
    assert caught.value.problems[0].where == "train.context_parallel"


def choose(model_type: str, kind: Any = "causal", **values: Any) -> Attention:
    config = AutoConfig.for_model(model_type, **values)
    return choose_attention(kind, config, "cpu", torch.float32, wanted="auto", free="auto", sliced=True)


def test_slices_have_an_attention_of_their_own() -> None:
    assert choose("llama") == Attention(context_attention.NAME, True)


@pytest.mark.parametrize(
    ("model_type", "values", "reasons"),
    [
        ("qwen3_next", {}, ["linear_attention layers"]),
        ("mamba", {}, ["linear_attention layers", "cannot be computed with sdpa"]),
        ("bloom", {}, ["has not been shown to keep rows apart", "cannot be computed with sdpa"]),
        ("llama", {"attention_dropout": 0.1}, ["attention dropout"]),
        (
            "llama",
            {
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
                "attention_dropout": 0.1,
            },
            ["attention dropout", "dynamic depend on the longest row"],
        ),
    ],
)
def test_what_cannot_be_sliced_is_refused_with_all_reasons(
    model_type: str, values: dict[str, Any], reasons: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(model_type, **values)
    problems = caught.value.problems
    assert [problem.where for problem in problems] == ["train.context_parallel"] * len(reasons)
    assert all(reason in problem.what for reason, problem in zip(reasons, problems, strict=True))


def test_images_and_classes_are_not_sliced() -> None:
    with pytest.raises(ConfigError, match="rows with images are not cut"):
        choose("qwen3_vl", "vision")
    with pytest.raises(ConfigError, match="rows of a classifier are padded"):
        choose("bert", "classifier")
