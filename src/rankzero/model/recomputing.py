"""Blocks that are computed again in the backward pass, and where gradients begin. Knows models; nothing of the memory
plan that asks for it."""

from __future__ import annotations

from typing import Any

import torch


def recompute_blocks(model: Any, *, preserve_rng_state: bool = True) -> None:
    """Keep what goes into each block, and compute the block again in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": preserve_rng_state})
    # transformers has gradients begin at the embeddings of every model in the model then: a frozen vision tower would
    # keep its activations and be computed again, for gradients that nobody wants.
    model.disable_input_require_grads()
    begin_at_embeddings(model)


def begin_at_embeddings(model: Any) -> None:
    """Have gradients reach the embeddings of the text, whatever is trained behind them."""
    model.get_input_embeddings().register_forward_hook(_with_gradients)


def _with_gradients(_module: torch.nn.Module, _inputs: Any, embedded: torch.Tensor) -> None:
    embedded.requires_grad_(True)
