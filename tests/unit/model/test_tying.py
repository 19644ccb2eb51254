"""Head and embeddings are one tensor or two, as the files have it, in all that is made of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from rankzero.model import tying
from rankzero.model.load import _CLASSES as CLASSES
from rankzero.model.load import empty_model, kind_of, load_config, load_model
from rankzero.model.source import ModelSource
from rankzero.spec.run_spec import ModelSpec
from tests.support.runs import run_here, run_processes_here, run_root, small_spec
from tests.support.tiny import tiny_model
from tests.support.tiny_configs import CONFIGS

HEADS = {
    "llama": ("lm_head.weight", "model.embed_tokens.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "gemma3": ("lm_head.weight", "model.language_model.embed_tokens.weight"),
    "qwen3_vl": ("lm_head.weight", "model.language_model.embed_tokens.weight"),
}


def with_a_head(directory: Path, head: str, embeddings: str, *, off: float) -> Path:
    """Files of a model that ties them, with a head of its own; `off` is what it differs by."""
    file = directory / "model.safetensors"
    weights = load_file(file)
    (table,) = (weights[name] for name in weights if name.endswith(".".join(embeddings.split(".")[-2:])))
    weights[head] = table.clone()
    weights[head][-1] += off
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def are_one(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("off", [0.0, 0.5])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_shape_and_config_are_as_the_files(name: str, off: float, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    for one in (config, config.get_text_config()):
        one.tie_word_embeddings = True
    model = CLASSES[kind_of(config, "writes")].from_config(config)
    assert are_one(model)
    model.save_pretrained(tmp_path)
    with_a_head(tmp_path, *HEADS[name], off=off)
    source, spec = ModelSource(tmp_path, tmp_path, "tiny"), ModelSpec(name="tiny")
    config = load_config(source, spec)
    loaded = load_model(source, spec, config, torch.float32)
    assert are_one(loaded) is (off == 0.0)
    assert are_one(empty_model(spec, config, torch.float32)) is are_one(loaded)
    assert loaded.config.tie_word_embeddings is are_one(loaded)


def test_tables_of_blocks_that_predict_further_tokens_are_beside_the_matter(tmp_path: Path) -> None:
    directory = with_a_head(tiny_model(tmp_path / "model"), *HEADS["llama"], off=0.5)
    file = directory / "model.safetensors"
    weights = load_file(file)
    more = dict.fromkeys(("mtp.embed_tokens.weight", "model.layers.7.embed_tokens.weight"))
    weights |= {name: weights["model.embed_tokens.weight"].clone() for name in more}
    save_file(weights, file, metadata={"format": "pt"})
    assert load_config(ModelSource(directory, directory, "tiny"), ModelSpec(name="tiny")).tie_word_embeddings is False


def test_tables_of_two_precisions_are_compared(tmp_path: Path) -> None:
    directory = with_a_head(tiny_model(tmp_path / "model"), *HEADS["llama"], off=0.5)
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(weights, file, metadata={"format": "pt"})
    config = AutoConfig.from_pretrained(directory)
    tying.tie_as_stored(config, directory)
    assert config.tie_word_embeddings is False


def test_nothing_is_read_where_there_is_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny_model(tmp_path / "model")
    monkeypatch.setattr(tying, "_are_equal", None)
    config = AutoConfig.from_pretrained(directory)
    tying.tie_as_stored(config, directory)
    assert config.tie_word_embeddings is True


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_result_says_of_its_two_tables_that_they_are_two(sharding: str, tmp_path: Path) -> None:
    base = with_a_head(tiny_model(tmp_path / "model"), *HEADS["llama"], off=0.5)
    spec = small_spec(tmp_path, base, lora=None, train__num_train_epochs=1, train__sharding=sharding)
    run_here(spec) if sharding == "ddp" else run_processes_here(spec, 2)
    final = run_root(spec) / "final"
    weights = load_file(final / "model.safetensors")
    assert not torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert AutoConfig.from_pretrained(final).tie_word_embeddings is False


def test_a_trained_token_of_two_tables_has_two_rows(tmp_path: Path) -> None:
    base = with_a_head(tiny_model(tmp_path / "model"), *HEADS["llama"], off=0.5)
    spec = small_spec(tmp_path, base, train__num_train_epochs=1, lora__trainable_token_indices=[5, 6])
    run_here(spec)
    trained = [name for name in load_file(run_root(spec) / "final/adapter_model.safetensors") if "lora" not in name]
    assert len(trained) == 2, trained
