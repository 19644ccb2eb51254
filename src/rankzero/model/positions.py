"""How long a row may be: for a model that learned its positions one by one, and for one that computes them.

Knows nothing of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rankzero.model.parts import part_finder

_NAMES = ("position_embeddings", "embed_positions", "wpe")
"""What tables of learned positions are called: BERT and its kin, OPT, GPT-2."""


@dataclass(frozen=True, slots=True)
class Context:
    """How many positions a model was made for."""

    length: int
    """`max_position_embeddings`: tokens of a row."""
    extended: bool
    """The config scales positions (`rope_parameters`: yarn, dynamic, …), so that longer rows are thinkable."""


def computed_context(config: Any) -> Context | None:
    """The context of a model with rotary positions; None of any other, and where the config does not say it."""
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    kinds = set(_rope_kinds(getattr(text, "rope_parameters", None) or {}))
    return Context(int(longest), kinds != {"default"}) if longest and kinds else None


def _rope_kinds(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Of all layers, or of each kind of layers that has parameters of its own."""
    if "rope_theta" in parameters or "rope_type" in parameters:
        yield str(parameters.get("rope_type") or "default")
        return
    for inner in parameters.values():
        if isinstance(inner, Mapping):
            yield from _rope_kinds(inner)


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
