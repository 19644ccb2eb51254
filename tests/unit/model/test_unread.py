"""What is said of weights in the files that the model has no place for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPTNeoConfig

from rankzero.errors import ConfigError
from rankzero.model.source import ModelSource
from tests.unit.model.support import loaded, saved, spec_of


def says(directory: Path, **changes: Any) -> None:
    """Change what config.json says."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def holds(directory: Path, **tensors: torch.Tensor) -> None:
    """Add tensors to the files; `__` in a name stands for a dot."""
    file = directory / "model.safetensors"
    more = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(load_file(file) | more, file, metadata={"format": "pt"})


def as_another(name: str, model_type: str, kind: str, directory: Path) -> ModelSource:
    source = saved(name, directory)
    says(directory, model_type=model_type, architectures=[kind])
    return source


Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """What rankzero has warned of."""
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("rankzero") and record.levelno >= logging.WARNING
    ]


def test_a_layer_without_the_bias_that_its_files_have_is_another_model(tmp_path: Path) -> None:
    source = as_another("qwen2_moe", "qwen3_moe", "Qwen3MoeForCausalLM", tmp_path)
    holds(tmp_path, **{f"model__layers__{n}__self_attn__{q}_norm__weight": torch.ones(8) for n in (0, 1) for q in "qk"})
    with pytest.raises(ConfigError, match="weights of the files have no place in their layers") as refused:
        loaded(source, spec_of())
    problem = refused.value.problems[0]
    assert "model.layers.0.self_attn.k_proj.bias" in problem.what and problem.where == str(tmp_path)
    assert "attention_bias" in problem.hint


def test_a_bias_of_zeros_is_none(tmp_path: Path, said: Said) -> None:
    source = saved("llama", tmp_path)
    holds(tmp_path, model__layers__0__self_attn__o_proj__bias=torch.zeros(16))
    loaded(source, spec_of())
    assert not said()


def test_a_bias_of_zeros_is_none_under_an_older_name(tmp_path: Path, said: Said) -> None:
    """transformers reports names as the model has them."""
    source = saved("gemma3", tmp_path)
    (stored,) = (
        name
        for name in load_file(tmp_path / "model.safetensors")
        if name.endswith("layers.0.self_attn.o_proj.weight") and "vision" not in name
    )
    holds(tmp_path, **{stored.replace("weight", "bias"): torch.zeros(16)})
    loaded(source, spec_of())
    assert not said()


def test_the_causal_masks_of_gpt_neo_are_no_layers(tmp_path: Path, said: Said) -> None:
    types = [[["global", "local"], 1]]
    config = GPTNeoConfig(hidden_size=16, num_layers=2, attention_types=types, num_heads=2, vocab_size=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    holds(tmp_path, transformer__h__0__attn__attention__bias=torch.ones(1, 1, 4, 4))
    loaded(ModelSource(tmp_path, tmp_path, "tiny"), spec_of())
    assert not said()


def test_the_bias_of_another_tasks_head_is_left_out(tmp_path: Path, said: Said) -> None:
    """A reward model that scores tokens has one, a classifier of texts has none."""
    source = saved("llama", tmp_path)
    holds(tmp_path, score__weight=torch.ones(2, 16), score__bias=torch.ones(2))
    loaded(source, spec_of(task="classify"))
    assert not said()


def test_a_layer_that_the_config_does_not_know_is_named(tmp_path: Path, said: Said) -> None:
    source = saved("llama", tmp_path)
    holds(tmp_path, model__layers__1__self_attn__q_norm__weight=torch.ones(8))
    loaded(source, spec_of())
    (words,) = said()
    assert "1 layer in blocks where config.json has none" in words and "model.layers.1.self_attn.q_norm" in words


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (
            "gpt2",
            {
                "transformer__h__0__attn__bias": torch.ones(1, 1, 4, 4),
                "transformer__h__0__attn__masked_bias": torch.ones(1),
            },
        ),
        (
            "bert",
            {"cls__predictions__transform__dense__weight": torch.ones(4, 4), "cls__predictions__bias": torch.ones(4)},
        ),
        (
            "llama",
            {
                "model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(4),
                "mtp__layers__0__norm__weight": torch.ones(4),
            },
        ),
    ],
)
def test_masks_and_heads_of_other_tasks_are_left_out(
    name: str, more: dict[str, torch.Tensor], tmp_path: Path, said: Said
) -> None:
    source = saved(name, tmp_path)
    holds(tmp_path, **more)
    loaded(source, spec_of(task="classify") if name == "bert" else spec_of())
    assert not said()
