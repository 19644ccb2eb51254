"""Attention over rows that lie end to end, registered with transformers as "varlen". Knows tensors; nothing of which
models may use it (model/attention.py).

On CUDA in half precision torch's own variable-length kernel computes all rows at once; on a CPU in bfloat16 training
takes model/block_attention.py; elsewhere each row is one scaled_dot_product_attention. No mask of the size of all
tokens squared is ever made. Batches whose rows do not lie end to end are computed as transformers' "sdpa" computes
them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rankzero.errors import ConfigError
from rankzero.model import block_attention
from rankzero.wording import first_line

_log = logging.getLogger("rankzero.model")

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


def has_kernel_for_images() -> bool:
    """The same of a vision tower, whose patches attend to both sides."""
    return has_kernel() and computes_attention("cuda", causal=False)


def _find_kernel() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = inspect.signature(varlen_attn).parameters.keys()
    if not {"scale", "window_size"} <= takes:
        return None
    if "enable_gqa" in takes:
        return varlen_attn

    def unasked(*given: Any, enable_gqa: bool, **options: Any) -> Any:
        """Up to torch 2.11 nobody had to say that several heads have one of keys."""
        del enable_gqa
        return varlen_attn(*given, **options)

    return unasked


_KERNEL = _find_kernel()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gpu_runs_it() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0) and computes_attention("cuda")


@lru_cache
def computes_attention(device: str, *, causal: bool = True) -> bool:
    """Whether the kernel gives what attention is, and its gradients: asked once, as a text model has it, whose heads
    share keys, and as a vision tower has it, not causal, in heads of another width than powers of two."""
    keys, size = (2, 16) if causal else (4, 72)
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(1, heads, 24, size, generator=draw).to(device, torch.bfloat16) for heads in (4, keys, keys)]
    borders = torch.tensor([0, 9, 24], dtype=torch.int32, device=device)
    rows, rule = Borders(borders, borders, 15, 15), Rule(scale=size**-0.5, causal=causal, window=None)
    found = []
    for way in (_in_one_kernel, _one_by_one):
        query, key, value = tensors = [tensor.clone().requires_grad_() for tensor in given]
        try:
            with torch.enable_grad():
                attended = way(query, key, value, rows, rule)
                found.append([attended.detach(), *torch.autograd.grad(attended.float().square().sum(), tensors)])
        except (RuntimeError, TypeError, NotImplementedError) as error:
            _log.warning("[MODEL] rows are computed one by one, not in one kernel: torch says %s", first_line(error))
            return False
    if all(torch.allclose(ours, theirs, rtol=0.1, atol=0.1) for ours, theirs in zip(*found, strict=True)):
        return True
    _log.warning("[MODEL] rows are computed one by one, not in one kernel: torch's gives something else")
    return False


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a mask says, without the mask. It travels through the model as the shape of a tensor without values."""

    borders: bool
    """Whether there is more than one row."""
    window: int | None
    """How many tokens one attends to, itself included; None: all before it."""

    def as_mask(self, device: torch.device | str) -> torch.Tensor:
        return torch.empty((1, 2 if self.borders else 1, 0, self.window or 0), dtype=torch.bool, device=device)

    @classmethod
    def of(cls, mask: torch.Tensor | None) -> Pattern | None:
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
    rows_are_whole: bool = True,
    **for_sdpa: Any,  # what transformers hands to every mask function
) -> torch.Tensor | None:
    """A stand-in without values where causality, rows end to end and a sliding window are all there is to the mask.

    Otherwise sdpa's: a batch of several sequences, padding, a cache, or a model with a pattern of its own. Where rows
    are not whole, a window matters that is wider than what is here of them.
    """
    plain = attention_mask is None and not use_vmap and batch_size == 1 and q_length == kv_length
    narrow = local_size is not None and (local_size < q_length or not rows_are_whole)
    window = local_size if narrow else None
    if plain and (window is None or local_size == getattr(config, "sliding_window", None)):
        borders = not allow_is_causal_skip and (
            not rows_are_whole or _has_borders(mask_function, q_length, device)  # a slice of one row has a gap in it
        )
        if borders or (window is not None and allow_is_causal_skip):
            return Pattern(borders, window).as_mask(device)
    mask: torch.Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip and (rows_are_whole or not narrow),
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
    pattern = Pattern.of(attention_mask)
    if cu_seq_lens_q is None and (attention_mask is None or pattern is None):
        attended, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
        )
        return attended, None
    if cu_seq_lens_q is None and pattern is not None and pattern.borders:
        raise refusal(module, "is not told where rows begin")
    rule = rule_of(module, query, attention_mask, dropout, scaling, is_causal, others)
    query, key, value = in_precision_of_products(query, key, value)
    if cu_seq_lens_q is None or max_length_q is None:
        max_length_q = query.shape[2]
        # Made on the device: every layer would wait for a copy.
        cu_seq_lens_q = torch.arange(0, 2 * max_length_q, max_length_q, dtype=torch.int32, device=query.device)
    return attend(query, key, value, Borders.of(cu_seq_lens_q, max_length_q), rule), None


