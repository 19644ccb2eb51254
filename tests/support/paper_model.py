"""A model's directory as far as it is looked at without loading it: config, header of layers, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

LAYERS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")


def paper_model(directory: Path, *, model_type: str = "llama", layers: Sequence[str] = LAYERS) -> Path:
    """Such a directory, with one block of these layers."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"model.layers.0.{name}.weight" for name in layers]
    tensors = {
        name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(names)
    }
    header = json.dumps(tensors).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(4 * len(names))
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    (directory / "tokenizer.json").write_text("{}", encoding="utf-8")
    return directory
