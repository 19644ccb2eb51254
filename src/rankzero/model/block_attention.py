"""Causal attention of short rows on a CPU in bfloat16, padded or end to end; registered with transformers as "blocks".

Torch's own kernel for CPUs takes twice as long in 16 bits, most of it in its backward pass. Here a block of queries at
a time is computed by whole matrix products, forward and again backward, so that only the weights of a block exist at
once, and keys behind a block's last query are left out. What it is not made for, evaluation and masks among it, is
computed as transformers' "sdpa" computes it. Knows tensors; nothing of which models may use it (model/attention.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "blocks"

QUERIES = 128
"""Queries of a block."""
AT_ONCE = 2**19
"""Weights of queries by keys that are computed at once, about: what a core's cache holds. One head at least."""
_BEYOND = ("position_bias", "softcap", "s_aux", "cache")
"""What some models hand over, and only sdpa's own code knows what to make of."""


def register() -> None:
    """Make "blocks" an attention implementation that transformers' models take by name."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,  # what transformers hands to every attention function
) -> tuple[torch.Tensor, None]:
    """query (B, heads, T, head size), key and value with as many heads or a divisor of them, to (B, T, heads, head
    size)."""
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    plain = causal and attention_mask is None and not dropout and all(others.get(name) is None for name in _BEYOND)
    if torch.is_autocast_enabled("cpu") and query.device.type == "cpu":
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    if not plain or not made_for(query, key, value):
        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
        )
        return attended, None
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return attend(query, key, value, scale, (0, query.shape[2])).transpose(1, 2).contiguous(), None


class _Passes:
    """What holds for passes at the moment; a plain value, which a compiled block can look at."""

    as_trained = False
    in_float32 = False


def compute_in_float32(wanted: bool) -> None:
    """From now on bfloat16 is widened for all products of a pass, or not: model/cpu_products.py knows where that is
    faster."""
    _Passes.in_float32 = wanted


@contextmanager
def as_trained() -> Iterator[None]:
    """Within the block a pass that asks for no gradients attends as one that does: two that are compared with each
    other should round alike."""
    before, _Passes.as_trained = _Passes.as_trained, True
    try:
        yield
    finally:
        _Passes.as_trained = before


def made_for(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `attend` may be called, and is the fastest or wanted."""
    asked = query.requires_grad or key.requires_grad or value.requires_grad
    trained = (torch.is_grad_enabled() and asked) or _Passes.as_trained
    where = query.device.type == "cpu" and query.dtype is torch.bfloat16
    return trained and where and query.shape[2] == key.shape[2] and query.shape[1] % key.shape[1] == 0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, borders: Sequence[int]
) -> torch.Tensor:
    """Causal attention of each row to itself: query (B, heads, T, head size) to the same. `borders`: where rows begin
    along T, in each of the B alike, and T. Not compiled: how many blocks there are depends on lengths."""
    attended: torch.Tensor = _Attend.apply(query, key, value, scale, borders)  # type: ignore[no-untyped-call]
    return attended


