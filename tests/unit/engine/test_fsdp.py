"""FSDP2 without the loop: who holds what, what a step's gradients are, and what happens when a rank cannot write."""

from __future__ import annotations

import copy
import logging
import os
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig

from rankzero.engine.device import Device
from rankzero.engine.distributed import World, world_from_env
from rankzero.engine.optim import make_optimizer
from rankzero.engine.parallel.formats import (
    ShardedSnapshot,
    is_finite,
    model_state,
    read_optimizer,
    read_sharded,
    write_tensors,
)
from rankzero.engine.parallel.fsdp import Fsdp, units
from rankzero.engine.parallel.parts import Cut, local
from rankzero.engine.parallel.replicas import Replicated
from rankzero.errors import ConfigError, StorageError
from rankzero.model.parts import freeze_to
from rankzero.spec.run_spec import Part, RunSpec
from tests.support.forked import in_ranks
from tests.support.unasked import nothing_asked_of_models

pytestmark = pytest.mark.distributed

CPU = Device("cpu")
SPEC = RunSpec.model_validate(
    {"model": {"name": "none"}, "data": {"train": "none"}, "train": {"sharding": "fsdp", "weight_decay": 0.1}}
)
IDS = torch.arange(24).view(2, 12)
ROUTERS: tuple[tuple[Part, ...], ...] = (("language", "experts"), ("language", "experts", "router"))


def llama(*, without_memory: bool = False, tied: bool = True) -> Any:
    """Two layers whose sizes do not divide by two or three."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=67,
        hidden_size=20,
        intermediate_size=31,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device("meta" if without_memory else "cpu"):
        return LlamaForCausalLM(config).train()


def spread(model: Any, world: World, spec: RunSpec = SPEC, dtype: torch.dtype = torch.float32) -> Fsdp:
    optimizer = partial(make_optimizer, spec=spec.train, learning_rate=0.01)
    return Fsdp(model, optimizer, spec=spec, world=world, device=CPU, dtype=dtype)


def test_units_are_the_blocks_that_share_no_weight_and_none_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that two units cut would be two weights from then on."""
    monkeypatch.setattr(logging.getLogger("rankzero"), "propagate", True)
    model = llama()
    assert [name for name, _ in units(model)] == ["model.layers.0", "model.layers.1"] and not caplog.text
    model.model.layers[0].mlp.up_proj.weight = model.model.layers[1].mlp.up_proj.weight
    assert units(model) == []
    assert "FSDP2 finds no blocks in LlamaForCausalLM" in caplog.text


def each_rank_holds_its_share_of_rank_0s_weights(world: World, _root: Path) -> None:
    """Ranks but the first come without memory: weights, and buffers that no file has, are rank 0's afterwards."""
    parallel = spread(llama(without_memory=not world.is_main), world)
    whole, module = llama(), parallel.module
    expected = dict(whole.named_parameters())
    held, own = 0, dict(module.named_parameters())
    assert own.keys() == expected.keys()
    for name, parameter in own.items():
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), expected[name]), name
        held += local(parameter).numel()
    total = sum(parameter.numel() for parameter in expected.values())
    assert held / total == pytest.approx(1 / world.world_size, abs=0.05)
    assert module.lm_head.weight is module.model.embed_tokens.weight, "what was shared still is"
    for name, buffer in whole.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer), name
    with torch.no_grad():
        assert torch.allclose(module(input_ids=IDS).logits, whole(input_ids=IDS).logits, atol=1e-6)
    state = parallel.export_state()
    assert state is not None and state.keys() == (expected.keys() if world.is_main else set())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def parts_make_the_whole(world: World, _root: Path) -> None:
    cut = Cut(world, CPU)
    for shape in ((), (1,), (2,), (5, 3), (7, 1, 2), (3, 0)):
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        part = cut.mine(whole)
        assert torch.equal(cut.gather(part, whole.shape), whole), shape
        if part.ndim and part.numel():
            assert whole.view(-1)[cut.begin(whole.shape)] == part.view(-1)[0]
        dtensor = cut.spread(part, whole.shape)
        assert dtensor.shape == whole.shape
        assert local(dtensor).data_ptr() == part.data_ptr(), "nothing is copied"


