"""What a model is made of, read off its module tree: the part that each parameter belongs to and which of them a run
trains, its blocks, its tables of positions. Knows nothing of adapters.

language      the text model: embeddings, attention, dense layers, experts that every token visits, and all heads
experts       the experts of a mixture among which a router chooses
router        what chooses them
vision_tower  encoders of images (and of whatever else is not text)
projector     what lies between an encoder and the text model
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, get_args

import torch

from rankzero.errors import ConfigError, Problem
from rankzero.model.context import DYNAMIC
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
    """Let only these parts have gradients, and nothing in them that the architecture has without: a table that is
    computed once (RoFormer), the bias that balances a router (Ernie 4.5). A weight that two parts share is trained if
    its first name is in one."""
    belongs = parameter_parts(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and belongs[name] in parts)


def freeze_as(model: Any, like: Any) -> None:
    """Train what `like` does, the same model without weights: one that is loaded has forgotten what its architecture
    has frozen."""
    for name, parameter in like.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)


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


def blocks(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """(name, module) of every block of the text model and of the encoders, in their order; none lies in another.

    A model says itself which classes are not to be split; those of them that stand in a list are its blocks, and a list
    may hold several (Jamba). Where only something inside of what a list holds is of such a class (Idefics' tower), what
    the list holds is a block. Where a model says nothing, blocks are what its outermost lists of modules of one class
    hold.
    """
    declared = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    listed = list(_in_lists(model, declared))
    names = [name for name, module in listed if type(module).__name__ in declared]
    found = [
        (name, module)
        for name, module in listed
        if name in names
        or (
            not any(inside(block, [name]) for block in names)
            and any(type(part).__name__ in declared for part in module.modules())
        )
    ]
    return _outermost(found or listed)


def _in_lists(model: torch.nn.Module, declared: Container[str]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Members of lists that have parameters, where all members of a list are of one class or theirs is declared."""
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        alike = len({type(member) for member in module}) == 1
        for number, member in enumerate(module):
            if (alike or type(member).__name__ in declared) and any(True for _ in member.parameters()):
                yield f"{name}.{number}" if name else str(number), member


def _outermost(found: list[tuple[str, torch.nn.Module]]) -> list[tuple[str, torch.nn.Module]]:
    names = {name for name, _ in found}

    def nested(name: str) -> bool:
        parents = name.split(".")
        return any(".".join(parents[:depth]) in names for depth in range(1, len(parents)))

    return [(name, module) for name, module in found if not nested(name)]


_NAMES = frozenset(
    {"position_embeddings", "embed_positions", "wpe", "positions_embed", "pos_encoding", "char_position_embeddings"}
)
"""What tables of positions are called: BERT and its kin, OPT and GPT-J, GPT-2, GPT, CTRL, CANINE."""


def position_limit(model: Any) -> int | None:
    """Tokens of the longest row; None where positions are computed, so that longer rows are possible.

    A table may be learned, or computed once for so many positions (GPT-J, CodeGen, CTRL). RoBERTa's begins with rows
    that stand for no position: as many as the padding's number and one. One that an adapter trains in full lies in
    peft's wrapper.
    """
    part_of = part_finder(model)
    tables = [
        (name.removesuffix(".original_module"), _rows(module) - (module.padding_idx + 1 if module.padding_idx else 0))
        for name, module in model.named_modules()
        if hasattr(module, "padding_idx") and hasattr(module, "weight")
    ]
    tables += [(name, buffer.shape[0]) for name, buffer in model.named_buffers() if buffer.ndim == 2]
    limits = [
        rows
        for name, rows in tables
        if name.rpartition(".")[2] in _NAMES and part_of(name) not in ("vision_tower", "projector")
    ]
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min([*limits, *([longest] if longest else [])]) if limits else None


def forget_lengths(model: Any) -> None:
    """Let `dynamic` positions be as they were before any pass: what is computed next does not depend on longer rows of
    before, whose frequencies transformers keeps until a row comes that is shorter than the context."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        each = kinds if isinstance(kinds, Mapping) else {"": kinds}  # by the kind of layer, where these differ
        for layer, kind in each.items():
            prefix = f"{layer}_" if layer else ""
            if kind != DYNAMIC or not hasattr(module, f"{prefix}original_inv_freq"):
                continue
            now = getattr(module, f"{prefix}inv_freq")
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(now.device))
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def _rows(table: Any) -> int:
    """As a table says itself, for its weight may lie in parts on several processes. I-BERT's own class does not say."""
    return int(getattr(table, "num_embeddings", None) or table.weight.shape[0])
