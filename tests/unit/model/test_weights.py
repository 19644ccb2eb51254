"""Checkpoints come back bit for bit, results load elsewhere, and what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    GenerationConfig,
)

from rankzero.engine.setup import to_train
from rankzero.errors import StorageError
from rankzero.model.weights import export_final
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.support.weights import load_weights, read_state, save_weights
from tests.unit.model.support import loaded, logits, saved, shaken, spec_of, task_of

CLASS = {"classify": AutoModelForSequenceClassification, "vision": AutoModelForImageTextToText}


def plain(name: str, directory: Path) -> Any:
    """The model as anyone would load it; every weight is in the files and none is left over."""
    kind = "vision" if hasattr(CONFIGS[name](), "vision_config") else task_of(name)
    auto = CLASS.get(kind, AutoModelForCausalLM)
    model, report = auto.from_pretrained(directory, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_whole_model_comes_back_bit_for_bit_and_its_result_says_the_same(name: str, tmp_path: Path) -> None:
    spec = spec_of(task=task_of(name))
    source = saved(name, tmp_path / "base")
    model = shaken(loaded(source, spec))
    save_weights(model, tmp_path / "checkpoint")
    again = loaded(source, spec)
    load_weights(again, tmp_path / "checkpoint")
    assert all(torch.equal(p, q) for p, q in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    final = tmp_path / "final"
    final.mkdir()
    export_final(again, tiny_tokenizer(), final, dtype=torch.float32, stop_ids=[2])
    pictures = name == "qwen3_vl"
    assert torch.equal(logits(plain(name, final), pictures=pictures), logits(model, pictures=pictures))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "qwen3_vl", "distilbert"])
def test_a_state_that_is_handed_in_is_what_is_written(name: str, tmp_path: Path) -> None:
    """As a sharded run does: the model itself holds something else."""
    spec = spec_of(task=task_of(name))
    source = saved(name, tmp_path / "base")
    wanted, holder = shaken(loaded(source, spec)), loaded(source, spec)
    state = {name: tensor.clone() for name, tensor in wanted.state_dict().items()}
    save_weights(holder, tmp_path / "checkpoint", state=state)
    written = read_state(holder, tmp_path / "checkpoint")
    assert all(torch.equal(tensor, wanted.state_dict()[name]) for name, tensor in written.items())
    (tmp_path / "final").mkdir()
    export_final(holder, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2], state=state)
    assert torch.equal(logits(plain(name, tmp_path / "final")), logits(wanted))


def test_the_result_has_the_precision_of_the_base(tmp_path: Path) -> None:
    model = shaken(loaded(saved("qwen3_vl", tmp_path / "base"), spec_of()))
    (tmp_path / "final").mkdir()
    export_final(model, tiny_tokenizer(), tmp_path / "final", dtype=torch.bfloat16, stop_ids=[2])
    assert {t.dtype for t in load_file(tmp_path / "final/model.safetensors").values()} == {torch.bfloat16}
    config = json.loads((tmp_path / "final/config.json").read_text())
    assert {config["dtype"], config["text_config"]["dtype"], config["vision_config"]["dtype"]} == {"bfloat16"}
    assert plain("qwen3_vl", tmp_path / "final").dtype is torch.bfloat16
    assert model.dtype is torch.float32, "writing does not change the model"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama", {"lora": {"dropout": 0, "use_dora": True}}),
        ("distilbert", {}),
        ("deepseek_v3", {"train__parts": ["language", "experts", "router"]}),
        ("qwen3_moe", {"train__parts": ["experts", "router"], "model__quantization": "nf4"}),
        ("gemma3", {"train__parts": ["projector"]}),
    ],
)
def test_an_adapter_comes_back_bit_for_bit(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(task=task_of(name), **{"lora": {"dropout": 0}, **changes})
    source = saved(name, tmp_path / "base")
    adapted = shaken(to_train(loaded(source, spec), spec, base_name="base"))
    save_weights(adapted, tmp_path / "whole")
    trained = {n: p.detach().clone() for n, p in adapted.named_parameters() if p.requires_grad}
    holder = to_train(loaded(source, spec), spec, base_name="base")
    save_weights(holder, tmp_path / "handed", state=trained)
    files = [load_file(tmp_path / place / "adapter_model.safetensors") for place in ("whole", "handed")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    load_weights(holder, tmp_path / "whole")
    back = {n: p for n, p in holder.named_parameters() if p.requires_grad}
    assert back.keys() == trained.keys() and all(torch.equal(back[n], trained[n]) for n in trained)
    assert not (tmp_path / "whole/README.md").exists()


def test_shared_weights_are_written_once(tmp_path: Path) -> None:
    config = CONFIGS["llama"]()
    config.tie_word_embeddings = True
    model = AutoModelForCausalLM.from_config(config)
    save_weights(model, tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    with torch.no_grad():
        model.lm_head.weight.zero_()
    load_weights(model, tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.lm_head.weight.any()


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.model import weights

    write = weights.save_torch_state_dict
    monkeypatch.setattr(weights, "save_torch_state_dict", lambda s, d: write(s, d, max_shard_size=20_000))
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    save_weights(model, tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    other = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    load_weights(other, tmp_path)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save_weights(AutoModelForCausalLM.from_config(CONFIGS["llama"]()), tmp_path)
    with pytest.raises(StorageError, match="do not fit this model"):
        load_weights(AutoModelForCausalLM.from_config(CONFIGS["gpt2"]()), tmp_path)
    config = CONFIGS["llama"]()
    config.intermediate_size = 48
    with pytest.raises(StorageError, match="a saved weight does not fit"):
        load_weights(AutoModelForCausalLM.from_config(config), tmp_path)


def test_a_classifiers_adapter_loads_through_the_auto_class(tmp_path: Path) -> None:
    spec = spec_of(task="classify", lora={"dropout": 0})
    source = saved("distilbert", tmp_path / "base")
    adapted = shaken(to_train(loaded(source, spec), spec, base_name=source.name))
    (tmp_path / "final").mkdir()
    export_final(adapted, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "final", num_labels=3).eval()
    assert torch.equal(logits(model), logits(adapted))
    assert AutoModel.from_pretrained(tmp_path / "base").config.model_type == "distilbert", "the base is untouched"


SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05}


@pytest.mark.parametrize("lora", [{"dropout": 0}, None], ids=["adapter", "whole"])
def test_sampling_values_of_the_base_stay_beside_the_stop_tokens_of_the_run(
    lora: dict[str, Any] | None, tmp_path: Path
) -> None:
    """Published ones have them without `do_sample`, which transformers does not save once anything was changed."""
    spec = spec_of(lora=lora)
    source = saved("llama", tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text(json.dumps({**SAMPLING, "eos_token_id": 1}))
    model = to_train(loaded(source, spec), spec, base_name=source.name)
    (tmp_path / "final").mkdir()
    export_final(model, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2, 3])
    written = json.loads((tmp_path / "final/generation_config.json").read_text())
    assert {name: written.get(name) for name in (*SAMPLING, "eos_token_id")} == {**SAMPLING, "eos_token_id": [2, 3]}
    assert "do_sample" not in written and GenerationConfig.from_pretrained(tmp_path / "final").top_p == 0.95