class Block(torch.nn.Module):
    """One of two weights is used."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (torch.nn.Parameter(torch.full((3,), value)) for value in (1.0, 2.0))

    def forward(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return torch.mul(x, getattr(self, side))


class Line(torch.nn.Linear):
    config = PretrainedConfig()


class OneSided(torch.nn.Module):
    """Ranks that are given different sides use different weights, as with experts."""

    config = PretrainedConfig()

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.scale = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor, side: str) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, side)
        return x * self.scale


def gradients_are_sums_over_ranks_and_passes_whatever_each_uses(world: World, _root: Path) -> None:
    parallel, whole, cut = spread(OneSided(), world), OneSided(), Cut(world, CPU)
    work = [(torch.arange(1.0, 4.0) + rank, "left" if rank else "right") for rank in range(world.world_size)]
    for number in range(2):  # two passes; each rank uses its own side in both
        parallel.backward(parallel.model(*work[world.rank]).sum(), last=number == 1)
    norm = parallel.reduce_gradients(None)
    for x, side in work:
        (2 * whole(x, side).sum()).backward()
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters() if parameter.grad is not None}
    assert len(gradients) == 5
    parts = [part for group in parallel.optimizer.param_groups for part in group["params"]]
    for part, (name, gradient) in zip(parts, gradients.items(), strict=True):
        assert torch.equal(part.grad, cut.mine(gradient)), name
    assert norm.item() == pytest.approx(torch.cat(list(gradients.values())).norm().item())
    assert torch.equal(parallel.reduce_gradients(1.0), norm), "the norm is from before clipping"
    clipped = [cut.gather(part.grad, torch.Size([3])) for part in parts]
    assert torch.cat(clipped).norm().item() == pytest.approx(1.0, abs=1e-5)
    parallel.zero_grad()
    assert all(parameter.grad is None for parameter in (*parts, *parallel.module.parameters()))


def what_cannot_be_spread_is_refused_on_every_rank(world: World, _root: Path) -> None:
    with pytest.raises(ConfigError, match="different models"):
        spread(torch.nn.Linear(3, 3 + world.rank), world)
    number = Line(3, 3)
    number.scale = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ConfigError, match="train.sharding: FSDP2: the model has a trained number"):
        spread(number, world)
    with pytest.raises(ConfigError, match="several precisions"):
        spread(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, dtype=torch.bfloat16)), world)
    number.scale.requires_grad_(False)
    assert not spread(number, world).module.scale.ndim, "frozen, it lies whole on every rank"


def a_rank_that_cannot_write_tells_the_others(world: World, root: Path) -> None:
    parallel = spread(Line(3, 3), world)
    blocked, staged = root / "file", root / "staged"
    staged.mkdir(exist_ok=True)
    if world.rank == 1:
        blocked.write_text("a file stands where a directory is needed")
    with pytest.raises(StorageError, match="a file stands where a directory is needed"):
        parallel.snapshot().write(blocked if world.rank == 1 else root)
    parallel.snapshot().write(staged)
    assert {path.suffix for path in staged.rglob("*") if path.is_file()} == {".safetensors"}
    whole = torch.nn.Linear(3, 3)
    read_sharded(model_state(whole), staged)
    assert torch.equal(whole.weight, parallel.module.weight.full_tensor())
    assert not read_optimizer(staged), "no step was done"


def a_checkpoint_of_another_model_is_refused(world: World, root: Path) -> None:
    staged = root / "other"
    staged.mkdir(exist_ok=True)
    spread(Line(3, 3, bias=False), world).snapshot().write(staged)
    with pytest.raises(StorageError, match="bias"):
        spread(Line(3, 3), world).load(staged)


def small_changes_of_bfloat16_weights_are_kept_as_in_whole_ones(world: World, _root: Path) -> None:
    """Random rounding too: what is drawn for an element does not depend on who holds it."""
    for keep in ("kahan", "stochastic_rounding"):
        train = {"sharding": "fsdp", "master_weights": keep, "weight_decay": 0.1}
        spec = RunSpec.model_validate({"model": {"name": "none"}, "data": {"train": "none"}, "train": train})
        torch.manual_seed(0)
        whole = Line(5, 7, dtype=torch.bfloat16)
        parallel = spread(copy.deepcopy(whole), world, spec, torch.bfloat16)
        optimizer = make_optimizer(dict(whole.named_parameters()), spec.train, 0.01)
        for _ in range(3):
            x = torch.tensor([[1.0, 2.0, -1.0, 0.0, 3.0]], dtype=torch.bfloat16)
            parallel.backward(parallel.model(x * (world.rank + 1)).sum(), last=True)
            parallel.reduce_gradients(None)
            parallel.step()
            parallel.zero_grad()
            for rank in range(world.world_size):
                whole(x * (rank + 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = parallel.export_state() or {}
        for name, tensor in state.items():
            assert tensor.dtype is torch.bfloat16 and torch.equal(tensor, whole.get_parameter(name)), (keep, name)


def olmo2() -> Any:
    """Whose blocks are given cosines and sines in float32, whatever the rest is in."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    sizes = {"vocab_size": 67, "hidden_size": 20, "intermediate_size": 31, "use_cache": False}
    torch.manual_seed(0)
    return Olmo2ForCausalLM(Olmo2Config(**sizes, num_hidden_layers=2, num_attention_heads=2)).train()


