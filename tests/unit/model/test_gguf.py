"""A GGUF file as a model to train: all of it, or a word of what is wrong with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from rankzero.errors import ConfigError
from rankzero.model.gguf import gguf_as_safetensors
from tests.support.tiny import tiny_tokenizer

gguf = pytest.importorskip("gguf", reason="the extra `demo` is not installed")

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
LAYERS, WIDTH, HEADS = 2, 32, 2


def write_gguf(
    path: Path,
    holds: Callable[[str], bool] = lambda name: True,
    *,
    says: Mapping[str, float | int | str | bool] = MappingProxyType({}),
    beside: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> torch.nn.Module:
    """A tiny Llama, of which the file holds these tensors, and says this besides. Returns the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(chat_template=None)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
    )
    model = LlamaForCausalLM(config)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for layer in range(LAYERS):
        names |= {f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in NAMES.items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokenizer))
    adds = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32}
    for key, value in says.items():
        adds[type(value)](f"llama.{key}", value)
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if holds(name):
            writer.add_tensor(f"{names[module]}.{kind}", tensor.numpy())
    for name, tensor in beside.items():
        writer.add_tensor(name, tensor.numpy())
    finish_gguf(writer, tokenizer)
    return model


def finish_gguf(writer: Any, tokenizer: Any) -> None:
    """Add the tokenizer, and write the file."""
    vocabulary, added = tokenizer.get_vocab(), tokenizer.get_added_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in added else 1 for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_names_of_tensors_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks for them at each module of a model: of a small one that was a fifth of all its time."""
    made: list[tuple[Any, ...]] = []
    make = gguf.get_tensor_name_map

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return make(*arguments)

    monkeypatch.setattr(gguf, "get_tensor_name_map", counted)
    write_gguf(tmp_path / "m.gguf")
    gguf_as_safetensors(tmp_path / "m.gguf")
    assert len(made) == 1
    assert gguf.get_tensor_name_map is counted, "as it was"


def test_a_link_as_the_hub_s_cache_has_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    model = write_gguf(blob)
    link = tmp_path / "snapshots" / "x.gguf"
    link.parent.mkdir()
    os.symlink(blob, link)
    read = load_file(gguf_as_safetensors(link) / "model.safetensors")
    assert read.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        if "q_proj" not in name and "k_proj" not in name:  # llama.cpp has their rows in another order
            torch.testing.assert_close(read[name], weight, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("name", "hint"), [("x.gguf", "safetensors files"), ("x-00001-of-00002.gguf", "join the parts")]
)
def test_weights_are_never_made_up(name: str, hint: str, tmp_path: Path) -> None:
    """The first of several parts: what is not in it, transformers draws at random."""
    file = tmp_path / name
    write_gguf(file, lambda name: "layers.1." not in name)
    for _ in range(2):  # nothing half is kept
        with pytest.raises(ConfigError, match=r"9 of the model's weights.*model\.layers\.1\.input") as caught:
            gguf_as_safetensors(file)
    assert hint in caught.value.problems[0].hint and str(file) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all"])
def test_what_cannot_be_read_is_told(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        gguf_as_safetensors(file)
    assert caught.value.problems[0].where == str(file)


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    write_gguf(file)
    file.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(ConfigError, match="cannot be read"):
        gguf_as_safetensors(file)


LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
    "rope.scaling.finetuned": True,
}
THETA = {"rope.freq_base": 500000.0}


def llama3_factors(factor: float, *, low: float = 1.0, high: float = 4.0, length: int = 8192) -> torch.Tensor:
    """What each frequency is divided by, as llama.cpp writes it down."""
    factors = []
    for number in range(WIDTH // HEADS // 2):
        turns = length * 500000.0 ** (-number / (WIDTH // HEADS // 2)) / (2 * math.pi)
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - share) / factor + share))
    return torch.tensor(factors, dtype=torch.float32)


@pytest.mark.parametrize(
    ("says", "factor", "rope"),
    [
        (LINEAR, None, {"rope_type": "linear", "factor": 4.0}),
        (YARN, None, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
        (
            {**YARN, "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_attn_factor": 1.5},
            None,
            {"beta_fast": 16.0, "attention_factor": 1.5},
        ),
        (THETA, 8.0, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}),
        (THETA, 32.0, {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        (THETA, 1.0, {"rope_type": "default"}),
        (
            {"rope.scaling.type": "none", "attention.key_length": WIDTH // HEADS, "expert_count": 0},
            None,
            {"rope_type": "default"},
        ),
    ],
)
def test_positions_are_scaled_as_the_file_says(
    says: dict[str, float | int | str | bool], factor: float | None, rope: dict[str, object], tmp_path: Path
) -> None:
    """transformers reads none of it: the model would be trained, merged and exported with other positions."""
    from transformers import AutoModelForCausalLM

    file = tmp_path / "x.gguf"
    factors = None if factor is None else llama3_factors(factor)
    write_gguf(file, says=says, beside={} if factors is None else {"rope_freqs.weight": factors})
    model = AutoModelForCausalLM.from_pretrained(gguf_as_safetensors(file))
    assert rope.items() <= model.config.rope_parameters.items()
    if factors is not None:
        plain = 500000.0 ** (-torch.arange(len(factors)) / len(factors))
        torch.testing.assert_close(model.model.rotary_emb.inv_freq, plain / factors, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("says", "beside", "named"),
    [
        ({}, {"blk.0.attn_q.bias": torch.ones(WIDTH)}, "blk.0.attn_q.bias"),
        ({}, {"blk.1.attn_v.scale": torch.ones(1)}, "blk.1.attn_v.scale"),
        (THETA, {"rope_freqs.weight": llama3_factors(8.0, high=8.0)}, "rope_freqs.weight"),
        ({"rope.scaling.type": "longrope"}, {}, "rope.scaling.type = longrope"),
        ({**LINEAR, "rope.scaling.attn_factor": 1.2}, {}, "rope.scaling.attn_factor = 1.2"),
        ({**YARN, "rope.scaling.yarn_log_multiplier": 0.1}, {}, "rope.scaling.yarn_log_multiplier"),
        ({"rope.scale_linear": 4.0}, {}, "llama.rope.scale_linear = 4"),
        ({"attention.causal": False}, {}, "llama.attention.causal = False"),
        ({"attention.scale": 0.5}, {}, "llama.attention.scale = 0.5"),
        ({"attention.sliding_window": 64}, {}, "llama.attention.sliding_window = 64"),
        ({"logit_scale": 0.25}, {}, "llama.logit_scale = 0.25"),
        ({"attention.value_length": 8}, {}, "llama.attention.value_length = 8"),
    ],
)
def test_nothing_that_a_file_says_is_lost_in_silence(
    says: dict[str, float | int | str | bool], beside: dict[str, torch.Tensor], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.gguf"
    write_gguf(file, says=says, beside=beside)
    for _ in range(2):  # nothing half is kept
        with pytest.raises(ConfigError, match="would be lost") as caught:
            gguf_as_safetensors(file)
    assert named in str(caught.value) and "safetensors files" in caught.value.problems[0].hint


OF_BLOOM = {
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def write_bloom(path: Path, *, says: Mapping[str, int] = MappingProxyType({})) -> torch.nn.Module:
    """A tiny Bloom as llama.cpp's converter writes it, which `says` other values. Returns the model."""
    from transformers import BloomConfig, BloomForCausalLM

    tokenizer = tiny_tokenizer(chat_template=None)
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS))
    writer = gguf.GGUFWriter(str(path), "bloom")
    implied = {"context_length": 2048, "feed_forward_length": 4 * WIDTH, "attention.head_count_kv": HEADS}
    own = {"embedding_length": WIDTH, "block_count": LAYERS, "attention.head_count": HEADS, **implied, **says}
    for key, value in own.items():
        writer.add_uint32(f"bloom.{key}", value)
    writer.add_layer_norm_eps(1e-5)
    for name, tensor in model.state_dict().items():
        module, _, kind = name.removeprefix("transformer.h.").rpartition(".")
        layer, _, of_layer = module.partition(".")
        if module == "lm_head":  # its embeddings
            continue
        if "query_key_value" in name:  # of each head, there; of all heads, here
            with torch.no_grad():
                tensor.normal_()
            tensor = tensor.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)
        where = f"blk.{layer}.{OF_BLOOM[of_layer]}" if layer.isdigit() else OF_BLOOM[module]
        writer.add_tensor(f"{where}.{kind}", tensor.contiguous().numpy())
    finish_gguf(writer, tokenizer)
    return model.eval()


