"""Float32 weights that an optimizer moves, beside their bfloat16 copies, which a replica computes with; and those that
nothing moves, in bfloat16 too.

A weight is rounded once a step instead of once a pass, and what goes from block to block has the precision of matrix
products, as in a model that is spread. Gradients are rounded as they come out of a pass and added up in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from peft import PeftModel

from rankzero.model.load import kept_in_float32


def copies_in(model: Any, dtype: torch.dtype) -> torch.dtype:
    """In which precision trained float32 weights have copies to compute with; float32: they have none.

    Adapters are rounded as they are used. Sums between blocks may leave the range of float16.
    """
    return dtype if dtype is torch.bfloat16 and not isinstance(model, PeftModel) else torch.float32


class Masters:
    """Weights by name, those that have copies in float32 and the others as they are."""

    def __init__(
        self, computed: Mapping[str, torch.nn.Parameter], dtype: torch.dtype, *, stay: Collection[str] = ()
    ) -> None:
        """Those of `computed` that are float32 become `dtype`, in place, and have a master each; but not those whose
        names are in `stay`."""
        self.weights = dict(computed)
        self.computed: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        """What is computed with, by its master."""
        for name, weight in computed.items():
            if weight.dtype is torch.float32 and dtype is not torch.float32 and name not in stay:
                master = torch.nn.Parameter(weight.data)
                weight.data = weight.data.to(dtype)
                weight.register_post_accumulate_grad_hook(partial(_take_gradient, master))  # type: ignore[no-untyped-call]
                self.weights[name], self.computed[master] = master, weight

    @torch.no_grad()
    def round(self) -> None:
        """Give the copies what their masters are now."""
        if self.computed:
            torch._foreach_copy_(list(self.computed.values()), list(self.computed))


class Frozen:
    """Weights that are not trained, in the precision that trained ones are computed with: some models cast what they
    see to that of their first weight, and a block passes on what its weights have."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        """Float32 ones of `module` become `dtype`, in place; what its architecture keeps in float32 stays. `dtype` is
        what `copies_in` says."""
        stay = kept_in_float32(module, dtype)
        self.whole: dict[str, torch.Tensor] = {}
        """What rounding has changed, by name and on the CPU: results have it as it was."""
        self._rounded = {}
        for name, weight in module.named_parameters() if dtype is not torch.float32 else ():
            if weight.requires_grad or weight.dtype is not torch.float32 or name in stay:
                continue
            rounded = weight.data.to(dtype)
            if not torch.equal(rounded.float(), weight.data):
                self.whole[name], self._rounded[name] = weight.data.cpu(), weight
            weight.data = rounded

    @torch.no_grad()
    def round(self) -> None:
        """Give the model what they are now."""
        for name, weight in self._rounded.items():
            weight.copy_(self.whole[name])


def _take_gradient(master: torch.nn.Parameter, weight: torch.Tensor) -> None:
    gradient, weight.grad = weight.grad, None
    if gradient is None:
        return
    if master.grad is None:
        master.grad = gradient.float()
    else:  # a CPU adds numbers of one precision only, and torch would make the same copy unseen
        master.grad.add_(gradient.float() if gradient.device.type == "cpu" else gradient)