def ernie(parts: tuple[Part, ...]) -> Any:
    """Two layers, of which the second has a router that its architecture keeps in float32, and a bias of it."""
    from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

    sizes = {"vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "use_cache": False}
    experts = {"moe_num_experts": 5, "moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 0}
    torch.manual_seed(0)
    model = Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(**sizes, **heads, **experts)).train()
    for name, parameter in model.named_parameters():
        if "moe_statics" in name:
            parameter.data.uniform_(8, 8.05)  # in bfloat16 all alike
    freeze_to(model, frozenset(parts))
    return model


def a_pass_in_bfloat16_is_a_replicas(world: World, _root: Path) -> None:
    """The same loss to the bit, and gradients but for the order in which ranks are added up."""
    for made in (llama, olmo2, *(partial(ernie, parts) for parts in (*ROUTERS, ("router",)))):
        replica = Replicated(
            made(),
            partial(make_optimizer, spec=SPEC.train, learning_rate=0.01),
            world=world,
            device=CPU,
            dtype=torch.bfloat16,
        )
        parallel, norms, losses = spread(made(), world, dtype=torch.bfloat16), [], []
        for way in (parallel, replica):
            for ids in (IDS, IDS.flip(1)):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = way.model(input_ids=ids + world.rank, labels=ids).loss
                way.backward(loss, last=ids is not IDS)
                losses.append(loss.item())
            norms.append(way.reduce_gradients(None).item())
            way.step()
        assert losses[:2] == losses[2:]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        state = parallel.export_state() or {}
        for name, tensor in (replica.export_state() or {}).items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5)


def what_an_architecture_keeps_in_float32_every_rank_has_whole(world: World, _root: Path) -> None:
    for parts in ROUTERS:
        parallel = spread(ernie(parts), world, dtype=torch.bfloat16)
        gates = {name: p for name, p in parallel.module.named_parameters() if ".mlp.gate." in name}
        assert len(gates) == 2 and not any(isinstance(p, DTensor) for p in gates.values())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            parallel.backward(parallel.model(input_ids=IDS + world.rank, labels=IDS).loss, last=True)
        parallel.reduce_gradients(None)
        parallel.step()
        before = ernie(parts).state_dict()
        moved = {name.rpartition(".")[2] for name, p in gates.items() if not torch.equal(p, before[name])}
        assert moved == ({"weight"} if "router" in parts else set())
        for parameter in gates.values():
            main = parameter.detach().clone()
            dist.broadcast(main, src=0)
            assert torch.equal(main, parameter)


def in_float16_nothing_lies_whole(world: World, _root: Path) -> None:
    """Not even T5's `wo`, which transformers has in float32 beside float16: autocast rounds it there, whole or cut."""
    from transformers import T5Config, T5ForSequenceClassification

    sizes = {"vocab_size": 67, "d_model": 20, "d_kv": 8, "d_ff": 31, "num_layers": 1, "num_heads": 2}
    model = T5ForSequenceClassification(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)).train()
    module = spread(model, world, dtype=torch.float16).module
    assert not [name for name, p in module.named_parameters() if not isinstance(p, DTensor)]


