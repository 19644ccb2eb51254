"""AdamW and its learning-rate schedule, from torch and transformers. Knows nothing of the loop."""

from __future__ import annotations

from typing import Any

import torch
from transformers import get_scheduler

from rankzero.spec.run_spec import TrainSpec

_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


def make_optimizer(named: dict[str, torch.nn.Parameter], spec: TrainSpec, learning_rate: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; fused where all parameters are on a device that has a fused kernel."""
    decayed = [p for p in named.values() if p.ndim >= 2]
    others = [p for p in named.values() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=(spec.adam_beta1, spec.adam_beta2),
        eps=spec.adam_epsilon,
        fused=True,
    )


def make_scheduler(optimizer: torch.optim.Optimizer, spec: TrainSpec, *, warmup: int, total: int) -> Any:
    """Learning rate by step: linear warm-up, then linear or cosine to zero, or constant."""
    return get_scheduler(
        _SCHEDULES[spec.lr_scheduler_type], optimizer, num_warmup_steps=warmup, num_training_steps=total
    )
