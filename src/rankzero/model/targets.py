"""Where adapters go: which layers, which tensors of experts, and what is trained in full beside them. Applies nothing.

auto            attention projections of the text model and of a vision tower, everything linear elsewhere
all-linear      every linear layer of the wanted parts, except heads
[name, …]       linear layers of the wanted parts by name
Experts that are one tensor for a whole layer get adapters as tensors. Routers, the heads of classifiers, and projectors
that have no linear layer are small and their layers are no plain Linear, so they are trained in full.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.utils.constants import EMBEDDING_LAYER_NAMES
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from rankzero.errors import ConfigError, Problem
from rankzero.model.layer_names import ATTENTION_PROJECTIONS, is_called, named_instead, trained_otherwise
from rankzero.model.low_bits import tensor_outline
from rankzero.model.parts import after_encoder, inside, parameter_parts, part_finder, wanted_parts
from rankzero.spec.run_spec import LoraSpec, Part, Parts
from rankzero.spec.tasks import ModelUse


@dataclass(frozen=True, slots=True)
class Targets:
    """Full names in the model, in its order."""

    modules: tuple[str, ...]
    """Linear layers that get adapters."""
    parameters: tuple[str, ...]
    """Tensors of many experts that get adapters."""
    saved: tuple[str, ...]
    """Modules that are trained in full."""


def target_modules(lora: LoraSpec, wanted: Parts, model: Any, use: ModelUse) -> Targets:
    """What `lora.target_modules` and `train.parts` (`wanted`) mean for a model with this use.

    Raises ConfigError naming every entry that matches nothing, and what adapters of tensors cannot have.
    """
    parts, belongs = wanted_parts(wanted, model, adapters=True), parameter_parts(model)
    linear = linear_parts(model)
    tensors = expert_tensors(model) if "experts" in parts else []
    chosen = [name for name, part in linear.items() if part in parts and part != "router" and _is_chosen(name, lora)]
    if lora.target_modules == "auto":
        for part in parts - {"router"}:
            of_part = [name for name, other in linear.items() if other == part]
            usable = [name for name in of_part if not _is_out_of_states(model, name)]
            attention = [name for name in usable if _last(name) in ATTENTION_PROJECTIONS]
            chosen += attention if attention and part in ("language", "vision_tower") else usable
    problems = _unmatched(lora, linear, parts, tensors, model)
    saved = [*_routers(belongs, parts), *(_heads(model) if use == "classifies" else [])]
    if "projector" in parts and "projector" not in linear.values():
        saved += _outermost_modules([name for name, part in belongs.items() if part == "projector"], belongs)
    named_in_full, ambiguous = _in_full(lora, model, parts)
    whole = _with_what_is_tied(named_in_full, model)
    problems += ambiguous
    problems += _whole_problems(lora, model, whole, [*chosen, *tensors])
    saved += [name for name in whole if name not in saved]
    if tensors:
        named = [name for name in tensors if _is_chosen(name, lora)]
        tensors = named or tensors
        problems += adapted_tensor_problems(lora, "experts")
    if not problems and not isinstance(wanted, str):
        part_of = part_finder(model)
        touched = {part_of(name) for name in (*chosen, *saved)} | ({"experts"} if tensors else set())
        touched |= {"language"} if lora.trainable_token_indices else set()
        problems += _untouched_parts([part for part in wanted if part not in touched], linear)
    if not problems and not (chosen or tensors or saved):
        hint = f"it has linear layers in: {', '.join(sorted(set(linear.values())))}"
        problems.append(Problem("there is nothing to put adapters on", "train.parts", hint))
    if problems:
        raise ConfigError(problems)
    adapted = set(chosen)
    return Targets(tuple(name for name in linear if name in adapted), tuple(tensors), tuple(saved))


def linear_parts(model: Any) -> dict[str, Part]:
    """The part of every module that an adapter can be put on, by its name; heads left out."""
    part_of, classifies = part_finder(model), type(model).__name__.endswith("ForSequenceClassification")
    return {
        name: part_of(name)
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and module is not model.get_output_embeddings()
        and not (classifies and after_encoder(model, name))
    }


def expert_tensors(model: Any) -> list[str]:
    """Names of tensors of shape (experts, in, out) or (experts, out, in), also where they are packed."""
    part_of = part_finder(model)
    return [
        f"{module}.{name}" if module else name
        for module, owner in model.named_modules()
        if not isinstance(owner, parametrize.ParametrizationList) and part_of(module) == "experts"
        for name in [*dict(owner.named_parameters(recurse=False)), *getattr(owner, "parametrizations", ())]
        if tensor_outline(owner, name).ndim == 3
    ]


def adapted_tensor_problems(lora: LoraSpec, what: str) -> list[Problem]:
    """What peft cannot do where an adapter is added to a tensor instead of a layer's output."""
    problems = []
    if lora.dropout:
        hint = "set lora.dropout: 0"
        problems.append(Problem(f"adapters on {what} cannot have dropout", "lora.dropout", hint))
    if lora.use_dora:
        problems.append(Problem(f"DoRA does not work on {what}", "lora.use_dora", "leave it out"))
    return problems


