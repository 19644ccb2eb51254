"""Attention of a slice of a pass's tokens to whole rows, registered with transformers as "context".

Queries stay where they are. Keys and values of all slices are collected, and each chunk of own queries attends to the
keys of its own rows, up to its own places (Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2). What is no
slice, such as generation, is computed as "varlen" computes it. Knows tensors and slices; nothing of processes, nor of
which models may use it (model/attention.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from rankzero.data.batches.collators.sliced import ContextSlice
from rankzero.model import varlen

NAME = "context"


def register() -> None:
    """Make "context" an attention implementation that transformers' models take by name."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, partial(varlen.varlen_mask, rows_are_whole=False))


def attention(  # noqa: PLR0913  transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    context_slice: ContextSlice | None = None,
    **others: Any,  # what transformers hands to every attention function
) -> tuple[torch.Tensor, None]:
    """Query, key and value of own tokens, (1, heads, S, head size), to (1, S, heads, head size). A collective of those
    who have the other slices. Raises ConfigError as "varlen" does."""
    if context_slice is None:
        return varlen.varlen_attention(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
        )
    field = "train.context_parallel"
    rule = varlen.rule_of(module, query, attention_mask, dropout, scaling, is_causal, others, field=field)
    query, key, value = varlen.in_precision_of_products(query, key, value)
    whole, width = context_slice.whole(torch.cat([key, value], dim=-1)), key.shape[-1]
    attended = []
    for chunk in context_slice.chunks:
        rows = varlen.Borders(chunk.query_borders, chunk.key_borders, chunk.longest_queries, chunk.longest_keys)
        k, v = whole[:, :, chunk.keys, :width], whole[:, :, chunk.keys, width:]
        attended.append(varlen.attend(query[:, :, chunk.queries], k, v, rows, rule))
    return torch.cat(attended, dim=1), None
