"""Adapters without a gradient are named once, over all ranks; where none has one, the run ends."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, JambaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from rankzero.engine.console import logger
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.optim import make_optimizer
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.parallel.fsdp import Fsdp
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.unreached import LOOKS, AdapterWatch
from rankzero.errors import ConfigError
from rankzero.model.lora import apply_lora
from rankzero.spec.run_spec import LoraSpec, RunSpec
from tests.support import tiny_configs
from tests.support.forked import in_ranks
from tests.support.runs import run_here, small_spec

CPU = Device("cpu")
IDS = torch.arange(3, 19).view(2, 8)


def past_down_proj(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    """What kernels do that are given a layer's weight and do not call the layer."""
    return F.linear(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x), mlp.down_proj.weight)


def adapted(name: str, targets: list[str] | str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_configs.CONFIGS[name]())
    model.config.use_cache = False
    lora = LoraSpec.model_validate({"r": 4, "alpha": 8, "target_modules": targets})
    return apply_lora(model, lora, parts="auto", use="language", seed=0, packed=False, base_name="tiny").train()


def spread(sharding: str, model: Any, world: World) -> Parallel:
    spec = RunSpec.model_validate(
        {"model": {"name": "none"}, "data": {"train": "none"}, "train": {"sharding": sharding}}
    )
    optimizer = partial(make_optimizer, spec=spec.train, learning_rate=0.01)
    if sharding == "fsdp":
        return Fsdp(model, optimizer, spec=spec, world=world, device=CPU, dtype=torch.float32)
    return Replicated(model, optimizer, world=world, device=CPU)


