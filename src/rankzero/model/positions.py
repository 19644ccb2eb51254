"""How long a row may be for a model that learned its positions one by one. Knows nothing of data."""

from __future__ import annotations

from typing import Any

import torch

from rankzero.model.parts import part_finder

_NAMES = ("position_embeddings", "embed_positions", "wpe")
"""What tables of learned positions are called: BERT and its kin, OPT, GPT-2."""


def position_limit(model: Any) -> int | None:
    """Tokens of the longest row; None where positions are computed, so that longer rows are possible.

    RoBERTa's table begins with rows that stand for no position: as many as the padding's number and one.
    """
    part_of = part_finder(model)
    limits = [
        module.num_embeddings - (module.padding_idx + 1 if module.padding_idx else 0)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
        and name.rpartition(".")[2] in _NAMES
        and part_of(name) not in ("vision_tower", "projector")
    ]
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min([*limits, *([longest] if longest else [])]) if limits else None
