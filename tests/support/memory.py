"""Specs and facts to plan memory with: Llama-3-8B by hand, and any model as a run makes it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, PretrainedConfig

from rankzero.engine.setup import to_train
from rankzero.model.facts import ModelFacts, fused_of
from rankzero.model.load import _CLASSES, ClassHead, empty_model, kind_of
from rankzero.model.shapes import model_facts
from rankzero.spec.run_spec import RunSpec

LONGEST = 4096
"""Tokens of the longest row of a spec here."""
BF16, FP32 = torch.bfloat16, torch.float32

# Llama-3-8B, by hand. A block: q and o 4096², k and v 4096 x 1024, gate, up and down 4096 x 14336, two norms.
LAYERS, H, INNER, V = 32, 4096, 14336, 128256
BLOCK_LINEAR = 2 * H * H + 2 * H * 1024 + 3 * H * INNER
LINEAR = LAYERS * BLOCK_LINEAR
REST = 2 * V * H + (2 * LAYERS + 1) * H
N = LINEAR + REST
assert N == 8_030_261_248
ADAPTERS = LAYERS * 16 * (2 * (H + H) + 2 * (H + 1024))
"""Of rank 16 on q, k, v and o: (inputs + outputs) x 16 of each."""


def make_spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t", "max_length": LONGEST}, **sections})


def full(**train: Any) -> RunSpec:
    return make_spec(train=train)


def lora(quantization: str = "none", **train: Any) -> RunSpec:
    return make_spec(lora={"r": 16}, model={"name": "m", "quantization": quantization}, train=train)


def make_model(spec: RunSpec, config: PretrainedConfig, dtype: torch.dtype, *, empty: bool = True) -> Any:
    """As engine/setup.py makes it, with weights drawn at random or with none."""
    in_bfloat16 = spec.lora is not None or spec.train.master_weights != "float32"
    weights = dtype if in_bfloat16 else FP32
    if empty:
        model = empty_model(spec.model, config, weights, head=ClassHead() if spec.task == "classify" else None)
    else:
        model = _CLASSES[kind_of(config, spec.task_section.uses)].from_config(config, dtype=weights)
    tokens = () if spec.lora is None else [int(token) for token in spec.lora.trainable_token_indices]
    return to_train(model, spec, base_name="m", tokens=tokens)


def facts_of(
    spec: RunSpec, config: PretrainedConfig, dtype: torch.dtype = BF16, device_kind: str = "cpu"
) -> ModelFacts:
    shape, use = make_model(spec, config, dtype), spec.task_section.uses
    fused = fused_of(spec, device_kind)
    return model_facts(shape, config, dtype, quantization=spec.model.quantization, use=use, fused=fused)


def llama_8b(spec: RunSpec, dtype: torch.dtype = BF16) -> ModelFacts:
    """Of Llama 3 8B's shapes; made once for each spec, which a dict in it keeps from being hashed."""
    return _llama_8b(spec.model_dump_json(), dtype)


@cache
def _llama_8b(spec_json: str, dtype: torch.dtype) -> ModelFacts:
    spec = RunSpec.model_validate_json(spec_json)
    config = LlamaConfig(
        hidden_size=H,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=V,
        tie_word_embeddings=False,
    )
    return facts_of(spec, config, dtype)