def what_is_kept_in_float32_is_saved_once_and_read_from_parts_too(world: World, root: Path) -> None:
    """As older versions have saved it."""
    for parts in ROUTERS:
        saved, cut = spread(ernie(parts), world, dtype=torch.bfloat16), Cut(world, CPU)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            saved.backward(saved.model(input_ids=IDS, labels=IDS).loss, last=True)
        saved.reduce_gradients(None)
        saved.step()
        now = saved._weights() | saved._optimizer_state()
        whole = {key: tensor for key, tensor in now.items() if not isinstance(tensor, DTensor) and tensor.ndim}
        assert all(".mlp.gate." in key for key in whole) and len(whole) == (4 if "router" in parts else 2)
        older = now | {key: cut.spread(cut.mine(tensor).clone(), tensor.shape) for key, tensor in whole.items()}
        for number, state in enumerate((now, older)):
            directory = root / f"kept-{len(parts)}-{number}"
            directory.mkdir(exist_ok=True)
            ShardedSnapshot(state, (cut,), world.world_size).write(directory)
            again = spread(ernie(parts), world, dtype=torch.bfloat16)
            again.load(directory)
            found = again._weights() | again._optimizer_state()
            assert found.keys() == now.keys()
            assert all(torch.equal(local(found[key]), local(tensor)) for key, tensor in now.items())


def what_two_ranks_saved_goes_to_any_number(world: World, root: Path) -> None:
    parallel, directory = spread(llama(), world), root.parent / "by-two"
    if world.world_size == 2:
        for _ in range(2):
            parallel.backward(parallel.model(input_ids=IDS, labels=IDS).loss, last=True)
            parallel.reduce_gradients(1.0)
            parallel.step()
            parallel.zero_grad()
        directory.mkdir(exist_ok=True)
        parallel.snapshot().write(directory)
    else:
        parallel.load(directory)
    whole = llama()
    read_sharded(model_state(whole), directory)
    assert not torch.equal(whole.lm_head.weight, llama().lm_head.weight)
    cut, optimizer = Cut(world, CPU), read_optimizer(directory)
    states = [parallel.optimizer.state[p] for group in parallel.optimizer.param_groups for p in group["params"]]
    for name, parameter in parallel.module.named_parameters():
        assert torch.equal(parameter.full_tensor(), whole.get_parameter(name)), name
        assert optimizer[f"{name}/step"] == 2
        moments = [optimizer[f"{name}/{key}"] for key in ("exp_avg", "exp_avg_sq")]
        assert any(
            all(torch.equal(state[key], cut.mine(m)) for key, m in zip(("exp_avg", "exp_avg_sq"), moments, strict=True))
            for state in states
        ), name


def a_rank_says_which_of_its_weights_are_not_finite(world: World, _root: Path) -> None:
    parallel = spread(llama(), world)
    parallel.backward(parallel.model(input_ids=IDS).logits.square().mean(), last=True)
    parallel.reduce_gradients(1.0)
    parallel.step()
    assert parallel.snapshot().not_finite() == []
    assert all(is_finite(part) for _, part in parallel.trained())
    names = [name for name, _ in parallel.module.named_parameters()]
    with torch.no_grad():
        for name in names:
            if world.rank == 1:
                local(parallel.module.get_parameter(name)).view(-1)[-1:] = float("nan")
    assert parallel.snapshot().not_finite() == (names if world.rank == 1 else [])
    found = [name for name, part in parallel.trained() if not is_finite(part)]
    assert found == (names if world.rank == 1 else [])


