"""The repeated blocks that a transformer is made of, by name. Knows nothing of what is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def blocks(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """(name, module) of every block of the text model and of the encoders, in their order; none lies in another.

    A model says itself which classes are not to be split; those of them that stand in a list are its blocks. Where it
    says nothing, blocks are what its outermost lists of modules of one class hold.
    """
    declared = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    listed = list(_in_lists(model))
    found = [(name, module) for name, module in listed if type(module).__name__ in declared]
    return _outermost(found or listed)


def _in_lists(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Members of lists whose members are all of one class and have parameters."""
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or len({type(member) for member in module}) != 1:
            continue
        for number, member in enumerate(module):
            if any(True for _ in member.parameters()):
                yield f"{name}.{number}" if name else str(number), member


def _outermost(found: list[tuple[str, torch.nn.Module]]) -> list[tuple[str, torch.nn.Module]]:
    names = {name for name, _ in found}

    def nested(name: str) -> bool:
        parents = name.split(".")
        return any(".".join(parents[:depth]) in names for depth in range(1, len(parents)))

    return [(name, module) for name, module in found if not nested(name)]
