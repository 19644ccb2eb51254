"""What a GGUF file says that transformers passes over as it reads it: how positions are scaled, and whatever else would
make another model of the same weights. Knows llama.cpp's names; nothing of directories or tokenizers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import modeling_gguf_pytorch_utils as legacy
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config, read_gguf_metadata

from rankzero.errors import ConfigError

_SAME_AS: dict[str, tuple[str, ...]] = {
    "attention.causal": ("is_causal",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("global_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.sliding_window": ("sliding_window",),
    "attention.value_length": ("global_head_dim", "head_dim"),
    "attention.value_length_swa": ("head_dim",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_used_count": ("num_experts_per_tok",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "use_parallel_residual": ("use_parallel_residual",),
    "vocab_size": ("vocab_size",),
}
"""llama.cpp's keys and what configs call the same: a file may say them where the config has that value anyway."""
_ARCHITECTURES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
"""What transformers' table of keys calls an architecture where it is not llama.cpp's name."""
_ANY_LENGTH = frozenset({"bloom"})
"""Models that tell places by distances: how long a text they were trained on is nothing that they compute with."""

_SCALING = "rope.scaling."
_YARN = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_SCALES = {"linear": {"factor": "factor"}, "yarn": _YARN}
_ROPE_FREQS = "rope_freqs.weight"


def complete_config(file: Path, model: Any, *, hint: str) -> Any:
    """The config of a model that transformers read from this file, with what it passed over and can be taken over
    exactly. Raises ConfigError for everything else that the file says, tensors included."""
    from gguf import GGUFReader

    metadata, tensors = read_gguf_metadata(str(file))
    architecture, config = str(metadata["general.architecture"]), model.config
    own = {key.partition(".")[2]: value for key, value in metadata.items() if key.startswith(f"{architecture}.")}
    unread = _unread_tensors(architecture, tensors, model)
    scaling = _scaling(own, unread)
    if _ROPE_FREQS in tensors:
        stored = next(tensor for tensor in GGUFReader(str(file)).tensors if tensor.name == _ROPE_FREQS)
        scaling = _llama3(torch.tensor(stored.data), own, model)
        unread += [_ROPE_FREQS] if scaling is None else []
    read = _keys_that_are_read(architecture, metadata, tensors)
    unread += [
        f"{architecture}.{key} = {value}" for key, value in own.items() if not _is_taken(key, value, config, read)
    ]
    if unread:
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        what = f"what this file says would be lost: {', '.join(unread[:3])}{more}"
        raise ConfigError(what, where=str(file), hint=hint)
    if scaling:
        _of_positions(config).update(scaling)
    if config.model_type in _ANY_LENGTH and "context_length" in own:
        config.seq_length = own["context_length"]  # which llama.cpp's converter reads there
    return config


def _unread_tensors(architecture: str, tensors: tuple[str, ...], model: Any) -> list[str]:
    """Names of tensors that went nowhere."""
    if architecture in GGUF_CONFIG_ARCHS:  # read by transformers' own loading, which reports them
        return []
    processor = legacy.TENSOR_PROCESSORS.get(architecture, legacy.TensorProcessor)(config=model.config.to_dict())
    read = legacy.get_gguf_hf_weights_map(model, processor)
    return [
        name
        for name in tensors
        if name != _ROPE_FREQS and name not in read and name.removesuffix(".weight") not in read
    ]


def _keys_that_are_read(architecture: str, metadata: dict[str, Any], tensors: tuple[str, ...]) -> set[str]:
    """Keys, without the architecture's name, that transformers makes the config of."""
    if architecture not in GGUF_CONFIG_ARCHS:
        table = legacy.GGUF_CONFIG_MAPPING.get(_ARCHITECTURES.get(architecture, architecture), {})
        return {key for key, name in table.items() if name is not None}
    whole, read = get_gguf_config(metadata, tensors), set()
    for key in metadata:
        without = {name: value for name, value in metadata.items() if name != key}
        try:
            same = get_gguf_config(without, tensors) == whole
        except KeyError:
            same = False
        if not same:
            read.add(key.removeprefix(f"{architecture}."))
    return read


