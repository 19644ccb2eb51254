"""Checkpoints whose files are packed already: unpacked, kept, packed otherwise, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rankzero.engine.setup import to_train
from rankzero.errors import ConfigError
from rankzero.model.load import empty_model, load_config
from rankzero.model.low_bits import FLOAT8, from_float8, to_float8
from rankzero.model.quantize import unpack
from rankzero.model.source import ModelSource
from rankzero.model.weights import export_final
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.unit.model.support import bytes_of, loaded, logits, packed_spec, saved, spec_of


def fp8_checkpoint(root: Path, name: str) -> tuple[ModelSource, Any]:
    """An FP8 checkpoint as they are published, and the model that it stands for."""
    source = saved(name, root / "plain")
    (root / "fp8").mkdir()
    values, stored = load_file(root / "plain/model.safetensors"), {}
    for key, tensor in values.items():
        if tensor.ndim == 2 and not any(word in key for word in ("embed", "lm_head", "mlp.gate.")):
            packed, scale = to_float8(tensor)
            stored |= {key: packed, f"{key}_scale_inv": scale}
            values[key] = from_float8(packed, scale, torch.float32)
        else:
            stored[key] = tensor
    save_file(stored, root / "fp8/model.safetensors", metadata={"format": "pt"})
    save_file(values, root / "plain/model.safetensors", metadata={"format": "pt"})
    config = json.loads((root / "plain/config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
    }
    (root / "fp8/config.json").write_text(json.dumps(config))
    return ModelSource(root / "fp8", root / "fp8", "fp8"), loaded(source, spec_of())


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_an_fp8_checkpoint_is_unpacked_kept_or_packed_again(name: str, tmp_path: Path) -> None:
    source, expected = fp8_checkpoint(tmp_path, name)
    whole = loaded(source, spec_of())
    assert torch.equal(logits(whole), logits(expected))
    kept = loaded(source, packed_spec(name, "fp8"))
    # Of tiny experts, gate and up share a block and so a scale; of those whose sizes are multiples of 128 none do.
    assert torch.allclose(logits(kept), logits(expected), atol=1e-6 if name == "llama" else 2e-3)
    assert any(p.dtype is FLOAT8 for p in kept.parameters())
    four = loaded(source, packed_spec(name, "nf4"))
    same = loaded(ModelSource(tmp_path / "plain", tmp_path / "plain", "plain"), packed_spec(name, "nf4"))
    assert torch.equal(logits(four), logits(same))
    assert bytes_of(four) < bytes_of(kept) < bytes_of(whole)


def mxfp4_checkpoint(root: Path) -> ModelSource:
    """gpt-oss as it is published: experts in 4-bit floats with a scale for each 32."""
    from transformers import GptOssForCausalLM

    config = CONFIGS["gpt_oss"]()
    config.hidden_size = config.intermediate_size = 32
    GptOssForCausalLM(config).save_pretrained(root / "plain")
    generator = torch.Generator().manual_seed(0)
    stored = {}
    for key, tensor in load_file(root / "plain/model.safetensors").items():
        if tensor.ndim != 3:
            stored[key] = tensor
            continue
        experts, columns, rows = tensor.shape
        sizes = (experts, rows, columns // 32)
        stored[f"{key}_blocks"] = torch.randint(0, 256, (*sizes, 16), generator=generator, dtype=torch.uint8)
        stored[f"{key}_scales"] = torch.randint(118, 122, sizes, generator=generator, dtype=torch.uint8)
    (root / "mxfp4").mkdir()
    save_file(stored, root / "mxfp4/model.safetensors", metadata={"format": "pt"})
    value = json.loads((root / "plain/config.json").read_text())
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    value["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    (root / "mxfp4/config.json").write_text(json.dumps(value))
    return ModelSource(root / "mxfp4", root / "mxfp4", "mxfp4")


def test_an_mxfp4_checkpoint_is_unpacked_saved_unpacked_and_packed_otherwise(tmp_path: Path) -> None:
    source = mxfp4_checkpoint(tmp_path)
    whole = loaded(source, spec_of())
    (tmp_path / "final").mkdir()
    export_final(whole, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2])
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    assert torch.equal(logits(again), logits(whole))
    for quantization in ("nf4", "fp8"):
        packed = loaded(source, packed_spec("gpt_oss", quantization))
        unpacked = loaded(
            ModelSource(tmp_path / "final", tmp_path / "final", "same"), packed_spec("gpt_oss", quantization)
        )
        assert torch.equal(logits(packed), logits(unpacked))
        assert bytes_of(packed) < bytes_of(whole)


def test_a_full_fine_tune_of_an_fp8_checkpoint_is_saved_unpacked(tmp_path: Path) -> None:
    source, expected = fp8_checkpoint(tmp_path, "qwen3_moe")
    model = loaded(source, spec_of())
    (tmp_path / "final").mkdir()
    export_final(model, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2])
    assert "quantization_config" not in json.loads((tmp_path / "final/config.json").read_text())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    assert torch.equal(logits(again), logits(expected))


def test_the_empty_model_of_packed_files_is_unpacked(tmp_path: Path) -> None:
    source, expected = fp8_checkpoint(tmp_path, "qwen3_moe")
    spec = packed_spec("qwen3_moe", "fp8")
    empty = empty_model(spec.model, load_config(source, spec.model), torch.float32)
    assert {n: p.shape for n, p in empty.named_parameters()} == {n: p.shape for n, p in expected.named_parameters()}


def bitsandbytes_checkpoint(root: Path) -> ModelSource:
    source = saved("llama", root / "plain")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    AutoModelForCausalLM.from_pretrained(source.weights, quantization_config=config).save_pretrained(root / "bnb")
    return ModelSource(root / "bnb", root / "bnb", "bnb")


def test_a_bitsandbytes_checkpoint_is_used_as_it_is(tmp_path: Path) -> None:
    source, spec = bitsandbytes_checkpoint(tmp_path), packed_spec("llama", "nf4")
    model = loaded(source, spec)
    layer = model.model.layers[0].self_attn.q_proj
    assert type(layer).__name__ == "Linear4bit" and layer.compute_dtype is torch.float32, "this run's precision"
    adapted = to_train(model, spec, base_name="bnb")
    adapted(input_ids=torch.tensor([[5, 9]])).logits.sum().backward()
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
    plain = loaded(source, spec)
    before = logits(plain)
    unpack(plain)
    assert torch.allclose(logits(plain), before, atol=1e-5)
    with pytest.raises(ConfigError, match="packed by bitsandbytes") as refused:
        loaded(source, spec_of())
    assert "model.quantization: nf4" in refused.value.problems[0].hint
