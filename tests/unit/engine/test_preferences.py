"""The loss of preferences and its gradients are those of the formula, whatever makes logits and lays out rows."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.preferences import PreferenceHead
from rankzero.engine.tasks.dpo import TASK, Rewards
from rankzero.model import memory
from rankzero.model.fused_lora import fuse_adapters
from tests.unit.model.packed import CPU, Rows, collated, tiny

BETA = 0.3
LENGTHS = (23, 40, 9, 31)
BEGINS = (7, 30, 4, 15)
AT_ONCE = 5


class Pairs(Rows):
    """Rows of two sequences each, of which every second token is trained."""

    def __init__(self, lengths: tuple[int, ...] = LENGTHS, begins: tuple[int, ...] = BEGINS) -> None:
        super().__init__(lengths)
        self.rejected_from = np.array(begins, np.int32)


def adapted(kind: str) -> Any:
    """A model with adapters that have been trained."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"]}
    if kind == "DoRA":
        settings["use_dora"] = True
    elif kind == "head saved whole":
        settings["modules_to_save"] = ["lm_head"]
    elif kind == "tokens":
        settings["trainable_token_indices"] = {"embed_tokens": [5, 6, 7]}
    elif kind == "adapters on the head":
        settings["target_modules"] = ["q_proj", "lm_head"]
    model = get_peft_model(tiny("llama", vocab_size=99), LoraConfig(r=4, init_lora_weights=False, **settings))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora" not in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def head_of(model: Any, *, in_parts: bool = True) -> PreferenceHead:
    alone = cast(Parallel, SimpleNamespace(model=model, module=model))
    return PreferenceHead(SupervisedHead(model, model, in_parts=in_parts), alone, beta=BETA)


def by_the_formula(
    model: Any, rows: Pairs, numbers: Sequence[int] = range(4)
) -> tuple[torch.Tensor, list[list[float]]]:
    """Each sequence alone, every logit at once, all of it differentiated by torch. Also the rewards."""
    losses, rewards = [], []
    for number in numbers:
        (ids, trained), at = rows.row(number), BEGINS[number]
        gained = []
        for part in (slice(None, at), slice(at, None)):
            inputs = torch.tensor(ids[part][:-1][None].astype(np.int64))
            targets, counts = torch.tensor(ids[part][1:].astype(np.int64)), torch.tensor(trained[part][1:])

            def log_prob(
                inputs: torch.Tensor = inputs, targets: torch.Tensor = targets, counts: torch.Tensor = counts
            ) -> torch.Tensor:
                logits = model(input_ids=inputs, use_cache=False).logits[0].log_softmax(-1)
                return logits.gather(1, targets[:, None])[counts].sum()

            with model.disable_adapter(), torch.no_grad():
                reference = log_prob()
            gained.append(BETA * (log_prob() - reference))
        losses.append(-torch.nn.functional.logsigmoid(gained[0] - gained[1]))
        rewards.append([one.item() for one in gained])
    return torch.stack(losses).sum(), rewards


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (loss / 7).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


KINDS = ("LoRA", "DoRA", "head saved whole", "tokens", "adapters on the head")