def _is_taken(key: str, value: Any, config: Any, read: set[str]) -> bool:
    """Whether the config says what a key says, or the key changes nothing of what is computed."""
    if key.startswith(_SCALING) or isinstance(value, str):  # told by `_scaling`; other words are of how it was made
        return True
    rope = getattr(config, "rope_parameters", None) or {}
    if key in ("rope.freq_base", "rope.freq_base_swa") and rope:
        sliding = key.endswith("_swa")
        said = rope.get("sliding_attention", rope) if sliding else _of_positions(config)
        return _same(value, said.get("rope_theta"))
    if key == "rope.dimension_count" and rope:
        share = _of_positions(config).get("partial_rotary_factor", 1.0)
        return _same(value, int(_head_dim(config) * share))
    if key == "context_length" and config.model_type in _ANY_LENGTH:
        return True
    if key == "feed_forward_length" and value == 0:  # Mamba's: there are no such layers
        return True
    said = [getattr(config, name) for name in _SAME_AS.get(key, ()) if getattr(config, name, None) is not None]
    said = said or _implied(key, config)
    if said and key not in read:
        return _same(value, said[0])
    off = key != "attention.causal" and not isinstance(value, list) and not value
    return key in read or off or (key == "attention.causal" and value is True)


def _implied(key: str, config: Any) -> list[Any]:
    """What a model does where its config has no word for a key: the value, or []."""
    if key in ("attention.key_length", "attention.value_length"):
        return [_head_dim(config)]
    if key == "attention.head_count_kv":
        return [config.num_attention_heads]
    return [4 * config.hidden_size] if key == "feed_forward_length" and config.model_type == "bloom" else []


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _same(value: Any, said: Any) -> bool:
    if isinstance(value, int | float) and isinstance(said, int | float):
        return math.isclose(value, said, rel_tol=1e-6)  # llama.cpp writes 32-bit floats
    return bool(value == said)


def _of_positions(config: Any) -> dict[str, Any]:
    """How positions are computed, of layers that see everything where kinds of layers differ: only those are scaled."""
    rope: dict[str, Any] = config.rope_parameters
    whole: dict[str, Any] = rope.get("full_attention", rope)
    return whole


def _scaling(own: dict[str, Any], unread: list[str]) -> dict[str, Any] | None:
    """Keys of `rope.scaling` as transformers has them; into `unread` go those that it has no word for."""
    said = {key.removeprefix(_SCALING): value for key, value in own.items() if key.startswith(_SCALING)}
    kind = said.pop("type", "none")
    said.pop("finetuned", None)
    if said.get("attn_factor") == 1.0:
        del said["attn_factor"]
    names = _SCALES.get(kind, {})
    if kind == "none":  # the length it was trained for is written beside no scaling too
        said.pop("original_context_length", None)
    elif not names:
        unread.append(f"{_SCALING}type = {kind}")
    unread += [f"{_SCALING}{key} = {value}" for key, value in said.items() if key not in names]
    if not names:
        return None
    return {"rope_type": kind, **{names[key]: value for key, value in said.items() if key in names}}


def _llama3(factors: torch.Tensor, own: dict[str, Any], model: Any) -> dict[str, Any] | None:
    """Llama 3's scaling, of which a file has what it comes to for each frequency; {} where the model has these
    frequencies already, None where no scaling that is known comes to them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = model.config
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.shape == factors.shape:
            plain = _frequencies(float(own.get("rope.freq_base", 10000.0)), factors)
            if torch.allclose(buffer.float(), plain / factors, rtol=1e-4, atol=1e-9):
                return {}
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if config.rope_parameters.keys() & {"full_attention", "sliding_attention"}:
        return None
    before = dict(config.rope_parameters)
    try:
        config.rope_parameters.update(scaling)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    finally:
        config.rope_parameters = before
    plain = _frequencies(float(before["rope_theta"]), factors)
    same = scaled.shape == factors.shape and torch.allclose(scaled, plain / factors, rtol=1e-4, atol=0)
    return scaling if same else None


def _frequencies(theta: float, factors: torch.Tensor) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(len(factors), dtype=torch.float32) / len(factors))
