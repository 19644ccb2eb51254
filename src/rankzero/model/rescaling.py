"""Weights that a model divides in place while it is not trained. Knows modules of transformers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def leave_weights_as_they_are(model: Any) -> None:
    """Have no module divide its weights once it evaluates (RWKV, by `rescale_every` of its config, so that float16
    does not overflow): they are saved in between, and would be divided again when they are loaded. Its config keeps
    the value, which is the model's, as it is saved."""
    for module in model.modules():
        if hasattr(module, "layers_are_rescaled") and module.config.rescale_every:
            module.config = deepcopy(module.config)
            module.config.rescale_every = 0
