"""What layers are called, by architecture family. Names alone: knows no model and no file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

ATTENTION_PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj"),  # Llama, Qwen, Gemma, Mistral, OPT, Phi
    *("query_key_value", "c_attn", "Wqkv"),  # Falcon and NeoX, GPT-2, MPT
    *("q_lin", "k_lin", "v_lin", "out_lin", "query", "key", "value"),  # DistilBERT, BERT
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),  # DeepSeek's latent attention
    "qkv",  # vision towers
)
"""What attention's projections are called, by architecture family."""


def trained_otherwise(name: str) -> str:
    """How a module is trained that adapters are not put on."""
    return f"lora.modules_to_save: [{name}] trains it in full, lora.trainable_token_indices the rows of single tokens"


def named_instead(wanted: str, there: Sequence[str]) -> str:
    """What to write for a name that no layer has: it may be another architecture's, or a slip."""
    close = difflib.get_close_matches(wanted, there, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    return f"auto takes this model's attention projections, all-linear all of: {', '.join(there)}{guess}"


def is_called(name: str, wanted: str) -> bool:
    """Whether a layer's full name is what a spec calls it: the same, or ending in it."""
    return name == wanted or name.endswith(f".{wanted}")
