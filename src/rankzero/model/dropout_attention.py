"""Attention with dropout that follows from where rows stand, registered with transformers as "placed_dropout".

Torch's own attention draws its dropout inside a kernel, out of anyone's reach. Here a few (row, head) pairs at a time
are computed in plain steps, forward and again backward, so that no more than their weights of queries by keys exist at
once. Layers that drop nothing, in evaluation all of them, are computed as transformers' "sdpa" computes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rankzero.model.dropout import Places, Share, factors, module_key

NAME = "placed_dropout"

AT_ONCE = {"cpu": 2**21}
"""Weights of queries by keys that are computed at once, by kind of device; one head of one row at least."""
OTHER_AT_ONCE = 2**26
_BEYOND = ("position_bias", "softcap", "s_aux")
"""What some models hand over, and only sdpa's own code knows what to make of."""
_KEY, _PLACES = "dropout_key", "dropout_places"


def register() -> None:
    """Make "placed_dropout" an attention implementation that transformers' models take by name."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def place_attention(model: torch.nn.Module, places: Places) -> None:
    """Tell the model's attention layers where the values of a pass stand. To be called once."""
    for name, module in model.named_modules():
        if "Attention" in type(module).__name__:
            module.register_buffer(_KEY, module_key(f"{name} attention"), persistent=False)
            setattr(module, _PLACES, places)


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
    """query (B, heads, T, head size) to (B, T, heads, head size); the mask is a boolean one, true where one attends."""
    keys = _keys(module, query) if dropout else None
    plain = all(others.get(name) is None for name in _BEYOND)
    if keys is None or not plain or (attention_mask is not None and attention_mask.dtype is not torch.bool):
        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
        )
        return attended, None
    groups = query.shape[1] // key.shape[1]
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rule = _Rule(Share.of(dropout), scale, causal and attention_mask is None)
    attended = _attend(query, repeat_kv(key, groups), repeat_kv(value, groups), keys, attention_mask, rule)
    return attended.transpose(1, 2).contiguous(), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    mask: torch.Tensor | None,
    rule: _Rule,
) -> torch.Tensor:
    """Not compiled: how many parts there are depends on lengths."""
    attended: torch.Tensor = _Attend.apply(query, key, value, keys, mask, rule)  # type: ignore[no-untyped-call]
    return attended


@dataclass(frozen=True, slots=True)
class _Rule:
    share: Share
    scale: float
    causal: bool


def _keys(module: torch.nn.Module, query: torch.Tensor) -> torch.Tensor | None:
    places: Places | None = getattr(module, _PLACES, None)
    if places is None:
        return None
    keys = places.keys(query.shape[:-1])
    own: torch.Tensor = getattr(module, _KEY)
    return None if keys is None else keys ^ own


class _Attend(torch.autograd.Function):
    """O = D V with D = P ∘ M, P = softmax(S), S = scale Q Kᵀ, and M the factors of dropout. Backward, where · is summed
    over keys: dV = Dᵀ dO, dP = (dO Vᵀ) ∘ M, dS = P ∘ (dP - dP · P), dQ = scale dS K, dK = scale dSᵀ Q."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keys: torch.Tensor,
        mask: torch.Tensor | None,
        rule: _Rule,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, keys, mask)
        ctx.rule = rule
        attended = query.new_empty(*query.shape[:-1], value.shape[-1])
        for part in _parts(query, key):
            weights, kept = _weights(query[part], key[part], keys[part], _of(mask, part, query, key), rule)
            attended[part] = (weights * kept).to(value.dtype) @ value[part]
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, keys, mask = ctx.saved_tensors
        of_query, of_key, of_value = (torch.empty_like(x) for x in (query, key, value))
        for part in _parts(query, key):
            weights, kept = _weights(query[part], key[part], keys[part], _of(mask, part, query, key), ctx.rule)
            of_value[part] = (weights * kept).to(value.dtype).transpose(-1, -2) @ gradient[part]
            of_weights = (gradient[part] @ value[part].transpose(-1, -2)).float() * kept
            of_scores = of_weights.sub_((of_weights * weights).sum(-1, keepdim=True)).mul_(weights)
            of_scores = of_scores.mul_(ctx.rule.scale).to(query.dtype)
            of_query[part] = of_scores @ key[part]
            of_key[part] = of_scores.transpose(-1, -2) @ query[part]
        return of_query, of_key, of_value, None, None, None


def _weights(
    query: torch.Tensor, key: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None, rule: _Rule
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(S), and what dropout multiplies it by, both float32 and (…, queries, keys)."""
    scores = (query @ key.transpose(-1, -2)).float().mul_(rule.scale)
    if rule.causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1), factors(keys, scores.shape[-1], rule.share)


def _parts(query: torch.Tensor, key: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and heads that are computed at once."""
    n_rows, n_heads = query.shape[:2]
    size = AT_ONCE.get(query.device.type, OTHER_AT_ONCE)
    heads = max(1, min(n_heads, size // (query.shape[2] * key.shape[2])))
    rows = max(1, size // (heads * query.shape[2] * key.shape[2])) if heads == n_heads else 1
    for row in range(0, n_rows, rows):
        for head in range(0, n_heads, heads):
            yield slice(row, row + rows), slice(head, head + heads)


def _of(
    mask: torch.Tensor | None, part: tuple[slice, slice], query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    if mask is None:
        return None
    return mask.expand(*query.shape[:3], key.shape[2])[part]
