"""A full fine-tune by preferences is compared with the model that it began with, whatever has become of it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.parallel.masters import copies_in
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.preferences import PreferenceHead, log_probs
from rankzero.engine.reference_weights import ReferenceWeights
from rankzero.engine.tasks.dpo import TASK
from rankzero.errors import ConfigError, StoppedError
from rankzero.model.memory import state_parts
from rankzero.model.shapes import model_facts
from rankzero.spec.run_spec import TrainSpec
from tests.support.runs import log, metrics, run_here, stop_in
from tests.support.tasks import task_spec
from tests.unit.engine.test_preferences import BETA, Pairs, gradients
from tests.unit.model.packed import collated, tiny


def of(model: Any) -> PreferenceHead:
    alone = cast(Parallel, SimpleNamespace(model=model, module=model))
    return PreferenceHead(SupervisedHead(model, model, in_parts=True), alone, beta=BETA)


def trained_a_little(model: Any) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)


def bits(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("collator", [PaddedText(), PackedText()], ids=["padded", "end to end"])
def test_loss_and_gradients_are_those_of_the_formula(collator: PaddedText | PackedText) -> None:
    """Each answer's probability by a model that nothing has happened to, differentiated by torch."""
    model = tiny("llama", vocab_size=99)
    before, head = deepcopy(model), of(model)
    trained_a_little(model)
    batch, mine = collated(Pairs(), collator), bits(model)

    def log_prob(of_model: Any) -> torch.Tensor:
        logits_NV = of_model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.predicts_N]
        of_tokens_N = -torch.nn.functional.cross_entropy(logits_NV.float(), batch.targets_N, reduction="none")
        return torch.stack([of_tokens_N[batch.answer_N == answer].sum() for answer in range(8)]).view(-1, 2)

    with torch.no_grad():
        reference = log_prob(before)
    rewards = BETA * (log_prob(model) - reference)
    wanted = -torch.nn.functional.logsigmoid(rewards[:, 0] - rewards[:, 1]).sum()
    of_formula = gradients(model, wanted)
    found = head.loss_sum(batch, TASK.loss_sum)
    of_ours = gradients(model, found)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5) and abs(found.item() - 4 * 0.693) > 0.01
    assert equal(bits(model), mine) and of_ours.keys() == of_formula.keys()
    for name, value in of_formula.items():
        torch.testing.assert_close(of_ours[name], value, rtol=1e-4, atol=2e-6 * float(value.abs().max()) + 1e-9)


def test_in_16_bits_no_pass_computes_with_what_another_has_cast() -> None:
    """Casts of weights that are trained are kept as long as autocast lasts, which may be for several passes."""
    model = tiny("llama", vocab_size=99)
    head, batch = of(model), collated(Pairs(), PaddedText())
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            first = log_probs(head._answers.predict(batch), batch)
        assert torch.equal(head._reference(batch), first)
        trained_a_little(model)
        head.loss_sum(batch, TASK.loss_sum).backward()
        assert torch.equal(head._reference(batch), first), "of weights that have changed since"
        with torch.no_grad():
            now = log_probs(head._answers.predict(batch), batch)
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in model.parameters())
    assert (now - first).abs().max() > 0.1


def test_a_replica_s_rounded_weights_come_back_behind_each_step() -> None:
    """In bfloat16 with float32 masters: what is computed with are copies."""
    model = tiny("llama", vocab_size=99)
    parallel = Replicated(
        *(model, lambda named: torch.optim.SGD(named.values(), lr=0.01)),
        world=World(),
        device=Device("cpu"),
        dtype=torch.bfloat16,
    )
    head = PreferenceHead(SupervisedHead(model, model, in_parts=True), parallel, beta=BETA)
    batch, losses = collated(Pairs(), PaddedText()), []
    with torch.no_grad():
        first = log_probs(head._answers.predict(batch), batch)
    for _ in range(3):
        loss = head.loss_sum(batch, TASK.loss_sum)
        parallel.backward(loss / 4, last=True)
        parallel.reduce_gradients(1.0)
        parallel.step()
        parallel.zero_grad()
        losses.append(loss.item())
        assert torch.equal(head._reference(batch), first)
        for master, computed in parallel._masters.computed.items():
            assert computed.dtype is torch.bfloat16 and torch.equal(master.to(torch.bfloat16), computed)
    assert losses[0] == pytest.approx(4 * 0.6931, rel=1e-3) and losses[2] < losses[0] - 0.1


def test_weights_are_back_where_the_reference_fails() -> None:
    model, batch = tiny("llama", vocab_size=99), collated(Pairs(), PaddedText())
    head = of(model.train())
    trained_a_little(model)
    mine, reference = bits(model), head._reference(batch)

    def fail(_module: Any, _inputs: Any) -> None:
        raise MemoryError

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        head.loss_sum(batch, TASK.loss_sum)
    handle.remove()
    assert model.training and equal(bits(model), mine)
    assert torch.equal(head._reference(batch), reference)


@pytest.mark.parametrize("master_weights", ["float32", "kahan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_plan_counts_what_is_kept(dtype: torch.dtype, master_weights: str) -> None:
    train = TrainSpec.model_validate({"master_weights": master_weights})
    in_bfloat16 = dtype is torch.bfloat16 and master_weights == "kahan"
    model = tiny("llama", vocab_size=99).to(torch.bfloat16 if in_bfloat16 else torch.float32)
    facts = model_facts(model, model.config, dtype, quantization="none", use="writes")
    replica = Replicated(
        *(model, lambda named: torch.optim.SGD(named.values())),
        world=World(),
        device=Device("cpu"),
        dtype=copies_in(model, dtype),
    )
    kept = ReferenceWeights(replica.module)._kept.values()
    parts = state_parts(train, replace(facts, keeps_reference=True), "ddp", 1)
    assert parts["reference"] == sum(tensor.nbytes for tensor in kept)


def test_the_first_step_prefers_nothing_and_the_last_one_does(tmp_path: Path) -> None:
    spec = task_spec("dpo in full", tmp_path, eval={"on_start": True, "every": 12})
    report = run_here(spec)
    lines = metrics(spec)
    assert lines[0]["step"] == 0 and lines[0]["reward_chosen"] == lines[0]["reward_rejected"] == 0
    assert lines[1]["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert report["reward_margin"] > 0.1 and report["eval_loss"] < 0.65


def test_another_base_is_another_reference(tmp_path: Path) -> None:
    """Though all weights are the checkpoint's: it is asked whether the run is to be compared with it from now on."""
    spec = task_spec("dpo in full", tmp_path, rows=24, train__num_train_epochs=1)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(2))
    weights = Path(spec.model.name) / "model.safetensors"
    save_file({name: 1.01 * tensor for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    with pytest.raises(ConfigError) as refused:
        run_here(spec)
    (problem,) = (problem for problem in refused.value.problems if problem.where == "model")
    assert "--allow-change model" in problem.hint
    assert run_here(spec, allow_changes=("model",))["steps"] == 3
    assert "weights changed; accepted by --allow-change model" in log(spec)
