"""A model without the dropout that it brings along. Knows modules and what they call their rates; nothing of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from torch.nn.modules.dropout import _DropoutNd
from transformers import PretrainedConfig, PreTrainedModel

_OF_ADAPTERS = "lora_dropout"
"""What peft calls the module of each layer that has one."""


def leave_own_dropout_out(model: object) -> None:
    """Have the modules of a model drop nothing while they train, in place, but for adapters' dropout. Its config keeps
    the rates: they are those of the model, as it is saved. Modules inside it that have a config get one without."""
    modules = dict(model.named_modules())  # type: ignore[attr-defined]
    whole = next((module for module in modules.values() if isinstance(module, PreTrainedModel)), None)
    copies: dict[int, Any] = {}
    for name, module in modules.items():
        if _OF_ADAPTERS in name.split("."):
            continue
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for attribute in _rates(module):
            # Attention, and OPT's layers, call torch's function with a rate of their own.
            setattr(module, attribute, 0.0)
        config = vars(module).get("config")
        # Falcon and others look into it at each pass. The whole model's is the one that is saved.
        if module is not whole and isinstance(config, PretrainedConfig) and any(map(_rates, _with_parts(config))):
            module.config = deepcopy(config, copies)  # with one memo, modules still share what they shared
            for part in _with_parts(module.config):
                for attribute in _rates(part):
                    setattr(part, attribute, 0.0)


def _rates(holder: object) -> list[str]:
    """Attributes that are rates of dropout, above 0."""
    return [name for name, value in vars(holder).items() if "drop" in name and isinstance(value, float) and value > 0]


def _with_parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """A config, and those of the text model and the towers in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _with_parts(value)