def read_whole(path: Path, model: torch.nn.Module) -> Any:
    """What the file comes to here, which computes what the model does that was written into it."""
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(gguf_as_safetensors(path)).eval()
    ids = torch.tensor([[5, 9, 17, 33, 21]])
    torch.testing.assert_close(read(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    return read


def test_a_bloom_says_what_its_architecture_implies(tmp_path: Path) -> None:
    model = write_bloom(tmp_path / "x.gguf")
    assert read_whole(tmp_path / "x.gguf", model).config.seq_length == 2048


@pytest.mark.parametrize("says", [{"feed_forward_length": 2 * WIDTH}, {"attention.head_count_kv": 1}])
def test_another_bloom_than_its_architecture_implies_is_refused(says: dict[str, int], tmp_path: Path) -> None:
    write_bloom(tmp_path / "x.gguf", says=says)
    ((key, value),) = says.items()
    with pytest.raises(ConfigError, match=f"would be lost: bloom.{key} = {value}"):
        gguf_as_safetensors(tmp_path / "x.gguf")


def write_mamba(path: Path) -> torch.nn.Module:
    """A tiny Mamba as llama.cpp's converter writes it, which says a width of the layers that it has not. Returns the
    model."""
    from transformers import MambaConfig, MambaForCausalLM

    tokenizer = tiny_tokenizer(chat_template=None)
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8)
    model = MambaForCausalLM(config)
    writer = gguf.GGUFWriter(str(path), "mamba")
    own = {"context_length": 2**20, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": 0}
    own |= {"attention.head_count": 0, "ssm.conv_kernel": config.conv_kernel, "ssm.state_size": config.state_size}
    own |= {"ssm.inner_size": config.intermediate_size, "ssm.time_step_rank": int(config.time_step_rank)}
    for key, value in own.items():
        writer.add_uint32(f"mamba.{key}", value)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MAMBA, LAYERS)
    for name, tensor in model.state_dict().items():
        if name.startswith("lm_head"):  # its embeddings
            continue
        if name.endswith("A_log"):
            tensor = -tensor.exp()
        elif name.endswith("conv1d.weight"):
            tensor = tensor.squeeze(1)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.numpy())
    finish_gguf(writer, tokenizer)
    return model.eval()


def test_a_width_of_layers_that_a_model_has_not_is_no_loss(tmp_path: Path) -> None:
    read_whole(tmp_path / "x.gguf", write_mamba(tmp_path / "x.gguf"))
