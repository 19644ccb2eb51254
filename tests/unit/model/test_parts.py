"""Which part every weight belongs to, in real classes of ten families."""

from __future__ import annotations

import pytest
import torch

from rankzero.errors import ConfigError
from rankzero.model.load import meta_model
from rankzero.model.parts import PARTS, freeze_to, parameter_parts, wanted_parts
from rankzero.spec.run_spec import ModelSpec
from tests.support.tiny_configs import CONFIGS
from tests.unit.model.support import spec_of, use_of


def model_of(name: str) -> object:
    return meta_model(CONFIGS[name](), ModelSpec(name="m"), use_of(name))


EXPECTED = {
    "llama": {"language"},
    "gpt2": {"language"},
    "distilbert": {"language"},
    "qwen3_moe": {"language", "experts", "router"},
    "qwen2_moe": {"language", "experts", "router"},
    "deepseek_v3": {"language", "experts", "router"},
    "mixtral": {"language", "experts", "router"},
    "olmoe": {"language", "experts", "router"},
    "gpt_oss": {"language", "experts", "router"},
    "qwen3_vl": {"language", "projector", "vision_tower"},
    "qwen3_vl_moe": set(PARTS),
    "qwen2_5_vl": {"language", "projector", "vision_tower"},
    "llava": {"language", "projector", "vision_tower"},
    "gemma3": {"language", "projector", "vision_tower"},
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_weight_has_a_part_and_every_expected_part_is_found(name: str) -> None:
    parts = parameter_parts(model_of(name))
    assert parts.keys() == dict(model_of(name).named_parameters()).keys()  # type: ignore[attr-defined]
    assert set(parts.values()) == EXPECTED[name]


def names(name: str, part: str) -> list[str]:
    return [n for n, p in parameter_parts(model_of(name)).items() if p == part]


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "olmoe", "qwen2_moe"])
def test_experts_are_the_fused_tensors(name: str) -> None:
    layers = [f"model.layers.{layer}.mlp.experts" for layer in (0, 1)]
    assert names(name, "experts") == [
        f"{layer}.{tensor}" for layer in layers for tensor in ("gate_up_proj", "down_proj")
    ]


def test_biases_of_experts_are_experts() -> None:
    assert "model.layers.0.mlp.experts.gate_up_proj_bias" in names("gpt_oss", "experts")
    assert names("gpt_oss", "router") == [
        f"model.layers.{layer}.mlp.router.{kind}" for layer in (0, 1) for kind in ("weight", "bias")
    ]


def test_an_expert_that_every_token_visits_is_language_and_its_gate_a_router() -> None:
    parts = parameter_parts(model_of("qwen2_moe"))
    assert parts["model.layers.0.mlp.shared_expert.gate_proj.weight"] == "language"
    assert parts["model.layers.0.mlp.shared_expert_gate.weight"] == "router"
    deepseek = parameter_parts(model_of("deepseek_v3"))
    assert deepseek["model.layers.0.mlp.gate_proj.weight"] == "language", "a dense layer's gate routes nothing"
    assert deepseek["model.layers.1.mlp.shared_experts.gate_proj.weight"] == "language"


def test_qwens_projector_is_in_its_tower() -> None:
    assert {n.split(".")[2] for n in names("qwen3_vl", "projector")} == {"merger", "deepstack_merger_list"}
    assert all(n.startswith("model.visual.") for n in names("qwen3_vl", "vision_tower"))
    assert all(n.startswith(("model.language_model.", "lm_head")) for n in names("qwen3_vl", "language"))


@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_what_lies_between_tower_and_text_is_the_projector(name: str) -> None:
    assert {n.split(".")[1] for n in names(name, "projector")} == {"multi_modal_projector"}
    assert {n.split(".")[1] for n in names(name, "vision_tower")} == {"vision_tower"}


@pytest.mark.parametrize(
    ("lora", "parts", "wanted"),
    [
        ({}, "auto", {"language"}),
        (None, "auto", {"language", "experts"}),
        ({}, ["experts", "router"], {"experts", "router"}),
        (None, ["projector"], {"projector"}),
    ],
)
def test_auto_and_named_parts(lora: object, parts: object, wanted: set[str]) -> None:
    assert wanted_parts(parts, model_of("qwen3_vl_moe"), adapters=lora is not None) == wanted


def test_parts_that_are_not_there_are_all_named() -> None:
    with pytest.raises(ConfigError) as wrong:
        wanted_parts(("language", "experts", "vision_tower"), model_of("llama"), adapters=False)
    assert [(p.what, p.where, p.hint) for p in wrong.value.problems] == [
        ("the model has no experts", "train.parts", "it has: language"),
        ("the model has no vision tower", "train.parts", "it has: language"),
    ]


def test_freezing_leaves_gradients_to_the_wanted_parts_alone() -> None:
    model = model_of("qwen3_vl_moe")
    freeze_to(model, frozenset({"projector", "router"}))
    belongs = parameter_parts(model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}  # type: ignore[attr-defined]
    assert trained == {name for name, part in belongs.items() if part in ("projector", "router")}


def test_parts_are_the_same_whatever_the_precision() -> None:
    from rankzero.model.load import empty_model

    half = empty_model(spec_of().model, CONFIGS["qwen3_vl_moe"](), torch.bfloat16)
    assert parameter_parts(half) == parameter_parts(model_of("qwen3_vl_moe"))
