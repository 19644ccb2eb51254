"""How wide the layers of a text model are, where not all are alike. Reads a config; knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def layer_configs(text: Any) -> Sequence[Any]:
    """The config of each layer of a text model; the model's own, once, where all are alike.

    Where they are not (Gemma 4), its own raises an error when it is asked for what differs.
    """
    return list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text]


def widest_layer(text: Any) -> Any:
    """The config of the layer that computes most values in its heads."""
    return max(layer_configs(text), key=lambda layer: heads_of(layer) * head_width(layer))


def heads_of(layer: Any) -> int:
    """Heads of queries; 0 of a layer without attention."""
    return int(getattr(layer, "num_attention_heads", None) or 0)


def head_width(layer: Any) -> int:
    """Values of one head; 0 of a layer without attention."""
    heads = heads_of(layer)
    if not heads:
        return 0
    if getattr(layer, "qk_nope_head_dim", None):  # DeepSeek's heads have two parts
        return int(max(layer.qk_nope_head_dim + layer.qk_rope_head_dim, layer.v_head_dim))
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // heads)
