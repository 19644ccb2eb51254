"""Adapters that no gradient reaches: the model's code passes their layers by, or never calls them.

Jamba, for one, takes the weight of `dt_proj` and does not call the layer, and so do kernels of mamba_ssm with
`out_proj`: an adapter on it is neither computed with nor trained. Knows nothing of the loop.
"""

from __future__ import annotations

import re

import torch

from rankzero.engine.console import logger
from rankzero.engine.distributed import sum_over_ranks
from rankzero.engine.parallel.base import Parallel
from rankzero.errors import ConfigError, Problem
from rankzero.model.parts import part_finder
from rankzero.wording import listed

LOOKS = 3
"""Steps of a start whose gradients are looked at, where the first one leaves a doubt."""
_SHOWN = 3
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class AdapterWatch:
    """Looks at the gradients of a start's first steps until each adapter has had one, and says which had none.

    An adapter is judged by the gradients of whole steps, summed over all passes and ranks. Experts of one kind are
    judged together, since a step need not visit each; adapters on what sees images are not judged, since a step need
    not have an image. What is trained beside adapters (`modules_to_save`, single tokens) only counts as something that
    is trained.
    """

    def __init__(self, parallel: Parallel, device: torch.device, *, may_vanish: bool = False) -> None:
        """`may_vanish`: gradients may be rounded to zero (float16), so that their absence proves less."""
        self._parallel, self._device = parallel, device
        part_of = part_finder(parallel.module.get_base_model())
        self._waiting: dict[str, set[str]] = {}
        self._sees_images = False
        for name, parameter in parallel.module.named_parameters():
            layer, is_adapter = _layer_of(name)
            if not is_adapter or not parameter.requires_grad:
                continue
            part = part_of(layer)
            if part in ("vision_tower", "projector"):
                self._sees_images = True
                continue
            kind = _NUMBER.sub("*", layer) if part == "experts" else layer
            self._waiting.setdefault(kind, set()).add(layer)
        self._adapters = sum(map(len, self._waiting.values()))
        self._looks = 0
        self._nothing_moves = not self._sees_images and not may_vanish

    @property
    def over(self) -> bool:
        """Whether there is nothing left to look at."""
        return not self._waiting or self._looks >= LOOKS

    def look(self, loss: float, *, last: bool) -> None:
        """After a step's gradients are reduced, before the optimizer moves. `last`: the run has no step after it. Waits
        for the device where it is not over. A collective; raises ConfigError where nothing at all is trained."""
        if self.over:
            return
        self._looks += 1
        moved = self._with_gradient()
        self._nothing_moves &= not moved and loss > 0
        layers = {layer for layer, is_adapter in map(_layer_of, moved) if is_adapter}
        self._waiting = {kind: of for kind, of in self._waiting.items() if not of & layers}
        if not self._waiting or not (last or self._looks == LOOKS):
            return
        self._looks = LOOKS
        problem = self._problem()
        if self._nothing_moves:
            raise ConfigError(problem)
        logger.warning("[MODEL] %s. hint: %s", problem.what, problem.hint)

    def _with_gradient(self) -> list[str]:
        """Names of the trained weights that have a gradient on any rank."""
        gradients = dict(self._parallel.gradients())
        if not gradients:
            return []
        found = torch.stack([gradient.any() for gradient in gradients.values()]).to(self._device, torch.float32)
        return [name for name, has in zip(gradients, sum_over_ranks(found).tolist(), strict=True) if has]

    def _problem(self) -> Problem:
        layers = sorted(layer for of in self._waiting.values() for layer in of)
        names = ", ".join(layers[:_SHOWN]) + (", …" if len(layers) > _SHOWN else "")
        steps = "the first step" if self._looks == 1 else "the first steps"
        kinds = listed(sorted({layer.rpartition(".")[2] for layer in layers}))
        if self._nothing_moves:
            what = f"no adapter had a gradient in {steps}, so nothing is trained: {names}"
            hint = f"the loss does not depend on {kinds} of this model; name other layers in lora.target_modules"
            return Problem(what, "lora.target_modules", hint)
        counts = f"{len(layers)} of {self._adapters} adapters"
        what = f"{counts} had no gradient in {steps}, so they are not trained: {names}"
        hint = f"the loss does not depend on these layers; name lora.target_modules without {kinds}"
        return Problem(what, "lora.target_modules", hint)


def _layer_of(name: str) -> tuple[str, bool]:
    """The layer that a trained weight belongs to, as the base names it, and whether it is an adapter's."""
    layer, adapter, _ = name.removeprefix("base_model.model.").partition(".lora_")
    return layer.replace(".base_layer", ""), bool(adapter)
