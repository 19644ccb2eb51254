"""Which modules adapters go on, and that a wrong name is caught before weights are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig

from rankzero.errors import ConfigError
from rankzero.model.load import meta_model
from rankzero.model.lora import apply_lora, parameter_counts, target_modules
from rankzero.spec.run_spec import LoraSpec


@pytest.fixture(scope="module")
def llama(tiny: Path) -> object:
    return meta_model(AutoConfig.from_pretrained(tiny), trust_remote_code=False)


def test_auto_is_attention(llama: object) -> None:
    assert target_modules(LoraSpec(), llama) == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_auto_knows_other_architectures() -> None:
    model = meta_model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16), trust_remote_code=False)
    assert target_modules(LoraSpec(), model) == ["c_attn"]


def test_all_linear_leaves_the_head_out(llama: object) -> None:
    names = target_modules(LoraSpec(target_modules="all-linear"), llama)
    assert set(names) == {"k_proj", "o_proj", "q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}


def test_every_unknown_module_is_named_with_a_guess(llama: object) -> None:
    with pytest.raises(ConfigError) as wrong:
        target_modules(LoraSpec(target_modules=("q_prj", "v_proj", "nothing")), llama)
    assert [p.what for p in wrong.value.problems] == [
        "the model has no linear module q_prj",
        "the model has no linear module nothing",
    ]
    assert "did you mean q_proj?" in wrong.value.problems[0].hint
    assert "down_proj" in wrong.value.problems[1].hint


def test_meta_models_take_no_memory() -> None:
    config = LlamaConfig(hidden_size=8192, num_hidden_layers=80, intermediate_size=28672, num_attention_heads=64)
    model = meta_model(config, trust_remote_code=False)
    assert parameter_counts(model)[1] > 60e9


def test_adapters_start_equal_on_every_rank_whatever_was_drawn_before(tiny: Path) -> None:
    states = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        torch.rand(noise)
        model = AutoModelForCausalLM.from_pretrained(tiny)
        adapted = apply_lora(model, LoraSpec(r=2), seed=5, base_name="base")
        states.append({name: p for name, p in adapted.named_parameters() if p.requires_grad})
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(p.dtype is torch.float32 for p in states[0].values())


@pytest.mark.parametrize("switch", ["use_dora", "use_rslora"])
def test_switches_reach_peft(switch: str, tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    adapted = apply_lora(model, LoraSpec.model_validate({"r": 2, switch: True}), seed=1, base_name="base")
    config = adapted.peft_config["default"]
    assert getattr(config, switch) is True
    assert config.base_model_name_or_path == "base"