@pytest.mark.parametrize("collator", [PaddedText(), PackedText()], ids=["padded", "end to end"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_formula(
    kind: str, collator: PaddedText | PackedText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory.LOGITS_AT_ONCE, "cpu", AT_ONCE * 99)
    model, rows = adapted(kind), Pairs()
    wanted, rewards = by_the_formula(model, rows)
    of_formula = gradients(model, wanted)
    fuse_adapters(model)
    wants = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    meter = Rewards(CPU)

    def of_rewards(rewards_P2: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        meter.add(rewards_P2.detach(), batch)
        return TASK.loss_sum(rewards_P2, batch)

    model.train()
    batch = collated(rows, collator)
    found = head_of(model).loss_sum(batch, of_rewards)
    of_ours = gradients(model, found)
    assert model.training and wants == {name: p.requires_grad for name, p in model.named_parameters()}
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert of_ours.keys() == of_formula.keys() and len(of_ours) >= 6
    for name, value in of_formula.items():
        torch.testing.assert_close(of_ours[name], value, rtol=1e-4, atol=2e-6 * float(value.abs().max()) + 1e-9)
    means = np.array(rewards).mean(axis=0)
    measured = meter.metrics(0.0)
    assert [measured["reward_chosen"], measured["reward_rejected"]] == pytest.approx(means.tolist(), rel=1e-4)
    assert measured["reward_margin"] == pytest.approx(means[0] - means[1], rel=1e-4)
    assert measured["reward_accuracy"] == np.mean([better > worse for better, worse in rewards])


@pytest.mark.parametrize("in_parts", [True, False])
def test_without_gradients_the_loss_is_the_same(in_parts: bool) -> None:
    model, rows = adapted("LoRA"), Pairs()
    wanted, _ = by_the_formula(model, rows)
    with torch.no_grad():
        found = head_of(model, in_parts=in_parts).loss_sum(collated(rows, PaddedText()), TASK.loss_sum)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_in_16_bits_weights_that_are_trained_get_gradients_in_each_pass() -> None:
    """What autocast keeps of a pass without gradients would take them from the one that trains."""
    model, batch = adapted("head saved whole"), collated(Pairs(), PaddedText())
    head = head_of(model.train())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss_sum(batch, TASK.loss_sum)
        found = gradients(model, loss)
        assert len(found) == sum(p.requires_grad for p in model.parameters())
        assert all(gradient.abs().max() > 0 for gradient in found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["adapters", "full"])
def test_a_model_that_begins_has_gained_nothing(method: str, dtype: torch.dtype) -> None:
    """Bit for bit, though adapters are computed in one way and their base alone in another, and a CPU attends in
    bfloat16 otherwise where gradients are asked for."""
    torch.manual_seed(2)
    model = tiny("llama", vocab_size=99).to(dtype)
    if method == "adapters":
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
        fuse_adapters(model)
    seen: list[torch.Tensor] = []

    def of_rewards(rewards_P2: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        seen.append(rewards_P2.detach().clone())
        return TASK.loss_sum(rewards_P2, batch)

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = head_of(model.train()).loss_sum(collated(Pairs(), PackedText()), of_rewards)
    assert torch.equal(seen[0], torch.zeros(4, 2))
    assert loss.item() == pytest.approx(4 * np.log(2), rel=1e-5)


def test_rewards_of_long_answers_have_the_digits_of_short_ones() -> None:
    """Thousands of logarithms are summed, and only what has changed of them counts."""
    model, rows = adapted("LoRA"), Pairs((6000,), (3000,))
    seen: list[torch.Tensor] = []

    def keep(rewards_P2: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        seen.append(rewards_P2.double())
        return rewards_P2.sum()

    with torch.no_grad():
        head_of(model).loss_sum(collated(rows, PaddedText()), keep)
        head_of(model.double()).loss_sum(collated(rows, PaddedText()), keep)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("number", range(4))
def test_a_pass_of_one_row_is_one_of_two_sequences(number: int) -> None:
    """End to end, neither of which sees the other: what a pass of a single row needs not say."""
    model, rows = adapted("LoRA"), Pairs()
    single = [
        head_of(model).loss_sum(collator(rows, np.array([number]), CPU), TASK.loss_sum).item()  # type: ignore[arg-type]
        for collator in (PackedText(), PaddedText())
    ]
    wanted, _ = by_the_formula(model, rows, (number,))
    assert single == pytest.approx([wanted.item()] * 2, rel=1e-5)


def test_the_reference_drops_nothing() -> None:
    """Nor does what a model drops by itself come into what adapters have gained, where no place decides it."""
    torch.manual_seed(2)
    plain = tiny("gpt2", "eager", vocab_size=99, resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3)
    model = get_peft_model(plain, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    seen: list[torch.Tensor] = []

    def of_rewards(rewards_P2: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        seen.append(rewards_P2.detach().clone())
        return TASK.loss_sum(rewards_P2, batch)

    batch = collated(Pairs(), PaddedText())
    for trains in (False, True):
        head_of(model.train(trains)).loss_sum(batch, of_rewards)
    with torch.no_grad():
        model.eval()
        logits_NV = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.predicts_N]
        of_tokens_N = -torch.nn.functional.cross_entropy(logits_NV, batch.targets_N, reduction="none")
    assert torch.equal(seen[0], torch.zeros(4, 2)) and seen[1].abs().min() > 0
    with torch.no_grad():
        reference_N = head_of(model.train())._reference(batch)
    torch.testing.assert_close(reference_N, of_tokens_N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("collator", [PaddedText(), PackedText()], ids=["padded", "end to end"])
def test_a_pass_without_rows_touches_all_that_is_trained_and_moves_nothing(collator: PaddedText | PackedText) -> None:
    model = adapted("head saved whole")
    loss = head_of(model.train()).loss_sum(collator.idle(CPU), TASK.loss_sum)
    assert loss.item() == 0
    found = gradients(model, loss)
    assert found and all(not gradient.any() for gradient in found.values())


def test_adapters_are_back_where_the_reference_fails() -> None:
    model, batch = adapted("LoRA"), collated(Pairs(), PaddedText())
    head = head_of(model.train())

    def fail(_module: Any, _inputs: Any) -> None:
        raise MemoryError

    handle = model.get_base_model().model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        head.loss_sum(batch, TASK.loss_sum)
    handle.remove()
    assert model.training and not any(getattr(module, "_disable_adapters", False) for module in model.modules())