class _Attend(torch.autograd.Function):
    """O = P V with P = softmax(S) and S = scale Q Kᵀ, causal. Backward, where · is summed over keys: dV = Pᵀ dO,
    dP = dO Vᵀ, dS = P ∘ (dP - dP · P), dQ = scale dS K, dK = scale dSᵀ Q.

    At each query the heads that share keys stand side by side: a block of queries is one matrix for all of them, and no
    copy."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        borders: Sequence[int],
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.borders = scale, borders
        q, k, v = _side_by_side(query, key), _computed(key).flatten(0, 1), _computed(value).flatten(0, 1)
        attended = v.new_empty(*q.shape[:3], v.shape[-1])
        for part, queries, keys in _blocks(q, borders):
            weights = _weights(q, k, part, queries, keys, scale)
            of_block = torch.bmm(weights.to(v.dtype), v[part, keys])
            attended[part, queries] = of_block.view(len(of_block), -1, *attended.shape[2:])
        return _as_given(attended, query)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        query, key, value = ctx.saved_tensors
        q, k, v = _side_by_side(query, key), _computed(key).flatten(0, 1), _computed(value).flatten(0, 1)
        g, of_q = _side_by_side(gradient, key), torch.empty_like(q)
        of_k, of_v = (torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v))
        for part, queries, keys in _blocks(q, ctx.borders):
            weights = _weights(q, k, part, queries, keys, ctx.scale)
            of_output = g[part, queries].flatten(1, 2)
            of_v[part, keys] += torch.bmm(weights.to(v.dtype).transpose(1, 2), of_output)
            of_weights = torch.bmm(of_output, v[part, keys].transpose(1, 2)).to(weights.dtype)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).to(q.dtype)
            of_queries = torch.bmm(of_scores, k[part, keys]).mul_(ctx.scale)
            of_q[part, queries] = of_queries.view(len(of_queries), -1, *q.shape[2:])
            products = torch.bmm(of_scores.transpose(1, 2), q[part, queries].flatten(1, 2))
            of_k[part, keys].add_(products, alpha=ctx.scale)
        of_k, of_v = of_k.to(key.dtype).view(key.shape), of_v.to(value.dtype).view(value.shape)
        return _as_given(of_q, query), of_k, of_v, None, None


def _computed(x: torch.Tensor) -> torch.Tensor:
    """As it is multiplied."""
    return x.float() if _Passes.in_float32 and x.dtype is torch.bfloat16 else x


def _side_by_side(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(B, heads, T, size) as (B x heads of keys, T, heads that share them, size), as it is multiplied."""
    dtype = torch.float32 if _Passes.in_float32 and x.dtype is torch.bfloat16 else x.dtype
    moved = _by_key(x, key.shape[1])
    return torch.empty(moved.shape, dtype=dtype).copy_(moved).flatten(0, 1)


def _as_given(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What `_side_by_side` makes of (B, heads, T, size), back in that shape and in that precision. In memory each
    token's heads are together, as the layers around attention have them."""
    batch, heads, length = like.shape[:3]
    size = x.shape[-1]
    given = like.new_empty_strided((batch, heads, length, size), (length * heads * size, size, heads * size, 1))
    moved = _by_key(given, len(x) // batch)
    moved.copy_(x.view(moved.shape))
    return given  # and no view of it, which nobody could change in place


def _by_key(x: torch.Tensor, heads_of_keys: int) -> torch.Tensor:
    """(B, heads, T, size) seen as (B, heads of keys, T, heads that share them, size)."""
    shared = x.shape[1] // heads_of_keys
    return x.as_strided(
        (x.shape[0], heads_of_keys, x.shape[2], shared, x.shape[3]),
        (x.stride(0), shared * x.stride(1), x.stride(2), x.stride(1), x.stride(3)),
    )


def _weights(q: torch.Tensor, k: torch.Tensor, part: slice, queries: slice, keys: slice, scale: float) -> torch.Tensor:
    """softmax(S) of a block's queries in float32, (heads of keys, queries x heads of each, keys)."""
    scores = torch.bmm(q[part, queries].flatten(1, 2), k[part, keys].transpose(1, 2))
    count, seen = queries.stop - queries.start, keys.stop - keys.start
    scores = scores.view(len(scores), count, -1, seen).float().mul_(scale)
    scores[..., seen - count :] += _behind(count)
    return scores.softmax(-1).flatten(1, 2)


@lru_cache(2 * QUERIES)
def _behind(count: int) -> torch.Tensor:
    """What hides from each of a block's queries, (queries, 1, queries), the keys of those behind it."""
    return torch.full((count, count), torch.finfo(torch.float32).min).triu_(1)[:, None]


def _blocks(q: torch.Tensor, borders: Sequence[int]) -> Iterator[tuple[slice, slice, slice]]:
    """What is computed at once: heads of keys, a block's queries, and the keys from its row's first to its last."""
    count, groups = len(q), q.shape[2]
    for first, end in pairwise(borders):
        for start in range(first, end, QUERIES):
            stop = min(start + QUERIES, end)
            heads = max(1, AT_ONCE // (groups * (stop - start) * (stop - first)))
            for head in range(0, count, heads):
                yield slice(head, head + heads), slice(start, stop), slice(first, stop)