def steps(parallel: Parallel, watch: AdapterWatch, n: int = LOOKS, ids: torch.Tensor = IDS) -> None:
    for number in range(n):
        loss = parallel.model(input_ids=ids, labels=ids).loss
        parallel.backward(loss, last=True)
        parallel.reduce_gradients(None)
        watch.look(float(loss.detach()), last=number == n - 1)
        parallel.step()
        parallel.zero_grad()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def test_a_run_names_once_the_adapters_that_its_model_passes_by(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", past_down_proj)
    run_here(small_spec(tmp_path, tiny, lora__target_modules=["q_proj", "down_proj"]))
    out = capsys.readouterr()
    lines = [line for line in (out.out + out.err).splitlines() if "had no gradient" in line]
    assert len(lines) == 1
    assert "2 of 4 adapters" in lines[0] and "model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj" in lines[0]
    assert "lora.target_modules without down_proj" in lines[0]


def test_a_run_in_which_no_adapter_is_reached_ends(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", past_down_proj)
    spec = small_spec(tmp_path, tiny, lora__target_modules=["down_proj"])
    with pytest.raises(ConfigError, match="no adapter had a gradient") as error:
        run_here(spec)
    assert error.value.problems[0].where == "lora.target_modules"


def test_jamba_takes_the_weight_of_a_layer_that_it_does_not_call(said: pytest.LogCaptureFixture) -> None:
    """transformers' own code, with nothing changed."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = JambaConfig(
        vocab_size=64,
        num_hidden_layers=4,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
        **sizes,
    )
    model = AutoModelForCausalLM.from_config(config)
    lora = LoraSpec.model_validate({"r": 4, "alpha": 8, "target_modules": "all-linear"})
    model = apply_lora(model, lora, parts="auto", use="language", seed=0, packed=False, base_name="tiny").train()
    parallel = spread("ddp", model, World(0, 1, 0, 1))
    steps(parallel, AdapterWatch(parallel, torch.device("cpu")))
    (record,) = [record for record in said.records if record.name == logger.name]
    assert "model.layers.0.mamba.dt_proj, model.layers.2.mamba.dt_proj. hint" in record.message


def test_nothing_is_said_and_no_later_step_is_looked_at_where_all_are_reached(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = spread("ddp", adapted("llama", "all-linear"), World(0, 1, 0, 1))
    watch = AdapterWatch(parallel, torch.device("cpu"))
    steps(parallel, watch, 1)
    assert watch.over and not said.records
    monkeypatch.setattr(parallel, "gradients", None)
    steps(parallel, watch, 1)


def test_an_expert_that_no_token_visits_is_no_finding_and_a_kind_that_none_does_is(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts that are layers of their own, as a model's own code has them."""

    class Expert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    model = adapted("llama", ["q_proj"])
    base = model.get_base_model()
    base.experts = torch.nn.ModuleList([Expert(), Expert()])
    for parameter in base.experts.parameters():
        parameter.requires_grad_(False)
    for expert in base.experts:
        for layer in (expert.w1, expert.w2):
            layer.lora_A = torch.nn.Parameter(torch.zeros(2))
    parallel = spread("ddp", model, World(0, 1, 0, 1))
    watch = AdapterWatch(parallel, torch.device("cpu"))
    gradients = parallel.gradients

    def visited() -> Any:
        for name, gradient in gradients():
            yield name, gradient + ("experts.1.w1.lora_A" in name)

    monkeypatch.setattr(parallel, "gradients", visited)
    steps(parallel, watch)
    (record,) = said.records
    assert "2 of 6 adapters" in record.message and "experts.0.w2, experts.1.w2" in record.message
    assert "w1" not in record.message


def test_adapters_on_what_sees_images_are_not_judged_by_steps_without_one(said: pytest.LogCaptureFixture) -> None:
    """Not even where nothing else is adapted, and a pass over text has no gradient at all."""
    for parts in (["language", "vision_tower"], ["vision_tower"]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(tiny_configs.CONFIGS["qwen3_vl_moe"]())
        lora = LoraSpec.model_validate({"r": 4, "alpha": 8, "target_modules": "all-linear"})
        model = apply_lora(model, lora, parts=parts, use="language", seed=0, packed=False, base_name="tiny").train()
        assert any(".visual." in name for name, parameter in model.named_parameters() if parameter.requires_grad)
        parallel = spread("ddp", model, World(0, 1, 0, 1))
        steps(parallel, AdapterWatch(parallel, torch.device("cpu")))
        assert not said.records


def test_gradients_that_float16_may_have_rounded_away_end_no_run(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", past_down_proj)
    parallel = spread("ddp", adapted("llama", ["down_proj"]), World(0, 1, 0, 1))
    steps(parallel, AdapterWatch(parallel, torch.device("cpu"), may_vanish=True))
    assert len(said.records) == 1
    with pytest.raises(ConfigError):
        steps(parallel, AdapterWatch(parallel, torch.device("cpu")))


def each_rank_uses_another_layer(world: World, root: Path, sharding: str) -> None:
    """A layer that one rank's rows reach is reached; one that none does is named by every rank alike."""
    model = adapted("llama", ["q_proj", "up_proj", "down_proj"])
    mlps = [module for module in model.modules() if isinstance(module, LlamaMLP)]

    def forward(mlp: Any, x: torch.Tensor) -> torch.Tensor:
        up = mlp.up_proj(x) if mlp is mlps[world.rank] else F.linear(x, mlp.up_proj.weight)
        return F.linear(mlp.act_fn(mlp.gate_proj(x)) * up, mlp.down_proj.weight)

    for mlp in mlps:
        mlp.forward = partial(forward, mlp)
    parallel = spread(sharding, model, world)
    watch = AdapterWatch(parallel, torch.device("cpu"))
    steps(parallel, watch, ids=IDS + world.rank)


def in_rank(directory: Path, sharding: str) -> None:
    import os

    from rankzero.engine.distributed import process_group, world_from_env

    world = world_from_env(dict(os.environ))
    logging.basicConfig(level=logging.WARNING)
    logger.propagate = True
    with process_group(world, CPU, dict(os.environ)):
        each_rank_uses_another_layer(world, directory, sharding)


@pytest.mark.distributed
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_ranks_judge_together(tmp_path: Path, sharding: str) -> None:
    assert in_ranks(in_rank, 2, tmp_path, sharding) == [0, 0]
    for rank in range(2):
        said = (tmp_path / f"said-{rank}").read_text()
        assert said.count("had no gradient") == 1
        assert "2 of 6 adapters" in said and "down_proj" in said and "up_proj" not in said
