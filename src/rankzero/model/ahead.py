"""Whether what a model says of a token follows from those behind it. Knows models; nothing of data or processes."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel

from rankzero.errors import ConfigError

_SAME, _OTHER = 8, 8
"""Tokens that two rows share, and those behind them that they do not."""
_NOTICEABLE = 0.01
"""Of the largest logit: far more than rounding, and far less than what one sees."""


def brings_code(model: Any) -> bool:
    """Whether a model, with or without adapters, is computed by code that came with it (model.trust_remote_code).
    Not to be asked of one that is spread, whose class is not its own any more."""
    own = model.get_base_model() if isinstance(model, PeftModel) else model
    return not type(own).__module__.startswith("transformers.")


def require_not_ahead(model: Any, device: torch.device) -> None:
    """Raise ConfigError where tokens of `model` see what they are to predict, and would learn to copy it. One pass of
    two short rows, without gradients; a collective where passes are.

    A router may send single tokens to other experts by the last bit of what comes before: most of them have to differ.
    """
    same = torch.arange(1, _SAME + 1)
    rows = [torch.cat([same, torch.arange(first, first + _OTHER)]) for first in (_SAME + 1, 2 * _SAME + _OTHER)]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits_2TV = model(input_ids=torch.stack(rows).to(device), use_cache=False).logits.float()
    finally:
        model.train(was_training)
    one_TV, other_TV = logits_2TV[:, :_SAME]
    apart_T = (one_TV - other_TV).abs().amax(dim=-1)
    if apart_T.median() > _NOTICEABLE * logits_2TV[:, :_SAME].abs().max():
        what = "what this model says of a token follows from those behind it: it would learn to copy what it predicts"
        raise ConfigError(what, where="model.name", hint="take a model that writes from left to right")
