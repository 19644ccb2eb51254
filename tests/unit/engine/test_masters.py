"""Full fine-tuning in bfloat16 on a replica: float32 weights move, bfloat16 copies are computed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.parallel.masters import Masters, copies_in
from rankzero.engine.parallel.replicas import Replicated
from rankzero.model.parts import freeze_to
from rankzero.spec.run_spec import Part
from tests.support import vision_families
from tests.support.architectures import save
from tests.support.images import picture_rows
from tests.support.runs import metrics, run_here, small_spec
from tests.support.tiny import write_jsonl
from tests.support.tiny_configs import CONFIGS

BF16, FP32 = torch.bfloat16, torch.float32
IDS = torch.arange(3, 27).view(2, 12)


def llama(dtype: torch.dtype = FP32) -> Any:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(CONFIGS["llama"](), dtype=FP32)
    for parameter in model.parameters():  # not drawn anew: another torch draws other numbers in bfloat16
        parameter.data = parameter.data.to(dtype)
    return model


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=BF16):
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def replica(rate: float = 0.1, model: Any = None) -> Replicated:
    def make_optimizer(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(named.values(), lr=rate)

    return Replicated(model or llama(), make_optimizer, world=World(), device=Device("cpu"), dtype=BF16)


def test_a_pass_is_that_of_a_model_in_bfloat16() -> None:
    """Blocks pass on what they pass on in a model that is spread: nothing but the loss is wider."""
    widths = set()
    parallel, plain = replica(), llama(BF16)
    for layer in parallel.module.model.layers:
        layer.register_forward_hook(lambda _module, _args, out: widths.add(out.dtype))
    assert torch.equal(loss_of(parallel.model, IDS), loss_of(plain, IDS))
    assert widths == {BF16}


def test_gradients_of_passes_are_added_up_in_float32() -> None:
    parallel, plain, passes = replica(), llama(BF16), IDS.split(1)
    wanted = {name: torch.zeros(p.shape) for name, p in plain.named_parameters()}
    for number, ids in enumerate(passes, 1):
        parallel.backward(loss_of(parallel.model, ids), last=number == len(passes))
        plain.zero_grad()
        loss_of(plain, ids).backward()  # type: ignore[no-untyped-call]
        for name, parameter in plain.named_parameters():
            wanted[name] += parameter.grad
    parallel.reduce_gradients(None)
    assert all(p.grad is None for p in parallel.module.parameters()), "no gradient is there twice"
    before = {name: master.detach().clone() for name, master in parallel._parameters.items()}
    for name, master in parallel._parameters.items():
        assert torch.equal(master.grad if master.grad is not None else torch.zeros(()), wanted[name]), name
    parallel.step()
    copies = dict(parallel.module.named_parameters())
    for name, master in parallel._parameters.items():
        torch.testing.assert_close(master.detach(), before[name] - 0.1 * wanted[name], rtol=1e-6, atol=1e-9)
        assert torch.equal(copies[name].detach(), master.detach().to(BF16)), name


def test_steps_that_bfloat16_cannot_see_are_kept() -> None:
    parallel = replica(rate=1e-3)
    before = {name: tensor.clone() for name, tensor in (parallel.export_state() or {}).items()}
    for _ in range(3):
        parallel.backward(loss_of(parallel.model, IDS), last=True)
        parallel.reduce_gradients(None)
        parallel.step()
        parallel.zero_grad()
    after = parallel.export_state()
    assert after is not None
    moved = {name: (after[name] != before[name]).float().mean() for name in after}
    seen = {name: (after[name].to(BF16) != before[name].to(BF16)).float().mean() for name in after}
    name = "model.layers.0.mlp.up_proj.weight"
    assert moved[name] > 0.9 and seen[name] < 0.1
    assert after.keys() == {name for name, _ in parallel.module.named_parameters()}


def test_a_checkpoint_is_of_the_masters(tmp_path: Any) -> None:
    parallel, again = replica(rate=1e-2), replica()
    parallel.backward(loss_of(parallel.model, IDS), last=True)
    parallel.reduce_gradients(None)
    parallel.step()
    parallel.snapshot().copied().write(tmp_path)
    again.load(tmp_path)
    wanted, found = parallel.export_state() or {}, again.export_state() or {}
    assert wanted and wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) and found[name].dtype is FP32 for name in wanted)
    for ours, theirs in zip(again.module.parameters(), parallel.module.parameters(), strict=True):
        assert ours.dtype is BF16 and torch.equal(ours, theirs)


@pytest.mark.parametrize("stored", [BF16, FP32])
def test_what_is_not_trained_is_computed_with_alike_and_kept_as_it_was(stored: torch.dtype, tmp_path: Path) -> None:
    def half_frozen() -> Any:
        model = llama()
        for parameter in model.parameters():
            parameter.data = parameter.data.to(stored).float()
        model.model.embed_tokens.requires_grad_(False)
        return model

    base = {name: p.detach().clone() for name, p in half_frozen().named_parameters()}
    parallel, again = replica(model=half_frozen()), replica(model=half_frozen())
    assert {p.dtype for p in parallel.module.parameters()} == {BF16} and parallel.module.dtype is BF16
    assert set(parallel._frozen.whole) == (set() if stored is BF16 else {"model.embed_tokens.weight"})
    loss = loss_of(parallel.model, IDS)
    parallel.backward(loss, last=True)
    parallel.reduce_gradients(None)
    parallel.step()
    parallel.snapshot().copied().write(tmp_path)
    again.load(tmp_path)
    for one in (parallel, again):
        state = one.export_state() or {}
        changed = {name for name, whole in base.items() if not torch.equal(state[name].float(), whole)}
        assert changed == base.keys() - {"model.embed_tokens.weight"}
        assert torch.equal(loss_of(one.model, IDS), loss_of(parallel.model, IDS)) and loss_of(one.model, IDS) < loss


@pytest.mark.parametrize("parts", [("language", "experts"), ("language", "experts", "router")])
def test_what_an_architecture_keeps_in_float32_is_not_rounded(parts: tuple[Part, ...], tmp_path: Path) -> None:
    """Trained or not: a router that is rounded chooses other experts than in the model that is deployed."""
    from transformers import Ernie4_5_MoeForCausalLM

    directory = save("ernie4_5_moe", tmp_path)
    model = Ernie4_5_MoeForCausalLM.from_pretrained(directory, dtype=FP32)
    freeze_to(model, frozenset(parts))
    parallel = replica(model=model)
    deployed = Ernie4_5_MoeForCausalLM.from_pretrained(directory, dtype=BF16)
    wanted = {name: p.dtype for name, p in deployed.named_parameters()}
    assert set(wanted.values()) == {BF16, FP32}
    assert {name: p.dtype for name, p in parallel.module.named_parameters()} == wanted
    assert torch.equal(loss_of(parallel.model, IDS), loss_of(deployed, IDS))
    parallel.backward(loss_of(parallel.model, IDS), last=True)
    parallel.reduce_gradients(None)
    parallel.step()
    gate = "model.layers.1.mlp.gate.weight"
    moved = not torch.equal(model.get_parameter(gate), deployed.get_parameter(gate))
    assert moved is ("router" in parts)
    assert torch.equal((parallel.export_state() or {})[gate], model.get_parameter(gate))


@pytest.mark.usefixtures("bfloat16_computed")
@pytest.mark.parametrize("name", ["smolvlm", "idefics3"])
def test_a_frozen_tower_has_the_precision_of_what_is_trained_behind_it(name: str, tmp_path: Path) -> None:
    """These cast what a tower has seen to the precision of the model's first weight, which is the tower's."""
    vision_families.save(name, tmp_path / "model")
    rows = str(write_jsonl(tmp_path / "seen.jsonl", picture_rows(tmp_path, 16)))
    spec = small_spec(
        tmp_path,
        tmp_path / "model",
        eval_rows=0,
        lora=None,
        model__dtype="bfloat16",
        data__train=rows,
        train__max_steps=4,
        train__micro_batch_tokens=256,
    )
    run_here(spec)
    losses = [row["loss"] for row in metrics(spec) if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [FP32, torch.float16])
def test_other_precisions_have_no_copies(dtype: torch.dtype) -> None:
    model = llama()
    masters = Masters(dict(model.named_parameters()), copies_in(model, dtype))
    assert not masters.computed and masters.weights == dict(model.named_parameters())
