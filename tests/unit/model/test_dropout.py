"""Dropout by place: random enough, the same on every device, and of a row alone, whatever else a pass computes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import LabelledText, MicroBatch, PaddedText
from rankzero.model import dropout_attention, varlen
from rankzero.model.dropout import PlacedDropout, Places, Share, drop, factors, module_key, place_dropout
from rankzero.model.recomputing import recompute_blocks
from rankzero.model.weights import adapter_file_names
from tests.unit.model.packed import Rows, collated

SHAPE = {"vocab_size": 96, "pad_token_id": 0}
BERT = {**SHAPE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
DISTILBERT = {**SHAPE, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
GPT2 = {**SHAPE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LLAMA = {**BERT, "num_key_value_heads": 2}
PYTHIA = {**BERT, "hidden_dropout": 0.1, "attention_dropout": 0.1}
OPT = {**SHAPE, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def aimed(batch: MicroBatch, *, seed: int = 1, step: int = 0) -> Places:
    places = Places(seed)
    places.begin_pass(step, batch.row_of_BT, batch.position_BT, batch.predicts_N)
    return places


def keys_of(rows: int, length: int, *, seed: int = 1, step: int = 0) -> torch.Tensor:
    places = Places(seed)
    places.begin_pass(step, torch.arange(rows)[:, None], torch.arange(length)[None], None)
    keys = places.keys(torch.Size((rows, length)))
    assert keys is not None
    return keys


def kept(keys: torch.Tensor, channels: int, p: float) -> torch.Tensor:
    return factors(keys, channels, Share.of(p)).ne(0).double()


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_masks_are_random(p: float) -> None:
    """Shares of all, of each token, of each channel; neighbours in a token, in a row, in a step; between modules."""
    rows, length, channels = 16, 128, 512
    keys = keys_of(rows, length)
    mask = kept(keys ^ module_key("a"), channels, p)
    assert abs(mask.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / mask.numel())
    for dim, count in ((0, rows * length), (1, channels)):
        shares = mask.reshape(-1, channels).mean(dim)
        spread = (shares - (1 - p)).square().mean() / (p * (1 - p) / count)
        assert abs(spread - 1) < 6 * math.sqrt(2 / len(shares)), "as far from the mean as throws of a coin are"
    apart = (mask - (1 - p)) / math.sqrt(p * (1 - p))
    others = [
        kept(keys ^ module_key("b"), channels, p),
        kept(keys_of(rows, length, step=1) ^ module_key("a"), channels, p),
        kept(keys_of(rows, length, seed=2) ^ module_key("a"), channels, p),
    ]
    pairs = [(apart, (other - (1 - p)) / math.sqrt(p * (1 - p))) for other in others]
    pairs += [(apart[..., :-lag], apart[..., lag:]) for lag in (1, 2, 3, 16, 64, 256)]
    pairs += [(apart[:, :-lag], apart[:, lag:]) for lag in (1, 2, 64)] + [(apart[:-1], apart[1:])]
    for one, another in pairs:
        assert abs((one * another).mean()) < 5 / math.sqrt(one.numel())


@pytest.mark.parametrize("channel", range(7))
def test_masks_are_whole_number_arithmetic(channel: int) -> None:
    """The same as in whole numbers without a bound, so that they cannot depend on how a device multiplies."""
    row, position, seed, step, p = 2**33 + 5, 7, 11, 4, 0.3

    def signed(x: int) -> int:
        return x - 2**32 if x >= 2**31 else x

    def inner(x: int) -> int:
        x = x * 0x7FEB352D % 2**32
        return ((x ^ (signed(x) >> 15)) % 2**32) * 0x846CA68B % 2**32

    def mix(x: int) -> int:
        x = inner((x ^ (signed(x) >> 16)) % 2**32)
        return (x ^ (signed(x) >> 16)) % 2**32

    def digest(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")

    golden = 0x9E3779B9
    key = mix((row ^ (row >> 32)) % 2**32 * golden + digest(f"{seed}/{step}") & 0xFFFFFFFF)
    key = mix((key + position * golden) % 2**32) ^ digest("module")
    both = inner(key ^ channel // 2 * golden % 2**32)
    bits = both >> 16 if channel % 2 else both % 2**16
    number = (bits ^ 2**15) / 2**16
    places = Places(seed)
    places.begin_pass(step, torch.tensor([[row]]), torch.tensor([[position]]), None)
    found = places.keys(torch.Size((1, 1)))
    assert found is not None
    (factor,) = factors(found ^ module_key("module"), 7, Share.of(p))[0, 0, channel : channel + 1].tolist()
    assert factor == pytest.approx(1 / (1 - p) if number < 1 - p else 0, rel=2**-15)


def test_what_is_kept_is_scaled_and_gradients_take_the_same_way() -> None:
    keys, values = keys_of(3, 5), torch.randn(3, 5, 7, dtype=torch.double, requires_grad=True)
    dropped = drop(values, keys, Share.of(0.25))
    mask = factors(keys, 7, Share.of(0.25))
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(dropped, values * mask)
    assert torch.autograd.gradcheck(lambda x: drop(x, keys, Share.of(0.25)), (values,))
    half = values.detach().bfloat16().requires_grad_()
    drop(half, keys, Share.of(0.25)).sum().backward()
    assert half.grad is not None and torch.equal(half.grad, mask.bfloat16())


def attention_inputs(dtype: torch.dtype = torch.double) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]


class Layer(torch.nn.Module):
    """As much of an attention layer as an attention function asks for."""

    is_causal, num_key_value_groups = True, 2


def test_attention_drops_weights_by_row_head_query_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, places = Layer(), Places(1)
    layer.__class__.__name__ = "Attention"
    dropout_attention.place_attention(layer, places)
    places.begin_pass(0, torch.arange(2)[:, None], torch.arange(6)[None], None)
    masked = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    masked[1, :, :, 4:] = False
    query, key, value = attention_inputs()
    keys = places.keys(query.shape[:-1])
    assert keys is not None
    mask = factors(keys ^ module_key(" attention"), 6, Share.of(0.4)).double()
    assert mask.flatten(2).unique(dim=1).shape == (2, 4, 36), "no two heads drop the same"
    for given in (None, masked):
        seen = torch.ones(6, 6, dtype=torch.bool).tril() if given is None else given
        scores = (query @ key.repeat_interleave(2, 1).transpose(-1, -2)) * 0.3
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1) * mask
        expected = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
        gradient = torch.randn(expected.shape, dtype=expected.dtype)
        wanted = torch.autograd.grad(expected, (query, key, value), gradient)
        for at_once in (1, 100, 10**6):
            monkeypatch.setitem(dropout_attention.AT_ONCE, "cpu", at_once)
            found, _ = dropout_attention.attention(layer, query, key, value, given, dropout=0.4, scaling=0.3)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
            for ours, theirs in zip(torch.autograd.grad(found, (query, key, value), gradient), wanted, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_attention_that_drops_nothing_is_sdpa() -> None:
    query, key, value = attention_inputs(torch.float32)
    found, _ = dropout_attention.attention(Layer(), query, key, value, None, dropout=0.0)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def causal(model_type: str, sizes: dict[str, Any], *, implementation: str = dropout_attention.NAME) -> Any:
    dropout_attention.register()
    varlen.register()
    config = AutoConfig.for_model(model_type, **sizes)
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).train()


def with_adapters(model: Any, **changes: Any) -> Any:
    config = LoraConfig(r=4, lora_dropout=0.3, target_modules="all-linear", init_lora_weights=False, **changes)
    return get_peft_model(model, config).train()


def placed(model: Any, places: Places) -> Any:
    assert place_dropout(model, places)
    dropout_attention.place_attention(model, places)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "own": lambda: causal("gpt2", GPT2),
    "own under other names": lambda: causal("gpt_neox", PYTHIA),
    "LoRA": lambda: with_adapters(causal("llama", LLAMA)),
    "DoRA": lambda: with_adapters(causal("llama", LLAMA), use_dora=True),
    "LoRA over own": lambda: with_adapters(causal("gpt2", GPT2), fan_in_fan_out=True),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_a_row_is_computed_as_if_it_were_alone(make: Callable[[], Any]) -> None:
    """Its logits, in training, are those that it has in a pass of its own, in another order and beside longer rows."""
    rows, places = Rows(), Places(1)
    model = placed(make(), places)
    state = torch.get_rng_state()
    together = logits_by_row(model, places, PaddedText(), rows, [0, 1, 2, 3])
    for order in ([2], [3, 0], [1, 3]):
        for row, logits in logits_by_row(model, places, PaddedText(), rows, order).items():
            torch.testing.assert_close(logits, together[row], atol=2e-5, rtol=1e-4)
    again = logits_by_row(model, places, PaddedText(), rows, [2], step=1)
    assert (again[2] - together[2]).abs().max() > 1e-3, "another step drops others"
    assert not places.unknown
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn from a stream"


@pytest.mark.parametrize("use_dora", [False, True])
def test_rows_end_to_end_are_computed_as_padded_ones(use_dora: bool) -> None:
    rows, places = Rows(), Places(1)
    model = placed(with_adapters(causal("llama", LLAMA, implementation="varlen"), use_dora=use_dora), places)
    padded = logits_by_row(model, places, PaddedText(), rows, [0, 1, 2, 3])
    for row, logits in logits_by_row(model, places, PackedText(), rows, [3, 1, 0, 2]).items():
        torch.testing.assert_close(logits, padded[row], atol=2e-5, rtol=1e-4)


def logits_by_row(
    model: Any, places: Places, collator: Any, rows: Rows, order: list[int], step: int = 0
) -> dict[int, torch.Tensor]:
    batch = collator(rows, np.array(order), torch.device("cpu"))
    places.begin_pass(step, batch.row_of_BT, batch.position_BT, batch.predicts_N)
    logits = model(**batch.inputs, use_cache=False).logits[batch.predicts_BT]
    counts = [int(rows.row(row)[1].sum()) for row in order]
    return dict(zip(order, logits.split(counts), strict=True))


class Labelled(Rows):
    """The same rows as texts of classes."""

    lengths = np.array([8, 13, 5, 10])
    label_names = ("a", "b")


@pytest.mark.parametrize(("model_type", "sizes"), [("distilbert", DISTILBERT), ("bert", BERT)])
def test_a_text_is_classified_as_if_it_were_alone(
    model_type: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.data.batches.collators.text.label_codes", lambda *_: np.zeros(4, np.int32))
    dropout_attention.register()
    config = AutoConfig.for_model(model_type, **sizes)
    config._attn_implementation = dropout_attention.NAME
    torch.manual_seed(0)
    rows, places = Labelled(), Places(1)
    model = placed(AutoModelForSequenceClassification.from_config(config).train(), places)
    collator, state, found = LabelledText(("a", "b"), pad_id=0), torch.get_rng_state(), {}
    for order in ([0, 1, 2, 3], [2], [3, 0], [1]):
        batch = collator(rows, np.array(order), torch.device("cpu"))  # type: ignore[arg-type]
        places.begin_pass(0, batch.row_of_BT, batch.position_BT, batch.predicts_N)
        for row, logits in zip(order, model(**batch.inputs).logits, strict=True):
            torch.testing.assert_close(logits, found.setdefault(row, logits), atol=2e-5, rtol=1e-4)
    assert not places.unknown and torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
def test_a_block_that_is_computed_again_drops_the_same() -> None:
    gradients = []
    for recomputing in (False, True):
        rows, places = Rows(), Places(1)
        model = placed(with_adapters(causal("gpt2", GPT2), fan_in_fan_out=True), places)
        if recomputing:
            recompute_blocks(model)
        logits = logits_by_row(model, places, PaddedText(), rows, [0, 1, 2, 3])
        sum(part.square().sum() for part in logits.values()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    torch.testing.assert_close(*gradients)


def test_tokens_of_which_nobody_knows_the_place() -> None:
    """As the experts of a model get them: sorted by expert. They are dropped as torch drops, and that is noted."""
    places = aimed(collated(Rows(), PaddedText()))
    module = PlacedDropout(0.5, "experts.0", places)
    assert 0.3 < float((module(torch.ones(11, 1000)) == 0).float().mean()) < 0.7
    assert places.unknown == {"experts.0"} and "experts.0" in places.what_is_left()
    assert torch.equal(module.eval()(torch.ones(11, 4)), torch.ones(11, 4))


def test_predicted_positions_alone_are_known_too() -> None:
    """What reaches an output head with adapters: the tokens that are predicted from."""
    batch = collated(Rows(), PaddedText())
    places = aimed(batch)
    assert batch.predicts_BT is not None
    chosen, whole = places.keys(batch.targets_N.shape), places.keys(batch.predicts_BT.shape)
    assert chosen is not None and whole is not None and torch.equal(chosen, whole[batch.predicts_BT])
    flat = places.keys(torch.Size((whole.numel(),)))
    assert flat is not None and torch.equal(flat, whole.flatten())


def test_what_is_replaced_and_what_is_saved() -> None:
    model = with_adapters(causal("gpt2", {**GPT2, "embd_pdrop": 0.0}), fan_in_fan_out=True)
    names, state = adapter_file_names(model), model.state_dict().keys()
    places = Places(1)
    assert place_dropout(model, places) > 0
    dropout_attention.place_attention(model, places)
    left = {module.p for module in model.modules() if type(module) is torch.nn.Dropout}
    assert left == {0.0}
    assert adapter_file_names(model) == names and model.state_dict().keys() == state


def test_dropout_that_is_no_module_is_out_of_reach() -> None:
    """OPT calls the function; a step notices by the generator (engine/step.py)."""
    places = aimed(collated(Rows(), PaddedText()))
    model = with_adapters(causal("opt", OPT, implementation="sdpa"))
    place_dropout(model, places)
    state = torch.get_rng_state()
    model(**collated(Rows(), PaddedText()).inputs, use_cache=False)
    assert not torch.equal(torch.get_rng_state(), state)
    assert not places.unknown and "some of this model's dropout" in places.what_is_left()
