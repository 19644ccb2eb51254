"""Rows that lie end to end do not see each other, whatever computes them, and are computed as padded ones are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.errors import ConfigError
from rankzero.model import varlen
from rankzero.model.attention import PROVEN
from tests.unit.model.packed import SIZES, TEXT, Rows, collated, losses, per_row, tiny


@pytest.mark.parametrize("model_type", sorted(PROVEN))
def test_rows_end_to_end_do_not_see_each_other(model_type: str) -> None:
    """Each row's losses are those of the row alone under another implementation; and a row that changes changes the
    losses of no other by a single bit. (An expert's tokens are multiplied together, so there rounding may move.)"""
    rows, model = Rows(), tiny(model_type)
    with torch.no_grad():
        packed = per_row(losses(model, collated(rows, PackedText())), rows)
        for changed in range(len(rows.ids)):
            other = rows.with_another(changed)
            after = per_row(losses(model, collated(other, PackedText())), other)
            for i, (was, now) in enumerate(zip(packed, after, strict=True)):
                if i == changed:
                    assert (was - now).abs().max() > 1e-3
                elif {"num_experts", "num_local_experts", "n_routed_experts"} & SIZES.get(model_type, {}).keys():
                    torch.testing.assert_close(was, now, rtol=0, atol=1e-6)
                else:
                    assert torch.equal(was, now)
        model.config._attn_implementation = "eager"
        for i, mine in enumerate(packed):
            alone = Rows((1,))
            alone.ids = [rows.ids[i]]
            torch.testing.assert_close(mine, losses(model, collated(alone, PaddedText())), rtol=0, atol=1e-5)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_losses_and_gradients_are_those_of_padded_rows(model_type: str, adapters: bool, checkpointing: bool) -> None:
    rows = Rows()
    results = []
    for implementation, collator in (("sdpa", PaddedText()), ("varlen", PackedText())):
        model = tiny(model_type, implementation)
        if adapters:
            torch.manual_seed(1)
            config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
            model = get_peft_model(model, config)
        if checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        batch = collated(rows, collator)
        found = losses(model, batch)
        found.sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        results.append((found.detach(), gradients))
    (padded, padded_gradients), (packed, packed_gradients) = results
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)
    assert packed_gradients.keys() == padded_gradients.keys() and packed_gradients
    for name, gradient in packed_gradients.items():
        assert gradient is not None and gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, padded_gradients[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_no_gradient_flows_from_one_row_into_another(model_type: str) -> None:
    rows, model = Rows(), tiny(model_type)
    batch = collated(rows, PackedText())
    embeddings = model.get_input_embeddings()(batch.inputs["input_ids"]).detach().requires_grad_()
    inputs = {**batch.inputs, "input_ids": None, "inputs_embeds": embeddings}
    logits_NV = model(**inputs, use_cache=False).logits[batch.predicts_BT]
    found = per_row(cross_entropy(logits_NV, batch.targets_N, reduction="none"), rows)
    borders = batch.inputs["cu_seq_lens_q"].tolist()
    for i, loss in enumerate(found):
        (gradient,) = torch.autograd.grad(loss.sum(), embeddings, retain_graph=True)
        own = torch.zeros(batch.computed, dtype=torch.bool)
        own[borders[i] : borders[i + 1]] = True
        assert gradient[0, own].abs().max() > 0
        assert not gradient[0, ~own].any()


class Largest(TorchDispatchMode):
    """The most values that any tensor made inside has."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))])
        return out


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_nothing_is_made_of_all_tokens_squared(model_type: str) -> None:
    rows = Rows((16,) * 96)
    tokens = 16 * 96
    batch = collated(rows, PackedText())
    sizes = {}
    for implementation in ("varlen", "sdpa"):
        with torch.no_grad(), Largest() as seen:
            losses(tiny(model_type, implementation), batch)
        sizes[implementation] = seen.most
    assert sizes["varlen"] <= tokens * TEXT["vocab_size"]  # the logits
    assert sizes["sdpa"] >= tokens**2  # what there would be otherwise


def test_a_single_long_row_keeps_its_window_without_a_mask() -> None:
    rows, model = Rows((300,)), tiny("mistral", sliding_window=9, max_position_embeddings=512)
    with torch.no_grad():
        packed = losses(model, collated(rows, PackedText()))
        padded = losses(model, collated(rows, PaddedText()))
        model.config._attn_implementation = "eager"
        reference = losses(model, collated(rows, PaddedText()))
        model.config.sliding_window = 300
        unlimited = losses(model, collated(rows, PaddedText()))
    torch.testing.assert_close(packed, reference, rtol=0, atol=1e-5)
    torch.testing.assert_close(padded, reference, rtol=0, atol=1e-5)
    assert (unlimited - reference).abs().max() > 1e-3


def test_padded_batches_and_generation_are_computed_as_sdpa_does() -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 90, (3, 11)))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[2, :7] = 0
    out = {}
    for implementation in ("sdpa", "varlen"):
        model = tiny("gemma3_text", implementation)
        with torch.no_grad():
            written = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None)
            out[implementation] = [model(ids, attention_mask=mask).logits, model(ids).logits, written]
    assert all(torch.equal(a, b) for a, b in zip(out["sdpa"], out["varlen"], strict=True))


def test_bfloat16_under_autocast_agrees_with_padding() -> None:
    rows, model = Rows(), tiny("qwen3")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        packed, padded = (losses(model, collated(rows, collator)) for collator in (PackedText(), PaddedText()))
    torch.testing.assert_close(packed, padded, rtol=0, atol=0.05)


@pytest.fixture
def eager_compiler() -> Iterator[None]:
    """What transformers compiles for flex_attention runs uncompiled: the same mask, without minutes of compiling."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.filterwarnings("ignore:.*flex_attention")
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_flex_attention_keeps_rows_apart_too(model_type: str, eager_compiler: None) -> None:
    rows, model = Rows(), tiny(model_type, "flex_attention", num_key_value_heads=4)
    with torch.no_grad():
        packed = losses(model, collated(rows, PackedText()))
        after = losses(model, collated(rows.with_another(1), PackedText()))
        model.config._attn_implementation = "sdpa"
        padded = losses(model, collated(rows, PaddedText()))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)
    for i, (was, now) in enumerate(zip(per_row(packed, rows), per_row(after, rows), strict=True)):
        assert torch.equal(was, now) == (i != 1)


