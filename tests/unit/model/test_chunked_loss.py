"""The loss some targets at a time is the loss of all at once, with every gradient, whatever is behind the decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.engine.balance import without_targets
from rankzero.engine.heads import SupervisedHead, weighted_cross_entropy
from rankzero.engine.simulation import LiveBytes
from rankzero.model import chunked_loss, memory
from rankzero.model.saved_modules import compute_in_base_precision, look_up_trained_tokens
from tests.support.memory import facts_of, make_model, make_spec
from tests.unit.model.packed import Rows, collated, tiny

AT_ONCE = 5
"""Targets, where the head is not trained; where it is, as many as a hidden state has values, which is 32 here."""


class Weighted(Rows):
    """Rows whose targets count for more and less."""

    def weights(self, i: int) -> Any:
        return np.linspace(0.5, 2, len(self.ids[i]), dtype=np.float32)


def batch_of(*, weighted: bool = False) -> MicroBatch:
    return collated((Weighted if weighted else Rows)((60, 41, 3, 20)), PaddedText())


def states_in(hidden: torch.Tensor) -> int:
    return hidden.numel() // hidden.shape[-1]


def seen_by(module: torch.nn.Module, *, of: Callable[[torch.Tensor], int] = states_in) -> list[int]:
    """How many hidden states a head is given, call by call from now on; of another module, what `of` counts."""
    counts: list[int] = []
    module.register_forward_hook(lambda _module, inputs, _out: counts.append(of(inputs[0])))
    return counts


def loss_and_gradients(model: Any, batch: MicroBatch, *, in_parts: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    head = SupervisedHead(model, model, in_parts=in_parts)
    loss = head.loss_sum(batch, weighted_cross_entropy)
    assert (head._tail is not None) is in_parts
    (loss / 7).backward()
    return {"loss": loss.detach()} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


TAILS = {
    "llama": {},
    "tied llama": {"tie_word_embeddings": True},
    "phi": {},  # its head has a bias
    "gpt_neox": {},
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 3.0},
    "gemma3_text": {"final_logit_softcapping": 2.0},
    "mixtral": {"output_router_logits": True},
    "gpt2": {},
}


ADAPTED = [
    (name, kind) for name in ("llama", "tied llama", "cohere") for kind in ("adapters on all", "head saved whole")
]


@pytest.mark.parametrize(("name", "trained"), [(name, kind) for name in TAILS for kind in ("all", "decoder")] + ADAPTED)
def test_loss_and_gradients_are_those_of_all_targets_at_once(
    name: str, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", AT_ONCE * 99)
    model = tiny(name.split()[-1], "sdpa", vocab_size=99, **TAILS[name])
    head_name = next(n for n, module in model.named_modules() if module is model.get_output_embeddings())
    if trained == "decoder":
        model.get_output_embeddings().requires_grad_(False)
    elif trained != "all":
        saved = [head_name] if trained == "head saved whole" else None
        layers = ["q_proj", "v_proj", *([] if saved else [head_name])]
        torch.manual_seed(1)
        config = LoraConfig(r=4, target_modules=layers, modules_to_save=saved, init_lora_weights=False)
        model = get_peft_model(model, config)
    batch = batch_of(weighted=trained == "decoder")
    whole = loss_and_gradients(model, batch, in_parts=False)
    counts = seen_by(model.get_output_embeddings())
    parts = loss_and_gradients(model, batch, in_parts=True)
    assert (
        max(counts) == (AT_ONCE if trained == "decoder" else 32) and sum(counts) == len(batch.targets_N) + 2
    )  # the look ahead
    assert parts.keys() == whole.keys() and len(whole) > 4
    for key, value in whole.items():
        torch.testing.assert_close(parts[key], value, rtol=1e-6, atol=1e-6 * max(1.0, float(value.abs().max())))


def test_without_gradients_the_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", AT_ONCE * 99)
    model, batch = tiny("llama", "sdpa", vocab_size=99), batch_of(weighted=True)
    with torch.no_grad():
        parts = SupervisedHead(model, model, in_parts=True).loss_sum(batch, weighted_cross_entropy)
        whole = SupervisedHead(model, model).loss_sum(batch, weighted_cross_entropy)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("any_length", "more"), [(True, {}), (False, {}), (True, {"attention_mask": None})])
def test_the_look_ahead_takes_a_few_tokens_where_it_may(any_length: bool, more: dict[str, None], packed: bool) -> None:
    """A whole pass more took a tenth of the time to the first step of a small model on a CPU."""
    model, rows = tiny("llama", "varlen" if packed else "sdpa", vocab_size=99), Rows((60, 41, 3, 20))
    batch = collated(rows, PackedText() if packed else PaddedText())
    batch = replace(batch, inputs={**batch.inputs, **more})
    lengths = seen_by(model.get_input_embeddings(), of=lambda ids: ids.numel())
    head = SupervisedHead(model, model, in_parts=True, any_length=any_length)
    loss = head.loss_sum(batch, weighted_cross_entropy)
    whole = batch.inputs["input_ids"].numel()
    assert lengths == [8 if any_length and not more else whole, whole] and head._tail is not None
    torch.testing.assert_close(loss, SupervisedHead(model, model).loss_sum(batch, weighted_cross_entropy))


@pytest.mark.parametrize("why", ["dropout in the head", "another result than in a pass"])
def test_a_head_that_cannot_be_computed_by_itself_is_computed_at_once(why: str) -> None:
    model, batch = tiny("llama", "sdpa", vocab_size=99), batch_of()
    called = model
    if why == "dropout in the head":
        config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], lora_dropout=0.1, init_lora_weights=False)
        called = model = get_peft_model(model, config).eval()
    else:

        def called(**inputs: Any) -> Any:
            return SimpleNamespace(logits=2 * model(**inputs).logits)

    head = SupervisedHead(called, model, in_parts=True)
    counts = seen_by(model.get_output_embeddings())
    found = head.loss_sum(batch, weighted_cross_entropy)
    assert head._tail is None and counts[-1] == len(batch.targets_N)
    assert torch.equal(found, SupervisedHead(called, model).loss_sum(batch, weighted_cross_entropy))


def test_gradients_are_right_by_finite_differences() -> None:
    torch.manual_seed(0)
    hidden_NH, weight_VH, target_N = torch.randn(7, 3).double(), torch.randn(5, 3).double(), torch.arange(7) % 5

    def loss_sum(hidden_NH: torch.Tensor, weight_VH: torch.Tensor) -> torch.Tensor:
        def loss_of(hidden_nH: torch.Tensor, part: slice) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(hidden_nH @ weight_VH.T, target_N[part], reduction="sum")

        parts = list(chunked_loss._parts(7, 3))
        loss: torch.Tensor = chunked_loss._LossSum.apply(hidden_NH, loss_of, parts, weight_VH)  # type: ignore[no-untyped-call]
        return 3 * loss

    assert torch.autograd.gradcheck(loss_sum, (hidden_NH.requires_grad_(), weight_VH.requires_grad_()))


def test_looking_ahead_draws_nothing() -> None:
    """A start that goes on from a checkpoint looks ahead once more than one that was never stopped."""
    batch, states = batch_of(), []
    for in_parts in (False, True):
        model = tiny("llama", "sdpa", vocab_size=99, attention_dropout=0.5).train()
        torch.manual_seed(4)
        SupervisedHead(model, model, in_parts=in_parts).loss_sum(batch, weighted_cross_entropy)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_first_pass_calls_the_model_as_often_without_targets_as_with() -> None:
    """Each call is a collective where ranks have slices of the same rows, and a slice may have no target."""
    batch = batch_of()
    calls = []
    for one in (batch, without_targets(batch)):
        model = tiny("llama", "sdpa")
        seen: list[object] = []
        model.get_decoder().register_forward_hook(lambda *call, seen=seen: seen.append(call))
        head = SupervisedHead(model, model, in_parts=True)
        loss = head.loss_sum(one, weighted_cross_entropy)
        calls.append(len(seen))
        assert loss.requires_grad and head.loss_sum(batch, weighted_cross_entropy) > 0
    assert calls == [2, 2]


@pytest.mark.parametrize(
    "trained",
    [
        {"trainable_token_indices": [3, 5]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
    ],
    ids=["rows of the head", "the head"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_what_is_trained_behind_the_decoder_is_planned_for(
    trained: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside adapters: what a pass takes at its highest point, against the sums that a run is planned by."""
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", AT_ONCE * 4000)
    spec = make_spec(lora={"r": 2, "dropout": 0, **trained})
    config = tiny("llama", "sdpa", vocab_size=4000).config
    facts, model = facts_of(spec, config, dtype), make_model(spec, config, dtype, empty=False)
    compute_in_base_precision(model)
    look_up_trained_tokens(model)
    batch = batch_of()
    head = SupervisedHead(model, model, in_parts=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16)
    with autocast:
        head.loss_sum(batch, weighted_cross_entropy).backward()  # looks for the tail; from here on gradients are there
    held = (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()))
    with LiveBytes() as counter:
        for tensor in held:
            counter.count(tensor)
        before = counter.now
        with autocast:
            head.loss_sum(batch, weighted_cross_entropy).backward()

    targets, tokens = len(batch.targets_N), batch.inputs["input_ids"].numel()
    planned = memory.pass_bytes(60, facts, tokens, recomputing=False, trained_share=targets / tokens, in_parts_on="cpu")
    assert 0.95 < planned / (counter.most - before) < 1.5


class _LogitsWritten(TorchDispatchMode):
    """Names of operations that make a tensor with as many values as logits of a part, and are no view."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() == AT_ONCE * 99 and not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return result


def test_logits_and_their_gradient_are_written_no_more_often_than_the_loss_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Taking the one row of a batch by its number would fill one more such tensor with zeros, and copy into it."""
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", AT_ONCE * 99)
    model = tiny("llama", "sdpa", vocab_size=99)
    model.get_output_embeddings().requires_grad_(requires_grad=False)
    head = SupervisedHead(model, model, in_parts=True)
    head.loss_sum(batch_of(), weighted_cross_entropy)  # looks for the tail
    with _LogitsWritten() as written:
        head.loss_sum(batch_of(), weighted_cross_entropy)
    assert set(written.names) <= {"mm", "_softmax", "_unsafe_view", "scatter_add_", "mul_"}
    assert written.names.count("_softmax") > 1
