"""Tiny models of every type whose rows may lie end to end, rows for them, and the loss of each token."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.model import varlen

CPU = torch.device("cpu")
LENGTHS = (7, 12, 4, 9)

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
LATENT |= {"num_key_value_heads": 4, "head_dim": 4}
WINDOW = {"sliding_window": 5}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], **WINDOW}
QWEN = {**MIXED, "use_sliding_window": True, "head_dim": 8}
SIZES: dict[str, dict[str, Any]] = {
    "cohere2": MIXED,
    "deepseek_v2": {**EXPERTS, **LATENT, "topk_method": "greedy"},
    "deepseek_v3": {**EXPERTS, **LATENT},
    "dots1": {**EXPERTS, **MIXED},
    "ernie4_5_moe": EXPERTS,
    "exaone4": MIXED,
    "gemma": {"head_dim": 8},
    "gemma3_text": {**MIXED, "head_dim": 8},
    "gemma4_text": {**MIXED, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 0},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "glm4_moe": {**EXPERTS, "head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "minimax_m2": {**EXPERTS, **WINDOW, "head_dim": 8},
    "ministral": {**MIXED, "head_dim": 8},
    "ministral3": {**WINDOW, "head_dim": 8},
    "mistral": WINDOW,
    "mixtral": {**EXPERTS, **WINDOW},
    "olmo3": MIXED,
    "olmoe": EXPERTS,
    "phi3": WINDOW,
    "phimoe": {**EXPERTS, **WINDOW},
    "qwen2": QWEN,
    "qwen2_moe": {**EXPERTS, **QWEN},
    "qwen3": QWEN,
    "qwen3_moe": {**EXPERTS, **WINDOW, "use_sliding_window": True, "head_dim": 8},
    "seed_oss": {"head_dim": 8},
    "smollm3": {**MIXED, "use_sliding_window": True},
    "starcoder2": WINDOW,
}


def tiny(model_type: str, implementation: str = "varlen", **sizes: Any) -> Any:
    """A random model in float32 whose dropout is off."""
    varlen.register()
    config = AutoConfig.for_model(model_type, **{**TEXT, **SIZES.get(model_type, {}), **sizes})
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()


class Rows:
    """Random rows, of which every second token is trained."""

    def __init__(self, lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0) -> None:
        drawn = np.random.default_rng(seed)
        self.rejected_from: Any = None
        self.ids = [drawn.integers(3, 90, length + 1).astype(np.int32) for length in lengths]

    def row(self, i: int) -> tuple[Any, Any]:
        return self.ids[i], np.arange(len(self.ids[i])) % 2 == 1

    def weights(self, i: int) -> None:
        return None

    def with_another(self, i: int) -> Rows:
        """The same rows but for one, none of whose tokens stays."""
        changed = copy.deepcopy(self)
        changed.ids[i] = (self.ids[i] + 40 - 3) % 87 + 3
        return changed


def collated(rows: Rows, collator: PackedText | PaddedText) -> MicroBatch:
    return collator(rows, np.arange(len(rows.ids)), CPU)  # type: ignore[arg-type]


def losses(model: Any, batch: MicroBatch) -> torch.Tensor:
    """The loss of each trained token, in the order of rows."""
    logits_NV = model(**batch.inputs, use_cache=False).logits[batch.predicts_BT]
    return cross_entropy(logits_NV.float(), batch.targets_N, reduction="none")


def per_row(values: torch.Tensor, rows: Rows) -> list[torch.Tensor]:
    return list(values.split([int(rows.row(i)[1].sum()) for i in range(len(rows.ids))]))