def what_is_frozen_by_now_needs_no_state_of_the_optimizer(world: World, root: Path) -> None:
    """Older versions trained, and saved the state of, what an architecture has frozen."""
    older, directory = spread(llama(), world), root / "older"
    older.backward(older.model(input_ids=IDS, labels=IDS).loss, last=True)
    older.reduce_gradients(None)
    older.step()
    directory.mkdir(exist_ok=True)
    older.snapshot().write(directory)
    module = llama()
    module.model.norm.weight.requires_grad_(False)
    parallel = spread(module, world)
    parallel.load(directory)
    weights, state = parallel._weights(), parallel._optimizer_state()
    assert all(torch.equal(local(tensor), local(weights[name])) for name, tensor in older._weights().items())
    assert older._optimizer_state().keys() - state.keys() == {
        f"model.norm.weight/{key}" for key in ("step", "exp_avg", "exp_avg_sq")
    }


def a_checkpoint_is_written_beside_a_pass_without_touching_the_model(world: World, root: Path) -> None:
    """A pass has whole weights in the place of parts, which peft and torch would put back if they were asked."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    parallel = spread(get_peft_model(llama(tied=False), config), world)
    saved = {name: p.full_tensor() for name, p in parallel.module.named_parameters() if p.requires_grad}
    snapshot = parallel.snapshot().copied()
    parallel.module.unshard()
    in_a_pass = dict(parallel.module.named_parameters())
    assert any(not isinstance(parameter, DTensor) for parameter in in_a_pass.values())
    with nothing_asked_of_models():
        snapshot.write(root)
    now = dict(parallel.module.named_parameters())
    assert all(now[name] is parameter for name, parameter in in_a_pass.items())
    if world.is_main:
        written = load_file(root / "model/adapter_model.safetensors")
        names = {name.replace(".default", "").replace(".modules_to_save", ""): name for name in saved}
        assert written.keys() == names.keys() and len(written) == 5
        assert all(torch.equal(written[name], saved[names[name]]) for name in names)


CHECKS = (
    each_rank_holds_its_share_of_rank_0s_weights,
    parts_make_the_whole,
    gradients_are_sums_over_ranks_and_passes_whatever_each_uses,
    what_cannot_be_spread_is_refused_on_every_rank,
    a_rank_that_cannot_write_tells_the_others,
    a_checkpoint_of_another_model_is_refused,
    a_rank_says_which_of_its_weights_are_not_finite,
    what_is_frozen_by_now_needs_no_state_of_the_optimizer,
    a_checkpoint_is_written_beside_a_pass_without_touching_the_model,
    small_changes_of_bfloat16_weights_are_kept_as_in_whole_ones,
    a_pass_in_bfloat16_is_a_replicas,
    what_an_architecture_keeps_in_float32_every_rank_has_whole,
    in_float16_nothing_lies_whole,
    what_is_kept_in_float32_is_saved_once_and_read_from_parts_too,
    what_two_ranks_saved_goes_to_any_number,
)


def run_checks(root: Path) -> None:
    """All checks on one rank, up to the first that fails: after that, ranks may wait for different things."""
    torch.set_num_threads(1)
    world = world_from_env(dict(os.environ))
    meeting, patience = os.environ["RANKZERO_RENDEZVOUS"], timedelta(minutes=2)
    place = {"rank": world.rank, "world_size": world.world_size, "timeout": patience}
    dist.init_process_group("gloo", init_method=meeting, **place)
    for check in CHECKS:
        try:
            check(world, root)
            dist.barrier()
        except BaseException:
            (root / f"failed-{check.__name__}-{world.rank}").write_text(traceback.format_exc())
            raise
        (root / f"passed-{check.__name__}-{world.rank}").touch()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks, and then three, left what they found: processes are started once for all checks."""
    root = tmp_path_factory.mktemp("ranks")
    for world_size in (2, 3):
        (root / str(world_size)).mkdir()
        in_ranks(run_checks, world_size, root / str(world_size))
    return root


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_every_rank(check: Any, world_size: int, ran: Path) -> None:
    failed = [path.read_text() for path in (ran / str(world_size)).glob(f"failed-{check.__name__}-*")]
    assert not failed, "\n".join(sorted(failed, key=len))
    assert len(list((ran / str(world_size)).glob(f"passed-{check.__name__}-*"))) == world_size


def test_what_safetensors_says_of_a_file_it_cannot_write_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="hint") as raised:
        write_tensors({"a": torch.zeros(1)}, tmp_path / "file" / "a.safetensors")
    assert raised.value.problems[0].where.endswith("a.safetensors")
