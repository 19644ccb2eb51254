"""The repeated blocks of text models and of encoders, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from rankzero.engine.setup import to_train
from rankzero.model.load import meta_model
from rankzero.model.parts import blocks
from rankzero.model.shapes import model_facts
from rankzero.spec.run_spec import ModelSpec
from tests.support.tiny_configs import CONFIGS
from tests.unit.model.support import spec_of, task_of, use_of

LAYERS = {
    "llama": ["model.layers"],
    "gpt2": ["transformer.h"],
    "distilbert": ["distilbert.transformer.layer"],
    "bert": ["bert.encoder.layer"],
    "qwen3_moe": ["model.layers"],
    "deepseek_v3": ["model.layers"],
    "gpt_oss": ["model.layers"],
    "qwen3_vl": ["model.visual.blocks", "model.language_model.layers"],
    "qwen2_5_vl": ["model.visual.blocks", "model.language_model.layers"],
    "llava": ["model.vision_tower.encoder.layers", "model.language_model.layers"],
    "gemma3": ["model.vision_tower.encoder.layers", "model.language_model.layers"],
    "idefics3": ["model.vision_model.encoder.layers", "model.text_model.layers"],
    "internvl": ["model.vision_tower.encoder.layer", "model.language_model.layers"],
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_blocks_are_the_layers(name: str) -> None:
    model = meta_model(CONFIGS[name](), ModelSpec(name="m"), use_of(name))
    found = blocks(model)
    assert [n for n, _ in found] == [f"{layers}.{number}" for layers in LAYERS[name] for number in (0, 1)]
    assert all(model.get_submodule(n) is module for n, module in found)


@pytest.mark.parametrize("name", ["llama", "qwen3_vl", "bert"])
def test_adapters_do_not_hide_them(name: str) -> None:
    spec = spec_of(task=task_of(name), lora={"dropout": 0})
    model = to_train(meta_model(CONFIGS[name](), spec.model, spec.task_section.uses), spec, base_name="base")
    assert [n for n, _ in blocks(model)] == [
        f"base_model.model.{layers}.{number}" for layers in LAYERS[name] for number in (0, 1)
    ]


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"vocab_size": 64, "num_hidden_layers": 4, "pad_token_id": 0}


def jamba() -> Any:
    return transformers.JambaConfig(
        **SMALL, attn_layer_period=2, attn_layer_offset=1, num_experts=1, mamba_d_state=4, use_mamba_kernels=False
    )


def zamba() -> Any:
    """Its two layers with attention share their weights."""
    sizes = {"mamba_d_state": 4, "n_mamba_heads": 2, "layers_block_type": ["mamba", "hybrid"] * 2}
    return transformers.ZambaConfig(**SMALL, **sizes, use_mamba_kernels=False)


def olmo_hybrid() -> Any:
    kinds = ["linear_attention", "full_attention"] * 2
    return transformers.OlmoHybridConfig(**SMALL, layer_types=kinds, linear_num_key_heads=2, linear_num_value_heads=2)


@pytest.mark.parametrize("config", [jamba, zamba, olmo_hybrid])
def test_layers_of_several_classes_in_one_list_are_blocks(config: Callable[[], Any]) -> None:
    model = meta_model(config(), ModelSpec(name="m"), "writes")
    assert len({type(block) for _, block in blocks(model)}) == 2
    assert [name for name, _ in blocks(model)] == [f"model.layers.{number}" for number in range(4)]


def test_the_memory_plan_of_a_hybrid_has_activations_and_packs_its_layers() -> None:
    config = jamba()
    model = meta_model(config, ModelSpec(name="m"), "writes")
    model.requires_grad_(requires_grad=False)
    whole, packed = (
        model_facts(model, config, torch.float32, quantization=bits, use="writes") for bits in ("none", "nf4")
    )
    assert whole.text.count == 4 and whole.block_bytes
    assert packed.frozen_bytes < whole.frozen_bytes / 2


def test_a_model_that_declares_nothing_has_those_of_its_outermost_lists() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Layer() for _ in range(2))
    model.mixed = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU()])
    assert [name for name, _ in blocks(model)] == ["layers.0", "layers.1"]