def shortest(wanted: Iterable[str], others: Iterable[str], *, boundary: str = ".") -> list[str]:
    """Suffixes (`q_proj`, `mlp.gate`) that mean exactly `wanted` and none of `others`; all names where there are none.

    `boundary` is what has to stand before a suffix in a longer name.
    """
    names, rest = list(wanted), list(others)
    most = max((name.count(".") + 1 for name in names), default=0)
    for segments in range(1, most):
        suffixes = sorted({".".join(name.split(".")[-segments:]) for name in names})
        if not any(name == suffix or name.endswith(boundary + suffix) for suffix in suffixes for name in rest):
            return suffixes
    return names


def named_modules(model: Any, wanted: str) -> list[str]:
    """The modules with weights that are called `wanted`, by their last words or in full."""
    return [
        name
        for name, module in model.named_modules()
        if (name == wanted or name.endswith(f".{wanted}")) and any(True for _ in module.parameters())
    ]


def _in_full(lora: LoraSpec, model: Any, parts: frozenset[Part]) -> tuple[list[str], list[Problem]]:
    """What lora.modules_to_save means: of modules that are called so in several parts those of the wanted ones. A name
    in full means its module, wherever it is, and so does one that a single part has."""
    part_of, found, problems = part_finder(model), [], []
    for wanted in lora.modules_to_save:
        named = named_modules(model, wanted)
        inside_parts = [name for name in named if name == wanted or part_of(name) in parts]
        elsewhere = sorted({part_of(name) for name in named})
        if not inside_parts and len(elsewhere) > 1:
            what = f"{wanted} is in the {' and the '.join(elsewhere)}, which are not trained (train.parts)"
            hint = f"name it in full: {', '.join(named[:2])}"
            problems.append(Problem(what, "lora.modules_to_save", hint))
        found += inside_parts or named
    return found, problems


def _with_what_is_tied(whole: list[str], model: Any) -> list[str]:
    """With one of two tied tables also the other, unless peft takes it by itself."""
    tables = embedding_tables(model)
    touched = [name for name in whole if name in tables]
    if not touched or not is_tied(model) or tied_by_peft(touched, model):
        return whole
    return [*whole, *(name for name in tables if name not in whole)]


def tied_by_peft(touched: Sequence[str], model: Any) -> bool:
    """Whether peft, told one of these tied tables or both, trains them as one: it has to know the names, and makes a
    head without a bias."""
    bias = getattr(model.get_output_embeddings(), "bias", None)
    return bias is None and all(_last(name) in EMBEDDING_LAYER_NAMES for name in touched)


def embedding_tables(model: Any) -> list[str]:
    """Names of the modules with a row for each token: the input embeddings, and the head where there is one. None of a
    model whose text has no tokens: CANINE hashes characters."""
    try:
        wanted = [model.get_input_embeddings(), model.get_output_embeddings()]
    except NotImplementedError:
        return []
    return [name for name, module in model.named_modules() if any(module is table for table in wanted)]


