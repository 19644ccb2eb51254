"""Attention over rows that lie end to end, registered with transformers as "varlen". Knows tensors; nothing of which
models may use it (model/attention.py).

On CUDA in half precision torch's own variable-length kernel computes all rows at once; elsewhere each row is one
scaled_dot_product_attention. No mask of the size of all tokens squared is ever made. Batches whose rows do not lie end
to end are computed as transformers' "sdpa" computes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rankzero.errors import ConfigError

NAME = "varlen"

_LARGEST_HEAD = 256
_HEAD_MULTIPLE = 8
"""What the kernel takes: heads of at most 256 values, in multiples of 8; others are filled up with zeros."""


def register() -> None:
    """Make "varlen" an attention implementation that transformers' models take by name."""
    AttentionInterface.register(NAME, varlen_attention)
    AttentionMaskInterface.register(NAME, varlen_mask)


def has_kernel() -> bool:
    """Whether this torch has the variable-length kernel with all that is used of it, and this GPU can run it."""
    return _KERNEL is not None and _gpu_runs_it()


def _find_kernel() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    complete = {"scale", "window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()
    return varlen_attn if complete else None


_KERNEL = _find_kernel()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gpu_runs_it() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What a mask says, without the mask. It travels through the model as the shape of a tensor without values."""

    borders: bool
    """Whether there is more than one row."""
    window: int | None
    """How many tokens one attends to, itself included; None: all before it."""

    def as_mask(self, device: torch.device | str) -> torch.Tensor:
        return torch.empty((1, 2 if self.borders else 1, 0, self.window or 0), dtype=torch.bool, device=device)

    @classmethod
    def of(cls, mask: torch.Tensor | None) -> _Pattern | None:
        """None: this is a real mask."""
        if mask is None:
            return cls(borders=False, window=None)
        return None if mask.shape[-2] else cls(borders=mask.shape[1] == 2, window=mask.shape[-1] or None)


def varlen_mask(  # noqa: PLR0913  transformers' signature
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., torch.Tensor],
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **for_sdpa: Any,  # what transformers hands to every mask function
) -> torch.Tensor | None:
    """A stand-in without values where causality, rows end to end and a sliding window are all there is to the mask.

    Otherwise sdpa's: a batch of several sequences, padding, a cache, or a model with a pattern of its own.
    """
    plain = attention_mask is None and not use_vmap and batch_size == 1 and q_length == kv_length
    window = local_size if local_size is not None and local_size < q_length else None
    if plain and (window is None or local_size == getattr(config, "sliding_window", None)):
        borders = not allow_is_causal_skip and _has_borders(mask_function, q_length, device)
        if borders or (window is not None and allow_is_causal_skip):
            return _Pattern(borders, window).as_mask(device)
    mask: torch.Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        use_vmap=use_vmap,
        device=device,
        config=config,
        **for_sdpa,
    )
    return mask


_ROWS: ContextVar[int | None] = ContextVar("rows", default=None)


@contextmanager
def rows_of_pass(count: int) -> Iterator[None]:
    """Say how many rows a pass has whose masks are made within: else each mask asks the device, and waits for it."""
    token = _ROWS.set(count)
    try:
        yield
    finally:
        _ROWS.reset(token)


def _has_borders(mask_function: Callable[..., torch.Tensor], length: int, device: torch.device | str) -> bool:
    """Whether some token may not attend to the one before it."""
    if (rows := _ROWS.get()) is not None:
        return rows > 1
    at = torch.arange(length, device=device)
    zero = at.new_zeros(())
    return not bool(mask_function(zero, zero, at[1:], at[:-1]).all())


def varlen_attention(  # noqa: PLR0913  transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,  # what transformers hands to every attention function
) -> tuple[torch.Tensor, None]:
    """Attention of each row to itself: query (1, heads, T, head size) to (1, T, heads, head size).

    `cu_seq_lens_q`, (rows + 1), holds where rows begin, and T; absent: there is one row. Raises ConfigError where rows
    lie end to end but the layer was not told where they begin, or needs what the kernel does not have.
    """
    pattern = _Pattern.of(attention_mask)
    if cu_seq_lens_q is None and (attention_mask is None or pattern is None):
        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
        )
        return attended, None
    if pattern is None:
        raise _refusal(module, "makes a mask of its own")
    if cu_seq_lens_q is None and pattern.borders:
        raise _refusal(module, "is not told where rows begin")
    needs = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if dropout or needs:
        raise _refusal(module, f"needs {needs[0] if needs else 'attention dropout'}, which varlen does not have")
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    if pattern.window is not None and not causal:
        raise _refusal(module, "has a sliding window to both sides")
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if cu_seq_lens_q is None or max_length_q is None:
        max_length_q = query.shape[2]
        cu_seq_lens_q = torch.tensor([0, max_length_q], dtype=torch.int32, device=query.device)
    if _kernel_takes(query, value):
        return _in_one_kernel(query, key, value, cu_seq_lens_q, max_length_q, (scale, causal, pattern.window)), None
    return _one_by_one(query, key, value, cu_seq_lens_q, (scale, causal, pattern.window)), None


def _refusal(module: torch.nn.Module, reason: str) -> ConfigError:
    return ConfigError(
        f"rows cannot lie end to end here: {type(module).__name__} {reason}",
        where="train.padding_free",
        hint="set train.padding_free: false and leave model.attention out",
    )


def _kernel_takes(query: torch.Tensor, value: torch.Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and max(query.shape[-1], value.shape[-1]) <= _LARGEST_HEAD and has_kernel()


_Rule = tuple[float, bool, int | None]
"""Scale, causality, window."""


def _in_one_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_lens: torch.Tensor, longest: int, rule: _Rule
) -> torch.Tensor:
    if _KERNEL is None:
        raise RuntimeError("this torch has no variable-length attention")
    scale, causal, window = rule
    size = value.shape[-1]
    width = -(-max(query.shape[-1], size) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
    q, k, v = (_tokens_first(x, width) for x in (query, key, value))
    attended: torch.Tensor = _KERNEL(
        q,
        k,
        v,
        cu_seq_lens,
        cu_seq_lens,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0 if causal else -1),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended[..., :size].unsqueeze(0)


def _tokens_first(x: torch.Tensor, width: int) -> torch.Tensor:
    """(1, heads, T, size) as (T, heads, width), filled up with zeros, which change no product."""
    return pad(x, (0, width - x.shape[-1])).squeeze(0).transpose(0, 1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_lens: torch.Tensor, rule: _Rule
) -> torch.Tensor:
    """Not compiled: how many rows there are, and how long, is in a tensor."""
    scale, causal, window = rule
    borders: list[int] = cu_seq_lens.tolist()
    attended = []
    for start, end in zip(borders[:-1], borders[1:], strict=True):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        mask = _window_mask(end - start, window, query.device)
        attended.append(
            scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous()


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Which tokens of one row a token attends to: (length, length); None: all before it."""
    if window is None or length <= window:
        return None
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window)
