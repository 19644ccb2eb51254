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
from rankzero.model.files import weight_problems
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


def one_fp8_checkpoint(root: Path, sizes: tuple[int, int], layout: str) -> tuple[ModelSource, dict[str, torch.Tensor]]:
    """A Llama with these widths whose layers are in FP8, and what each weight stands for."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, inner = sizes
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=1, num_attention_heads=2, vocab_size=600
    )
    stored, stands_for = {}, {}
    for name, weight in LlamaForCausalLM(config).state_dict().items():
        if weight.ndim != 2 or "layers" not in name:
            stored[name] = weight
            continue
        weight = weight * torch.logspace(0, 2, len(weight))[:, None]  # blocks differ, and so do their scales
        if layout == "blocks":
            packed, scale = to_float8(weight)
            stands_for[name] = from_float8(packed, scale, torch.float32)
        else:
            largest = weight.abs().amax(dim=1, keepdim=True) if layout == "rows" else weight.abs().max()
            scale = largest / torch.finfo(FLOAT8).max
            packed = (weight / scale).to(FLOAT8)
            stands_for[name] = packed.float() * scale
        stored |= {name: packed, f"{name}_scale_inv": scale}
    root.mkdir()
    save_file(stored, root / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer().save_pretrained(root)
    block = [128, 128] if layout == "blocks" else None
    packing = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    config.architectures, config.quantization_config = ["LlamaForCausalLM"], packing
    config.save_pretrained(root)
    return ModelSource(root, root, "fp8"), stands_for


@pytest.mark.parametrize("layout", ["blocks", "rows", "whole"])
@pytest.mark.parametrize("sizes", [(128, 256), (192, 960), (576, 64)])
def test_scales_are_those_of_their_places(layout: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    """Also where the last blocks of a weight are cut off by its edge."""
    source, stands_for = one_fp8_checkpoint(tmp_path / "fp8", sizes, layout)
    assert weight_problems(tmp_path / "fp8", trust_pickle=False) == []
    for spec in (spec_of(), packed_spec("llama", "fp8")):
        if spec.model.quantization == "fp8" and layout != "blocks":  # packed again, by other scales
            continue
        model = loaded(source, spec)
        for name, weight in stands_for.items():
            read = model.get_submodule(name.rpartition(".")[0]).weight
            torch.testing.assert_close(read.detach(), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("scales", "packing", "says"),
    [
        ("weight_scale", {"quant_method": "fp8", "activation_scheme": "static"}, "nothing says by which scales"),
        ("weight_scale", None, "nothing says by which scales"),
        (None, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "nothing says by which scales"),
        ("weight_scale_inv", {"quant_method": "fp8", "weight_block_size": [100, 100]}, "no layout that is known"),
    ],
)
def test_weights_in_8_bits_are_never_read_without_their_scales(
    scales: str | None, packing: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    """As AutoFP8 and ModelOpt write them: cast without their scales, they would be hundreds of times too large."""
    one_fp8_checkpoint(tmp_path / "fp8", (576, 64), "blocks")
    values = load_file(tmp_path / "fp8/model.safetensors")
    renamed = {}
    for name, tensor in values.items():
        if not name.endswith("_scale_inv"):
            renamed[name] = tensor
        elif scales is not None:
            renamed[name.replace("weight_scale_inv", scales)] = tensor
    save_file(renamed, tmp_path / "fp8/model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "fp8/config.json").read_text())
    del config["quantization_config"]
    config |= {} if packing is None else {"quantization_config": packing}
    (tmp_path / "fp8/config.json").write_text(json.dumps(config))
    problems = weight_problems(tmp_path / "fp8", trust_pickle=False)
    assert [says in problem.what for problem in problems] == [True] and "unquantised" in problems[0].hint


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_a_causal_mask_that_an_older_library_saved_is_no_packed_weight(dtype: torch.dtype, tmp_path: Path) -> None:
    """As GPT-NeoX's and GPT-J's files have it beside each block's weights."""
    tensors = {
        "layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=dtype),
        "layers.0.attention.dense.weight": torch.zeros(8, 8),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    assert weight_problems(tmp_path, trust_pickle=False) == []