def is_tied(model: Any) -> bool:
    """Whether head and embeddings are one tensor, also where peft has put its own modules in their place."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    return head is not None and trained_copy(head).weight is trained_copy(embeddings).weight


def trained_copy(module: Any) -> Any:
    """What is trained of a module in full, in whose place peft has put both; the module itself of any other."""
    saved = getattr(module, "modules_to_save", None)
    return module if saved is None else next(iter(saved.values()))


def _untouched_parts(parts: Sequence[Part], linear: dict[str, Part]) -> list[Problem]:
    """Of parts that were asked for by name and of which nothing would be trained."""
    problems = []
    for part in parts:
        words = sorted({_in_words(name) for name, other in linear.items() if other == part})
        hint = f"name layers of it: {', '.join(words)}; or leave it out of train.parts"
        what = f"no layer of the {part.replace('_', ' ')} is called so, and it is to be trained (train.parts)"
        problems.append(Problem(what, "lora.target_modules", hint))
    return problems


def _in_words(name: str) -> str:
    """`mlp.0` of a layer that has a number for a name."""
    segments = name.split(".")
    return ".".join(segments[-2:] if segments[-1].isdigit() else segments[-1:])


def _whole_problems(lora: LoraSpec, model: Any, whole: list[str], adapted: list[str]) -> list[Problem]:
    """What keeps lora.modules_to_save from being trained in full."""
    problems = []
    last = sorted({_last(name) for name, module in model.named_modules() if any(True for _ in module.parameters())})
    for wanted in lora.modules_to_save:
        if not named_modules(model, wanted):
            close = difflib.get_close_matches(wanted, last, n=1)
            hint = f"did you mean {close[0]}? " if close else f"it has: {', '.join(name for name in last if name)}"
            problems.append(Problem(f"the model has no module {wanted} with weights", "lora.modules_to_save", hint))
    both = sorted({name for name in adapted if inside(name, whole)})
    if both:
        what = f"{both[0]} would have an adapter and be trained in full"
        hint = "name it in lora.target_modules or in lora.modules_to_save, not in both"
        problems.append(Problem(what, "lora.modules_to_save", hint))
    return problems


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_out_of_states(model: Any, name: str) -> bool:
    """Whether a layer is Mamba's `out_proj`, which stands beside a convolution, and not attention's of that name: its
    kernels take the weight alone, past an adapter."""
    if _last(name) != "out_proj":
        return False
    beside = {child for child, _ in model.get_submodule(name.rpartition(".")[0]).named_children()}
    return {"in_proj", "conv1d"} <= beside


def _is_chosen(name: str, lora: LoraSpec) -> bool:
    """Whether lora.target_modules takes a layer by its name, or takes all."""
    if isinstance(lora.target_modules, str):
        return lora.target_modules == "all-linear"
    return any(is_called(name, wanted) for wanted in lora.target_modules)


def _no_layer(model: Any, wanted: str, linear: dict[str, Part]) -> Problem | None:
    """Why a module with weights gets no adapter, and how it is trained; None where there is no such module."""
    named = named_modules(model, wanted)
    if not named:
        return None
    part_of = part_finder(model)
    if all(part_of(name) == "experts" for name in named):
        what, hint = "experts get adapters by their part, not by name", "set train.parts: [language, experts]"
        return Problem(what, "lora.target_modules", f"{hint}, and leave {wanted} out")
    if any(inside(name, named) for name in linear):  # the layers in it can be named
        return None
    found = [model.get_submodule(name) for name in named]
    if type(model).__name__.endswith("ForSequenceClassification") and all(after_encoder(model, name) for name in named):
        what = f"adapters are not put on {wanted}: it is the head, after the encoder"
        return Problem(what, "lora.target_modules", "leave it out: it is trained in full anyway")
    ends = ((model.get_output_embeddings(), "head"), (model.get_input_embeddings(), "embeddings"))
    for module, words in ends:
        if any(one is module for one in found):
            what = f"adapters are not put on {wanted}: it is the model's {words}"
            return Problem(what, "lora.target_modules", trained_otherwise(wanted))
    hint = f"lora.modules_to_save: [{wanted}] trains it in full"
    return Problem(f"{wanted} is no linear layer", "lora.target_modules", hint)


def _unmatched(
    lora: LoraSpec, linear: dict[str, Part], parts: frozenset[Part], tensors: list[str], model: Any
) -> list[Problem]:
    """A problem for each name in lora.target_modules that is no layer of the wanted parts."""
    if isinstance(lora.target_modules, str):
        return []
    available = [*(name for name, part in linear.items() if part in parts), *tensors]
    last = sorted({_last(name) for name in available})
    problems = []
    for wanted in lora.target_modules:
        matching = [name for name in [*linear, *tensors] if name == wanted or name.endswith(f".{wanted}")]
        elsewhere = sorted({linear[name] for name in matching if name not in available})
        if not matching and (otherwise := _no_layer(model, wanted, linear)) is not None:
            problems.append(otherwise)
        elif not matching:
            what = f"the model has no linear module {wanted}"
            problems.append(Problem(what, "lora.target_modules", named_instead(wanted, last)))
        elif len(elsewhere) and not any(name in available for name in matching):
            where = " and ".join(elsewhere)
            hint = f"set train.parts: [{', '.join([*sorted(parts), *elsewhere])}]"
            problems.append(Problem(f"{wanted} is in the {where}, which is not trained", "lora.target_modules", hint))
    return problems


def _routers(belongs: dict[str, Part], parts: frozenset[Part]) -> list[str]:
    if "router" not in parts:
        return []
    return list(dict.fromkeys(name.rpartition(".")[0] for name, part in belongs.items() if part == "router"))


def _heads(model: Any) -> list[str]:
    """A classifier's layers after its encoder: freshly drawn, so they have to be trained."""
    names = [name for name, _ in model.named_parameters()]
    return _outermost_modules([name for name in names if after_encoder(model, name)], names)


def _outermost_modules(names: list[str], others: Iterable[str]) -> list[str]:
    """The modules that hold these parameters and none of the others, as few as can be: `score`, `bert.pooler`."""
    rest = set(others) - set(names)
    found: dict[str, None] = {}
    for name in names:
        segments = name.split(".")
        prefixes = [".".join(segments[:depth]) for depth in range(1, len(segments))]
        outermost = next((p for p in prefixes if not any(inside(other, [p]) for other in rest)), None)
        if outermost is not None:
            found[outermost] = None
    return list(found)
