"""Where text and image tokens stand for models that give an image's tokens places by rows and columns (M-RoPE of the
Qwen-VL family): by the model class's own rule, without a model, so that it can be asked on the CPU beside a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import MODEL_MAPPING

from rankzero.data.batches.collators.images import ImageInputs
from rankzero.data.batches.collators.packed import Positions

_RULE = "get_rope_index"


def image_positions(config: Any, vision: ImageInputs) -> Positions | None:
    """The rule of a config's model; None where all its tokens are numbered one after the other."""
    model_class = MODEL_MAPPING.get(type(config), None)
    if not hasattr(model_class, _RULE):
        return None
    # The rule reads the config and no weight; a module that was not set up takes no ordinary attribute.
    rule = model_class.__new__(model_class)
    object.__setattr__(rule, "config", config)

    def positions(ids: Sequence[npt.NDArray[np.int32]], pixels: Mapping[str, torch.Tensor]) -> npt.NDArray[np.int64]:
        lengths = [len(of_row) for of_row in ids]
        own_BT = np.arange(max(lengths)) < np.array(lengths)[:, None]
        ids_BT = np.zeros(own_BT.shape, np.int64)
        ids_BT[own_BT] = np.concatenate(ids)
        of_tokens = {name: torch.from_numpy(value) for name, value in vision.token_inputs(ids_BT).items()}
        grids = {name: value for name, value in pixels.items() if name.endswith("_grid_thw")}
        found_ABT, _ = rule.get_rope_index(
            input_ids=torch.from_numpy(ids_BT),
            attention_mask=torch.from_numpy(own_BT.astype(np.int64)),
            **of_tokens,
            **grids,
        )
        found: npt.NDArray[np.int64] = found_ABT.numpy()[:, own_BT].astype(np.int64)
        return found

    return positions
