"""The table of docs/memory.md, from the planner: known shapes, each by every method, on one H100 and on eight.

`python -m tests.support.memory_table` prints it. No weights: shapes are of tensors without memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3MoeConfig, Qwen3VLConfig

from rankzero.forecast.forecast import Place, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.model.facts import ModelFacts, fused_of
from rankzero.model.load import empty_model
from rankzero.model.stored_facts import PLAIN_DECODERS, Held, decoder_facts
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import BF16, facts_of, make_spec

H100 = 81_559 << 20
"""Bytes that NVIDIA's driver says an H100 of 80 GB has."""
ROW = 4096
"""Tokens of a row, and of a pass."""

_QWEN = {"vocab_size": 151936, "tie_word_embeddings": False}
SHAPES: dict[str, Callable[[], PretrainedConfig]] = {
    "Llama 3.2 1B": lambda: LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "Qwen3 8B": lambda: Qwen3Config(
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        **_QWEN,
    ),
    "Qwen3 30B-A3B": lambda: Qwen3MoeConfig(
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        **_QWEN,
    ),
    "Qwen3-VL 32B": lambda: Qwen3VLConfig(
        text_config={
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
        vision_config={
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 5120,
        },
        tie_word_embeddings=False,
    ),
    "Llama 3.1 70B": lambda: LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=False,
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "LoRA": {"lora": {"r": 16}},
    "QLoRA": {"lora": {"r": 16}, "model": {"name": "m", "quantization": "nf4"}},
    "full": {},
}
_TRAIN = {"micro_batch_tokens": ROW, "gradient_checkpointing": True, "global_batch_size": 8}


def table() -> str:
    """In Markdown."""
    lines = [
        "| model | parameters | method | trained | one H100 | each of eight |",
        "|---|--:|---|--:|--:|--:|",
    ]
    for name in SHAPES:
        for method, sections in METHODS.items():
            spec, facts = make_spec(**sections, train=_TRAIN), facts_of_shape(name, method)
            base = facts.total - (facts.trainable if facts.adapters else 0)
            cells = [name, f"{base / 1e9:.1f}B", method, _count(facts.trainable), *_both(spec, facts)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@cache
def facts_of_shape(name: str, method: str) -> ModelFacts:
    """By the shapes of a plain decoder, which is quick; else of the model with its adapters."""
    spec, config = make_spec(**METHODS[method], train=_TRAIN), SHAPES[name]()
    if config.model_type not in PLAIN_DECODERS:
        return facts_of(spec, config)
    held = Held(compute=2, trained=4, fused=fused_of(spec, "cuda"))
    found = decoder_facts(_shapes(name), config.to_dict(), spec.model, spec.lora, held)
    assert found is not None
    return found


@cache
def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    model = empty_model(make_spec().model, SHAPES[name](), BF16)
    return {weight: tuple(values.shape) for weight, values in model.named_parameters()}


def _both(spec: RunSpec, facts: ModelFacts) -> list[str]:
    return [_cell(spec, facts, world_size) for world_size in (1, 8)]


def _cell(spec: RunSpec, facts: ModelFacts, world_size: int) -> str:
    found = outlook(spec, facts, facts_of_rows(None, None, ROW), Place("cuda", "H100", H100, 0, world_size))
    size = found.need.bytes / 1e9
    words = f"{size:,.0f} GB" if size >= 10 else f"{size:.1f} GB"
    fits = "" if found.need.bytes <= H100 else ", too much"
    return f"{words}{', fsdp' if found.sharding == 'fsdp' else ''}{fits}"


def _count(number: int) -> str:
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


if __name__ == "__main__":
    print(table())
