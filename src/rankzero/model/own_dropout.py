"""A model without the dropout that it brings along. Knows modules and what they call their rates; nothing of tasks."""

from __future__ import annotations

from torch.nn.modules.dropout import _DropoutNd

_OF_ADAPTERS = "lora_dropout"
"""What peft calls the module of each layer that has one."""


def leave_own_dropout_out(model: object) -> None:
    """Have the modules of a model drop nothing while they train, in place, but for adapters' dropout. Its config keeps
    the rates: they are those of the model, as it is saved."""
    for name, module in model.named_modules():  # type: ignore[attr-defined]
        if _OF_ADAPTERS in name.split("."):
            continue
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for attribute, value in vars(module).items():
            # Attention, and OPT's layers, call torch's function with a rate of their own.
            if "drop" in attribute and isinstance(value, float):
                setattr(module, attribute, 0.0)
