"""Modules that are trained whole beside adapters (peft's `modules_to_save`), computed in the precision of their base.

They are held in float32, as adapters are. Autocast rounds the weights of linear layers for each pass, and of no others:
what an embedding or a norm in float32 gives would be in float32, and so would be all that is behind it, in twice the
memory that it has in full fine-tuning or under FSDP, which round all.

Where only some tokens are trained, peft copies the whole table with their rows in it in each pass, and takes the
gradient of the copy; here their rows are looked up by themselves. A head is copied, and here it has its bias. Knows no
model's name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.utils.other import ModulesToSaveWrapper
from transformers.pytorch_utils import Conv1D

from rankzero.model.float32_sums import lent, looked_up

Lookup = Callable[[torch.Tensor], torch.Tensor]

_ROUNDED_BY_AUTOCAST = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, Conv1D)


def compute_in_base_precision(model: torch.nn.Module) -> int:
    """Let them compute so, with their weights where they are. How many layers there are."""
    wrappers = [module for module in model.modules() if isinstance(module, ModulesToSaveWrapper)]
    found = 0
    for wrapper in wrappers:
        for copy in wrapper.modules_to_save.values():
            for name, layer in copy.named_modules():
                if isinstance(layer, (*_ROUNDED_BY_AUTOCAST, RoundedLayer)):
                    continue
                base = wrapper.original_module.get_submodule(name)
                rounded = _rounded(layer, base)
                if rounded:
                    kind: Any = type(layer)
                    layer.__class__ = _in_base_precision(kind)
                    layer.__dict__["rounded"] = rounded
                    found += 1
    return found


def _rounded(layer: torch.nn.Module, base: torch.nn.Module) -> dict[str, torch.dtype]:
    """The precision of each weight of its own that its base has in half precision."""
    own = dict(base.named_parameters(recurse=False))
    return {
        name: own[name].dtype
        for name, weight in layer.named_parameters(recurse=False)
        if weight.dtype is torch.float32 and own[name].dtype in (torch.bfloat16, torch.float16)
    }


class RoundedLayer(torch.nn.Module):
    """What takes the place of such a layer's own computing."""

    rounded: dict[str, torch.dtype]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        weights = {name: self._parameters[name] for name in self.rounded}
        with lent(self, **{name: held.to(self.rounded[name]) for name, held in weights.items() if held is not None}):
            return super().forward(*inputs, **named)


class RoundedEmbedding(RoundedLayer):
    """Of a table the rows that are looked up are rounded, and not all: it has one for each token."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        table: Any = self
        rows = looked_up(table.weight, input, table.padding_idx).to(self.rounded["weight"])
        return rows_of(table, rows, input, super(RoundedLayer, self).forward)


def rows_of(table: Any, rows: torch.Tensor, ids: torch.Tensor, forward: Lookup) -> torch.Tensor:
    """What a model's own kind of embedding, which may scale or normalise, makes of `ids`, whose `rows` were looked up
    elsewhere. `forward` is how the table does it. Shapes: rows [..., h], ids [...]."""
    padding, table.padding_idx = table.padding_idx, None
    try:
        with lent(table, weight=rows.reshape(-1, rows.shape[-1])):
            return forward(torch.arange(ids.numel(), device=ids.device).view(ids.shape))
    finally:
        table.padding_idx = padding


@cache
def _in_base_precision(kind: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found."""
    part = RoundedEmbedding if issubclass(kind, torch.nn.Embedding) else RoundedLayer
    return type(kind.__name__, (part, kind), {"__module__": kind.__module__})


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


def keep_head_biases(model: torch.nn.Module) -> int:
    """Let heads of which some rows are trained add their bias, as their base does. How many there are."""
    heads = [module for module in model.modules() if isinstance(module, TrainableTokensLayer) and _has_bias(module)]
    for module in heads:
        module.__class__ = TokensPredicted
    return len(heads)


def _has_bias(module: TrainableTokensLayer) -> bool:
    return isinstance(module.base_layer, torch.nn.Linear) and module.base_layer.bias is not None


class TokensPredicted(TrainableTokensLayer):  # type: ignore[misc]
    """A frozen head, some of whose rows are trained, with the bias of Phi's or GPT-J's, which peft 0.21 leaves out."""

    def forward_adapters(self, x: torch.Tensor, active_adapters: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.disable_adapters or self.merged or not active_adapters:
            before: torch.Tensor = super().forward_adapters(x, active_adapters, *args, **kwargs)
            return before
        self._check_overlapping_tokens(active_adapters)
        return torch.nn.functional.linear(x, self.get_merged_weights(active_adapters), self.base_layer.bias)
