"""Gradients of trained embeddings, of all tokens or of some. Knows no model's name.

In half precision on a CPU torch adds them up in that precision. A sum of bfloat16 values in bfloat16 ends where it is
some 256 times what is added: the gradient of a token that comes up often would lack most of itself. GPUs add up in
float32.

Where some tokens are trained, peft copies the whole table with their rows in it in each pass, and takes the gradient of
the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from torch.nn.functional import embedding

Lookup = Callable[[torch.Tensor], torch.Tensor]


def sum_embeddings(model: torch.nn.Module) -> int:
    """Let the gradients of all embeddings be added up in float32. How many there are."""
    found = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    for module in found:
        kind: Any = type(module)
        if not issubclass(kind, SummedEmbedding):
            module.__class__ = _summed(kind)
    return len(found)


class SummedEmbedding(torch.nn.Embedding):
    """Stands between a model's own kind of embedding, which may scale what it looks up, and torch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plain = self.max_norm is None and not self.scale_grad_by_freq and not self.sparse
        return looked_up(self.weight, input, self.padding_idx) if plain else super().forward(input)


def looked_up(weight: torch.Tensor, ids: torch.Tensor, padding: int | None = None) -> torch.Tensor:
    """Rows of `weight` by number; their gradients are added up in float32. That of row `padding` is 0."""
    rounds = weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16)
    if not (rounds and weight.requires_grad and torch.is_grad_enabled()):
        return embedding(ids, weight, padding)
    found: torch.Tensor = _Lookup.apply(weight, ids, padding)  # type: ignore[no-untyped-call]
    return found


def rows_of(table: Any, rows: torch.Tensor, ids: torch.Tensor, forward: Lookup) -> torch.Tensor:
    """What a model's own kind of embedding, which may scale or normalise, makes of `ids`, whose `rows` were looked up
    elsewhere. `forward` is how the table does it. Shapes: rows [..., h], ids [...]."""
    padding, table.padding_idx = table.padding_idx, None
    try:
        with lent(table, weight=rows.reshape(-1, rows.shape[-1])):
            return forward(torch.arange(ids.numel(), device=ids.device).view(ids.shape))
    finally:
        table.padding_idx = padding


@contextmanager
def lent(layer: torch.nn.Module, **weights: torch.Tensor) -> Iterator[None]:
    """For the duration a layer computes with these weights in the place of its own."""
    own = layer._parameters
    layer.__dict__["_parameters"] = {**own, **weights}
    try:
        yield
    finally:
        layer.__dict__["_parameters"] = own


def look_up_trained_tokens(model: torch.nn.Module) -> int:
    """Let the rows of trained tokens be looked up by themselves, and no table be copied. How many tables there are."""
    found = [module for module in model.modules() if isinstance(module, TrainableTokensLayer)]
    tables = [module for module in found if isinstance(module.base_layer, torch.nn.Embedding)]
    for module in tables:
        module.__class__ = TokensLookedUp
    return len(tables)


class TokensLookedUp(TrainableTokensLayer):  # type: ignore[misc]
    """Rows of some tokens beside a frozen table. As peft's, the rows stand in the place of the table's."""

    def forward_adapters(self, x: torch.Tensor, active_adapters: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.disable_adapters or self.merged or len(active_adapters) != 1:
            before: torch.Tensor = super().forward_adapters(x, active_adapters, *args, **kwargs)
            return before
        tokens_k, places_k = self._sorted_tokens(active_adapters[0], x.device)
        at = torch.searchsorted(tokens_k, x).clamp(max=len(tokens_k) - 1)
        table: Any = self.base_layer
        others: torch.Tensor = table(x)
        rows = looked_up(self.trainable_tokens_delta[active_adapters[0]], places_k[at]).to(table.weight.dtype)
        if table.padding_idx is not None:
            rows = torch.where((x == table.padding_idx).unsqueeze(-1), rows.detach(), rows)
        return torch.where((tokens_k[at] == x).unsqueeze(-1), rows_of(table, rows, x, table.forward), others)

    def _sorted_tokens(self, name: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens, ascending, and where the row of each is. Sent to a device once."""
        kept: dict[Any, Any] = self.__dict__.setdefault("_kept_tokens", {})
        if (name, device) not in kept:
            kept[name, device] = tuple(torch.tensor(self.token_indices[name], device=device).sort())
        tokens, places = kept[name, device]
        return tokens, places


@cache
def _summed(kind: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found."""
    bases = (SummedEmbedding,) if kind is torch.nn.Embedding else (kind, SummedEmbedding)
    return type(kind.__name__, bases, {"__module__": kind.__module__})


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, padding: int | None) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.dtype, ctx.padding = weight.shape, weight.dtype, padding
        return embedding(ids, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        total = torch.zeros(ctx.shape, dtype=torch.float32)
        total.index_add_(0, ids.reshape(-1), gradient.reshape(-1, ctx.shape[-1]).float())
        if ctx.padding is not None:
            total[ctx.padding] = 0
        return total.to(ctx.dtype), None, None
