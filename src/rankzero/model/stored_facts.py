"""Facts of a plain decoder, read off its files: config.json and the headers of the safetensors. No torch.

Only of architectures whose layers are stored under the names that they have in the model, and whose weights are all in
blocks but for embeddings, last norm and head. Of everything else there is nothing here, and `shapes.py` reads it off a
model without memory. Both are held against each other by a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rankzero.model.facts import (
    IN_SEVERAL_STEPS,
    NOT_ON_A_GPU,
    PACKED_BYTES,
    Blocks,
    Fused,
    ModelFacts,
    adapted_bytes,
)
from rankzero.model.files import read_config, stored_shapes
from rankzero.model.layer_names import ATTENTION_PROJECTIONS, is_called
from rankzero.spec.run_spec import LoraSpec, ModelSpec, Parts

PLAIN_DECODERS = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "phi3", "smollm3", "olmo2", "olmo3"}
    | {"granite", "starcoder2", "cohere", "cohere2", "glm", "glm4"}
)
"""Model types of which the tests show that the facts from their files are those of the model."""

NORMS_OF_THEIR_OWN = frozenset({"gemma", "gemma3_text", "starcoder2", "cohere", "cohere2"})
"""Those whose norms are no plain RMS norms, which alone torch's kernel computes."""

_IN_BLOCK = re.compile(r"(?:.*\.)?layers\.\d+(?=\.)")
_NEEDED = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one value."""

    compute: int
    """In the precision of matrix products; frozen weights under adapters are held so too."""
    trained: int
    """Of a weight that is trained in full."""
    fused: Fused = NOT_ON_A_GPU
    float16: bool = False
    """Whether that is float16."""


def stored_facts(
    directory: Path, model: ModelSpec, lora: LoraSpec | None, parts: Parts, held: Held
) -> ModelFacts | None:
    """Facts of the decoder in a directory as it is trained to write; None where its files do not tell them."""
    config, shapes = read_config(directory), stored_shapes(directory)
    if shapes is None or not _is_plain(config) or parts not in ("auto", ("language",)) or model.trust_remote_code:
        return None
    if config.get("tie_word_embeddings") and "lm_head.weight" in shapes:  # one or two: their values say it
        return None
    return decoder_facts(shapes, config, model, lora, held)


def decoder_facts(
    shapes: Shapes, config: Mapping[str, Any], model: ModelSpec, lora: LoraSpec | None, held: Held
) -> ModelFacts | None:
    """Of the shapes of all weights by their names. None for what is trained beside adapters, or names no layer."""
    if config.get("tie_word_embeddings"):
        shapes = {name: shape for name, shape in shapes.items() if name != "lm_head.weight"}
    linear = {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if len(shape) == 2 and name.endswith(".weight") and _IN_BLOCK.match(name)
    }
    adapted: dict[str, tuple[int, ...]] = {}
    if lora is not None:
        adapted = {name: linear[name] for name in _targets(linear, lora)}
        if lora.modules_to_save or lora.trainable_token_indices or not adapted:
            return None
    added = {name: _adapter_values(shape, lora) for name, shape in adapted.items() if lora is not None}
    packed = PACKED_BYTES[model.quantization]
    frozen = root = unpacked = 0
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        bytes_held = prod(shape) * held.compute
        block = _IN_BLOCK.match(name)
        if packed and len(shape) >= 2 and block:
            unpacked, bytes_held = max(unpacked, bytes_held), round(prod(shape) * packed)
        frozen += bytes_held
        if block is None:
            root += bytes_held
        else:
            sizes[block[0]] = sizes.get(block[0], 0) + bytes_held
    for name, values in added.items():
        sizes[_block_of(name)] += 4 * values
    total, trainable = sum(map(prod, shapes.values())), sum(added.values())
    full = lora is None
    return ModelFacts(
        total=total + trainable,
        trainable=total if full else trainable,
        frozen_bytes=0 if full else frozen,
        trained_bytes=total * held.trained if full else 4 * trainable,
        block_bytes=max(sizes.values(), default=0),
        root_bytes=root,
        unpacked_bytes=unpacked,
        adapters=not full,
        compute_bytes=held.compute,
        float16=held.float16,
        text=_blocks(
            shapes,
            config,
            len(sizes),
            adapted,
            held,
            lora,
        ),
        tower=None,
        patches=1,
        logits=int(config["vocab_size"]),
        eager=model.attention == "eager",
        logits_in_parts=True,
        behind=_head_values(shapes) if full else 0,
    )


def _head_values(shapes: Shapes) -> int:
    """Of a head of its own, or of the embeddings that it is tied to."""
    own = sum(prod(shape) for name, shape in shapes.items() if name.startswith("lm_head."))
    return own or sum(prod(shape) for name, shape in shapes.items() if name.endswith("embed_tokens.weight"))


def _is_plain(config: Mapping[str, Any]) -> bool:
    whole = all(isinstance(config.get(name), int) for name in _NEEDED)
    return config.get("model_type") in PLAIN_DECODERS and whole and "quantization_config" not in config


def _block_of(name: str) -> str:
    found = _IN_BLOCK.match(name)
    return found[0] if found else ""


def _targets(linear: Iterable[str], lora: LoraSpec) -> list[str]:
    """As model/targets.py chooses in a decoder."""
    names, wanted = list(linear), lora.target_modules
    if wanted == "all-linear":
        return names
    if wanted == "auto":
        return [name for name in names if name.rpartition(".")[2] in ATTENTION_PROJECTIONS] or names
    return [name for name in names if any(is_called(name, each) for each in wanted)]


def _adapter_values(shape: tuple[int, ...], lora: LoraSpec) -> int:
    """Two matrices of rank r; DoRA's magnitude of each output besides."""
    out, inside = shape
    return lora.r * (inside + out) + (out if lora.use_dora else 0)


def _blocks(
    shapes: Shapes, config: Mapping[str, Any], count: int, adapted: Shapes, held: Held, lora: LoraSpec | None
) -> Blocks:
    hidden, heads, inner = (int(config[name]) for name in _NEEDED[:3])
    head = config.get("head_dim") or hidden // heads
    keys = (config.get("num_key_value_heads") or heads) * head
    names = set(shapes)
    first = next((name for name in (_block_of(name) for name in shapes) if name), "")
    of_first = [shape for name, shape in shapes.items() if name.startswith(f"{first}.") and len(shape) == 2]
    inside = sum(prod(shape) for shape in of_first if {inner, 2 * inner} & set(shape))
    activation = config.get("hidden_act", config.get("hidden_activation"))
    plain_kept = 4 if activation in IN_SEVERAL_STEPS else 1
    dora = lora is not None and lora.use_dora
    inputs = {name: shape[1] + (3 * shape[0] if dora else 0) for name, shape in adapted.items()}
    has_norms = any(name in names for name in (f"{first}.self_attn.{norm}.weight" for norm in ("q_norm", "k_norm")))
    return Blocks(
        count=count,
        hidden=hidden,
        attention=heads * head,
        intermediate=inner,
        inside_kept=3 if inside > 2.5 * inner * hidden else plain_kept,
        normed=heads * head + keys if has_norms else 0,
        heads=heads,
        keys=keys,
        adapted_bytes=adapted_bytes(inputs, count, held.compute, held.fused, lora.r if lora is not None else 0),
        adapted=sum(map(sum, adapted.values())) // max(count, 1),
        norm_bytes=held.compute if held.fused.norms and config["model_type"] not in NORMS_OF_THEIR_OWN else 4,
    )
