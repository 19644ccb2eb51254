"""Modules that are trained whole beside adapters (peft's `modules_to_save`), computed in the precision of their base.

They are held in float32, as adapters are. Autocast rounds the weights of linear layers for each pass, and of no others:
what an embedding or a norm in float32 gives would be in float32, and so would be all that is behind it, in twice the
memory that it has in full fine-tuning or under FSDP, which round all. Knows no model's name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from peft.utils.other import ModulesToSaveWrapper
from transformers.pytorch_utils import Conv1D

from rankzero.model.embeddings import lent, looked_up, rows_of

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


@cache
def _in_base_precision(kind: type[Any]) -> type[Any]:
    """One name for both: what is looked up by it goes on to be found."""
    part = RoundedEmbedding if issubclass(kind, torch.nn.Embedding) else RoundedLayer
    return type(kind.__name__, (part, kind), {"__module__": kind.__module__})