@dataclass(frozen=True, slots=True)
class Borders:
    """Where rows begin among the queries and among the keys of a call, and where the last one ends: int32, (rows + 1).

    A row's last query stands at its last key, so that it may have more keys than queries.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    longest_queries: int
    longest_keys: int

    @classmethod
    def of(cls, cu_seq_lens: torch.Tensor, longest: int) -> Borders:
        """Of rows whose queries and keys are all here."""
        return cls(cu_seq_lens, cu_seq_lens, longest, longest)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a layer attends within each row."""

    scale: float
    causal: bool
    window: int | None
    """How many tokens one attends to, itself included; None: all before it."""


def rule_of(
    module: torch.nn.Module,
    query: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    others: Mapping[str, Any],
    *,
    field: str = "train.padding_free",
) -> Rule:
    """Raises ConfigError, at the `field` that asks for rows end to end, where the layer needs what this has not."""
    pattern = Pattern.of(mask)
    if pattern is None:
        raise refusal(module, "makes a mask of its own", field)
    needs = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if dropout or needs:
        raise refusal(module, f"needs {needs[0] if needs else 'attention dropout'}, which varlen does not have", field)
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    if pattern.window is not None and not causal:
        raise refusal(module, "has a sliding window to both sides", field)
    return Rule(scaling if scaling is not None else query.shape[-1] ** -0.5, causal, pattern.window)


def in_precision_of_products(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As autocast would have them."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)


_WAYS_OUT = {
    "train.padding_free": "set train.padding_free: false and leave model.attention out",
    "train.context_parallel": "leave it out",
}


def refusal(module: torch.nn.Module, reason: str, field: str = "train.padding_free") -> ConfigError:
    """Of rows end to end, at the field that asks for them."""
    what = f"rows cannot lie end to end here: {type(module).__name__} {reason}"
    return ConfigError(what, where=field, hint=_WAYS_OUT[field])


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Borders, rule: Rule) -> torch.Tensor:
    """Attention of each row to itself: query (1, heads, Tq, head size), keys and values (1, heads of keys, Tk, …), to
    (1, Tq, heads, head size)."""
    way = _in_one_kernel if _kernel_takes(query, value) else _one_by_one
    attended: torch.Tensor = way(query, key, value, rows, rule)
    return attended


def _kernel_takes(query: torch.Tensor, value: torch.Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and max(query.shape[-1], value.shape[-1]) <= _LARGEST_HEAD and has_kernel()


def _in_one_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Borders, rule: Rule
) -> torch.Tensor:
    if _KERNEL is None:
        raise RuntimeError("this torch has no variable-length attention")
    size = value.shape[-1]
    width = -(-max(query.shape[-1], size) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
    q, k, v = (_tokens_first(x, width) for x in (query, key, value))
    attended: torch.Tensor = _KERNEL(
        q,
        k,
        v,
        rows.queries,
        rows.keys,
        rows.longest_queries,
        rows.longest_keys,
        scale=rule.scale,
        window_size=(-1 if rule.window is None else rule.window - 1, 0 if rule.causal else -1),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended[..., :size].unsqueeze(0)


def _tokens_first(x: torch.Tensor, width: int) -> torch.Tensor:
    """(1, heads, T, size) as (T, heads, width), filled up with zeros, which change no product."""
    wide = x if width == x.shape[-1] else pad(x, (0, width - x.shape[-1]))  # which would copy it all the same
    return wide.squeeze(0).transpose(0, 1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _one_by_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Borders, rule: Rule) -> torch.Tensor:
    """Not compiled: how many rows there are, and how long, is in a tensor."""
    of_queries, of_keys = (borders.tolist() for borders in (rows.queries, rows.keys))
    whole = rule.causal and of_queries == of_keys and (rule.window is None or rows.longest_keys <= rule.window)
    if whole and block_attention.made_for(query, key, value):
        together: torch.Tensor = block_attention.attend(query, key, value, rule.scale, of_queries)
        return together.transpose(1, 2).contiguous()
    attended = []
    for (first, end), (first_key, end_key) in zip(pairwise(of_queries), pairwise(of_keys), strict=True):
        q, k, v = query[:, :, first:end], key[:, :, first_key:end_key], value[:, :, first_key:end_key]
        mask = _mask(end - first, end_key - first_key, rule, query.device)
        attended.append(
            scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=rule.causal and mask is None,
                scale=rule.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous()


def _mask(queries: int, keys: int, rule: Rule, device: torch.device) -> torch.Tensor | None:
    """Which keys of one row its last `queries` tokens attend to: (queries, keys). None: what causality says where there
    are as many of both, else all."""
    within = rule.window is None or keys <= rule.window
    if within and (queries == keys or not rule.causal):
        return None
    at = torch.arange(keys, device=device)
    distance = at[keys - queries :, None] - at[None, :]
    seen = distance >= 0
    return seen if rule.window is None else seen & (distance < rule.window)
