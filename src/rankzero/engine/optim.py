"""The optimizer that a spec asks for. Knows nothing of the loop, or of which learning rate a step has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rankzero.engine.adamw_bfloat16 import BFloat16AdamW
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import TrainSpec

_TRIAL_ELEMENTS = 4096
"""Weights with fewer elements keep float32 moments in bitsandbytes, so they would try nothing out."""


def make_optimizer(
    named: Mapping[str, torch.nn.Parameter],
    spec: TrainSpec,
    learning_rate: float,
    *,
    begins: Mapping[str, int] | None = None,
) -> torch.optim.Optimizer:
    """AdamW over these weights, with weight decay on matrices only. All of its state is tensors.

    adamw           torch's, fused; but BFloat16AdamW for bfloat16 weights where master_weights says how their small
                    changes are kept. Float32 weights lose none, so a run that has only such takes torch's.
    adamw_8bit      bitsandbytes', with moments in 8 bits

    `begins`, for parts of weights: the place of each part's first element in its whole weight. `named` has the same
    names in the same order on every rank and at every start of a run. Raises ConfigError.
    """
    groups = _groups(named, spec.weight_decay, begins or {})
    betas = (spec.adam_beta1, spec.adam_beta2)
    if spec.optimizer == "adamw_8bit":
        return _adamw_8bit(groups, learning_rate, betas, spec.adam_epsilon)
    if spec.master_weights != "float32" and any(weight.dtype is torch.bfloat16 for weight in named.values()):
        return BFloat16AdamW(
            groups,
            lr=learning_rate,
            betas=betas,
            eps=spec.adam_epsilon,
            keep=spec.master_weights,
            seed=spec.seed,
        )
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=spec.adam_epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The learning rate of the optimizer's next step, for all weights."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def _groups(
    named: Mapping[str, torch.nn.Parameter], weight_decay: float, begins: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Matrices, and everything else; `numbers` and `begins` are as BFloat16AdamW wants them."""
    groups = []
    for decay, is_matrix in ((weight_decay, True), (0.0, False)):
        members = [(number, name) for number, name in enumerate(named) if _is_matrix(name, named[name]) is is_matrix]
        group = {
            "params": [named[name] for _, name in members],
            "weight_decay": decay,
            "numbers": [number for number, _ in members],
            "begins": [begins.get(name, 0) for _, name in members],
        }
        groups.append(group)
    return [group for group in groups if group["params"]]


def _is_matrix(name: str, weight: torch.Tensor) -> bool:
    """Not a bias, also where those of all experts are one tensor of (experts, values)."""
    return weight.ndim >= 2 and not name.endswith("bias")


def _adamw_8bit(
    groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float], epsilon: float
) -> torch.optim.Optimizer:
    """AdamW whose moments have 8 bits, in blocks of 256 with a scale each (Dettmers et al., "8-bit Optimizers via
    Block-wise Quantization", 2022). Raises ConfigError where it cannot run."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        hint = "pip install 'rankzero[quantization]', or take optimizer: adamw"
        raise ConfigError("adamw_8bit needs the package bitsandbytes", where="train.optimizer", hint=hint) from error
    device = groups[0]["params"][0].device
    trial = torch.nn.Parameter(torch.zeros(_TRIAL_ELEMENTS, device=device))
    trial.grad = torch.ones_like(trial)
    try:
        AdamW8bit([trial]).step()
    except (NotImplementedError, RuntimeError) as error:  # older versions have no kernels for CPUs
        what, hint = f"adamw_8bit does not run on {device.type} here: {error}", "run on a GPU, or take optimizer: adamw"
        raise ConfigError(what, where="train.optimizer", hint=hint) from error
    optimizer: torch.optim.Optimizer = AdamW8bit(groups, lr=learning_rate, betas=betas, eps=epsilon)
    optimizer.register_step_pre_hook(_steps_as_numbers)
    optimizer.register_step_post_hook(_steps_as_tensors)
    return optimizer


def _steps_as_numbers(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What bitsandbytes counts with."""
    for state in optimizer.state.values():
        state["step"] = int(state["step"])


def _steps_as_tensors(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What checkpoints are made of: tensors, none of which shares another's memory."""
    shared = getattr(optimizer, "name2qmap", {}).values()
    for state in optimizer.state.values():
        state["step"] = torch.tensor(state["step"])
        for name, value in state.items():
            if any(value is other for other in shared):
                state[name] = value.clone()