def test_a_model_that_does_not_say_where_rows_begin_is_refused_rather_than_wrong() -> None:
    """Some models drop it on the way to their layers. Without the refusal, rows would see each other."""
    inputs = collated(Rows(), PackedText()).inputs
    kept = {name: inputs[name] for name in ("input_ids", "position_ids")}
    with pytest.raises(ConfigError, match="LlamaAttention is not told where rows begin") as caught:
        tiny("llama")(**kept, use_cache=False)
    assert caught.value.problems[0].where == "train.padding_free"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"softcap": 30.0}, "needs softcap"),
        ({"s_aux": torch.zeros(4)}, "needs s_aux"),
        ({"dropout": 0.1}, "needs attention dropout"),
        ({"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)}, "makes a mask of its own"),
    ],
)
def test_what_the_kernel_lacks_is_refused(given: dict[str, Any], message: str) -> None:
    query = torch.zeros(1, 4, 6, 8)
    call = {"attention_mask": None, "cu_seq_lens_q": torch.tensor([0, 2, 6]), "max_length_q": 4, **given}
    with pytest.raises(ConfigError, match=message):
        varlen.varlen_attention(torch.nn.Identity(), query, query, query, **call)


def reference_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """torch's variable-length attention as its documentation defines it, one softmax after the other. Where a row has
    fewer queries than keys, the last query stands at the last key, as in flash-attention from 2.1 on."""
    assert query.shape[-1] % 8 == 0 and query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    assert (cu_seq_q[-1], cu_seq_k[-1]) == (len(query), len(key))
    assert enable_gqa == (query.shape[1] != key.shape[1])
    left, right = window_size
    out = torch.empty_like(query)
    group = query.shape[1] // key.shape[1]
    for (start, end), (first, last) in zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True):
        for head in range(query.shape[1]):
            q, k, v = query[start:end, head], key[first:last, head // group], value[first:last, head // group]
            away = torch.arange(last - first)[last - first - (end - start) :, None] - torch.arange(last - first)
            seen = (away <= left if left >= 0 else away == away) & (-away <= right if right >= 0 else away == away)
            scores = (q @ k.T * scale).masked_fill(~seen, float("-inf"))
            out[start:end, head] = scores.softmax(-1) @ v
    return out


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "mistral", "deepseek_v3", "granite"])
def test_the_kernel_is_given_what_it_asks_for(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, scale, windows, grouped heads and heads of an odd size, against a kernel written from its definition."""
    rows, model = Rows(), tiny(model_type)
    kernel = Mock(side_effect=reference_kernel)
    with torch.no_grad():
        one_by_one = losses(model, collated(rows, PackedText()))
        monkeypatch.setattr(varlen, "_KERNEL", kernel)
        monkeypatch.setattr(varlen, "_kernel_takes", lambda query, value: True)
        in_one_kernel = losses(model, collated(rows, PackedText()))
    assert kernel.call_count == model.config.num_hidden_layers
    torch.testing.assert_close(one_by_one, in_one_kernel, rtol=0, atol=1e-5)


def first_heads_only(*given: torch.Tensor | int, **options: Any) -> torch.Tensor:
    """A kernel that knows no groups: head h takes the keys of head h, and those behind the last take its."""
    query, key, value, *rest = given
    assert isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor)
    heads = torch.arange(query.shape[1]).clamp(max=key.shape[1] - 1)
    return reference_kernel(query, key[:, heads], value[:, heads], *rest, **{**options, "enable_gqa": False})  # type: ignore[arg-type]


def refuses(*_given: Any, **_options: Any) -> torch.Tensor:
    raise RuntimeError("Number of heads in key/value must divide number of heads in query\nand more")


@pytest.mark.parametrize(
    ("kernel", "right", "said"),
    [
        (reference_kernel, True, ""),
        (first_heads_only, False, "in one kernel: torch's gives something else"),
        (refuses, False, "torch says Number of heads in key/value must divide number of heads in query"),
    ],
)
def test_a_kernel_is_tried_before_it_is_used(
    kernel: Any, right: bool, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(varlen, "_KERNEL", kernel)
    varlen.computes_attention.cache_clear()
    with caplog.at_level("WARNING", logger="rankzero.model"):
        assert varlen.computes_attention("cpu") is right
        assert varlen.computes_attention("cpu", causal=False) is (kernel is not refuses)  # towers have no groups
    varlen.computes_attention.cache_clear()
    assert all(record.getMessage().endswith(said) for record in caplog.records)
    assert len(caplog.records) == {reference_kernel: 0, first_heads_only: 1, refuses: 2}[kernel]


def test_torch_2_11_is_not_told_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def varlen_attn(query: Any, *, scale: float | None = None, window_size: tuple[int, int] = (-1, -1)) -> Any:
        return query, scale, window_size

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    kernel = varlen._find_kernel()
    assert kernel is not None
    assert kernel(1, scale=2.0, window_size=(3, 0), enable_gqa=True) == (1, 2.0, (3, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 33])
def test_the_kernel_of_torch_agrees_with_rows_one_by_one(window: int | None) -> None:
    """Forward and backward in bfloat16, grouped heads, against float32."""
    borders = torch.tensor([0, 100, 101, 357, 512], dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 512, 64, device="cuda") for heads in (8, 2, 2))
    mask = varlen.Pattern(True, window).as_mask("cuda")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (x.to(dtype).requires_grad_() for x in (query, key, value))
        out, _ = varlen.varlen_attention(
            torch.nn.Identity(), q, k, v, mask, cu_seq_lens_q=borders, max_length_q=256, is_causal=True
        )
        out.square().sum().backward()
        results.append([out.detach(), q.grad, k.grad, v.grad])
    assert varlen._kernel_takes(query.bfloat16(), value.bfloat16())
    for exact, half in zip(*results, strict=True):
        assert (exact - half.float()).norm() < 0.02 * exact.norm()


def test_the_name_is_not_written_into_a_saved_model(tmp_path: Any) -> None:
    tiny("llama").save_pretrained(tmp_path)
    assert "varlen" not in (tmp_path / "config.json").read_text()
