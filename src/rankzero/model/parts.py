"""Which part of a model each parameter belongs to, and which parts a run trains. Knows nothing of adapters.

language      the text model: embeddings, attention, dense layers, experts that every token visits, and all heads
experts       the experts of a mixture among which a router chooses
router        what chooses them
vision_tower  encoders of images (and of whatever else is not text)
projector     what lies between an encoder and the text model
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import torch

from rankzero.errors import ConfigError, Problem
from rankzero.spec.run_spec import Part, Parts

PARTS: tuple[Part, ...] = get_args(Part)

_IN_TOWER_PROJECTOR = re.compile(r"merger|projector|connector|aligner")
"""Qwen's encoders end in the projector: `visual.merger`, `visual.deepstack_merger_list`."""
_ROUTER_CLASS = re.compile(r"Router|TopKGat")
_ROUTER_NAMES = frozenset({"gate", "router", "shared_expert_gate"})
"""What a router is called beside its experts; in a dense layer these names mean other things."""


def parameter_parts(model: Any) -> dict[str, Part]:
    """The part of every parameter, by its name in the model."""
    part_of = part_finder(model)
    return {name: part_of(name) for name, _ in model.named_parameters()}


def part_finder(model: Any) -> Callable[[str], Part]:
    """What tells the part of a parameter or module that holds parameters, from its name."""
    experts, routers = _mixture_modules(model)
    towers, decoder = _towers(model), _decoder(model)
    heads = [name for name, module in model.named_modules() if module is model.get_output_embeddings()]

    def part_of(name: str) -> Part:
        tower = next((tower for tower in towers if inside(name, [tower])), None)
        if tower is not None:
            return "projector" if _IN_TOWER_PROJECTOR.search(name.removeprefix(tower)) else "vision_tower"
        if towers and decoder is not None and not inside(name, [decoder, *heads]) and not outside_base(model, name):
            return "projector"
        return "router" if inside(name, routers) else "experts" if inside(name, experts) else "language"

    return part_of


def wanted_parts(parts: Parts, model: Any, *, adapters: bool) -> frozenset[Part]:
    """What `train.parts` asks for, by adapters or in full. Raises ConfigError naming what the model does not have."""
    present = set(parameter_parts(model).values())
    if parts == "auto":
        wanted = {"language"} if adapters else {"language", "experts"}
        return frozenset(part for part in PARTS if part in wanted & present)
    hint = f"it has: {', '.join(part for part in PARTS if part in present)}"
    problems = [
        Problem(f"the model has no {part.replace('_', ' ')}", "train.parts", hint)
        for part in dict.fromkeys(parts)
        if part not in present
    ]
    if problems:
        raise ConfigError(problems)
    return frozenset(parts)


def freeze_to(model: Any, parts: frozenset[Part]) -> None:
    """Let only these parts have gradients. A weight that two parts share is trained if its first name is in one."""
    belongs = parameter_parts(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(belongs[name] in parts)


def inside(name: str, modules: Iterable[str]) -> bool:
    """Whether a name is one of these modules, or of something in one of them."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def outside_base(model: Any, name: str) -> bool:
    """Whether a name is not of the base model: a head, whatever it is called."""
    return not inside(name, [model.base_model_prefix])


def after_encoder(model: Any, name: str) -> bool:
    """Whether a classifier's parameter or module comes after its encoder: a head, or the encoder's own pooler."""
    return outside_base(model, name) or inside(name, [f"{model.base_model_prefix}.pooler"])


def _towers(model: Any) -> list[str]:
    """Names of the encoders of what is not text, as the model itself finds them."""
    if getattr(model.config, "vision_config", None) is None:
        return []
    whole = (model, model.base_model)
    found = [model.get_encoder(modality=modality) for modality in ("image", "audio")]
    return [_name_of(model, module) for module in found if not any(module is other for other in whole)]


def _decoder(model: Any) -> str | None:
    """Name of the text model inside a model that has more; None where it cannot be told from the rest."""
    decoder = model.get_decoder()
    return None if decoder is model or decoder is model.base_model else _name_of(model, decoder)


def _name_of(model: torch.nn.Module, wanted: torch.nn.Module) -> str:
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    return names[id(wanted)]


def _mixture_modules(model: Any) -> tuple[list[str], list[str]]:
    """Names of the modules that hold experts, and of those that route to them."""
    experts: list[str] = []
    routers: list[str] = []
    for name, module in model.named_modules():
        if inside(name, experts):
            continue
        if name.rpartition(".")[2] == "experts" or "Experts" in type(module).__name__:
            experts.append(name)
        elif _ROUTER_CLASS.search(type(module).__name__):
            routers.append(name)
    return experts, [*routers, *_siblings(model, experts)]


def _siblings(model: Any, experts: list[str]) -> Iterator[str]:
    """Routers that are plain layers beside their experts."""
    for parent in {name.rpartition(".")[0] for name in experts}:
        for child, _ in model.get_submodule(parent).named_children():
            if child in _ROUTER_NAMES:
                yield f"{parent}.{child}"
