"""A vision tower's attention over all images of a pass in one call of a layer, where transformers would otherwise make
one call for each image. Knows towers that tell their attention where images begin; computes with model/varlen.py."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from rankzero.model import varlen

NAME = "images_flash"
"""Of transformers' attentions those with "flash" in their names are told where images begin; for others it cuts its
tensors."""

TOWERS = frozenset({"qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe"})
"""Types of models of whose towers the tests show that images computed together are what each is alone."""

_CHOSEN_FOR_SPEED = (None, varlen.NAME)
"""Attention of the whole model that nobody has asked for by another name."""


def attend_to_images_at_once(model: Any, attention: str | None, device_kind: str, dtype: Any) -> bool:
    """Have the tower compute so where that is one kernel, and `attention` (transformers' name for the model's) leaves
    the choice. Returns whether it does."""
    if device_kind != "cuda" or dtype not in (torch.bfloat16, torch.float16) or attention not in _CHOSEN_FOR_SPEED:
        return False
    if model.config.model_type not in TOWERS or not varlen.has_kernel_for_images():
        return False
    return take(model)


def take(model: Any) -> bool:
    """Have the tower of a model compute so. Returns whether it has one that can."""
    if model.config.model_type not in TOWERS:
        return False
    AttentionInterface.register(NAME, varlen.varlen_attention)
    kind = type(model.config.vision_config)
    configs = [config for module in model.modules() if isinstance(config := getattr(module, "config", None), kind)]
    for config in configs:
        config._attn_implementation = NAME
    return bool(configs)
