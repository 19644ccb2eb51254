"""Low-rank adapters through peft: applying them, also to packed weights, and counting what is trained. Knows nothing of
training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import peft
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.constants import CONFIG_NAME, DUMMY_TARGET_MODULES, SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME
from peft.utils.other import AuxiliaryTrainingWrapper
from peft.utils.transformers_weight_conversion import (
    convert_peft_adapter_state_dict_for_transformers,
    convert_peft_config_for_transformers,
)
from safetensors import SafetensorError
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from rankzero.directories import is_file
from rankzero.errors import ConfigError, Problem
from rankzero.model.load import drawn_from
from rankzero.model.low_bits import is_held, outlined, tensor_outline
from rankzero.model.parts import inside
from rankzero.model.saved_modules import keep_head_biases
from rankzero.model.targets import (
    Targets,
    adapted_tensor_problems,
    embedding_tables,
    is_tied,
    linear_parts,
    shortest,
    target_modules,
    tied_by_peft,
    trained_copy,
)
from rankzero.model.weights import adapter_file_names
from rankzero.run_dir.unread import read_errors
from rankzero.spec.run_spec import LoraSpec, Parts
from rankzero.spec.tasks import ModelUse
from rankzero.wording import first_line

CLASSIFIER = "SEQ_CLS"
"""peft's word for an adapter of a classifier."""
ADDED_BY_PEFT = ("classifier", "score")
"""What peft itself adds to `modules_to_save` of a classifier."""


def apply_lora(
    model: Any,
    lora: LoraSpec,
    *,
    parts: Parts,
    use: ModelUse,
    seed: int,
    packed: bool,
    base_name: str,
    tokens: Sequence[int] = (),
) -> Any:
    """Freeze the model and add adapters in float32, initialised from `seed` alone: the same on every rank.

    Works on packed models and on models without memory; those get adapters without memory. `packed` says what a run
    computes with, also of a model without memory, which never is. `base_name` is written into the adapter as the model
    that it belongs to. `tokens`: whose embeddings are trained (`token_numbers`). Raises ConfigError.
    """
    targets = target_modules(lora, parts, model, use)
    config = lora_config(lora, model, targets, use=use, packed=packed, base_name=base_name, tokens=tokens)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    tables = embedding_tables(model)
    tied = len(tables) > 1 and {*tables} <= {*targets.saved} and is_tied(model) and not config.ensure_weight_tying
    model.name_or_path = base_name  # peft writes this name, not the config's, into the adapter
    try:
        with drawn_from(seed), outlined(model):
            adapted = get_peft_model(model, config)
    except ValueError as error:
        hint = "name other layers in lora.target_modules"
        raise ConfigError(f"peft: {first_line(error)}", where="lora.target_modules", hint=hint) from error
    if tied:
        _tie(adapted)
    over_packed_tensors(adapted)
    keep_head_biases(adapted)
    _require_names_that_come_back(adapted)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
    return adapted


def _tie(adapted: Any) -> None:
    """Let head and embeddings that are both trained in full stay one tensor, which peft does only where it knows their
    names, and for a head without its bias."""
    tables = [trained_copy(table) for table in (adapted.get_input_embeddings(), adapted.get_output_embeddings())]
    tables[1].weight = tables[0].weight


def _are_trained_alike(adapted: Any) -> bool:
    """Whether both tables were trained in full, and hold the same: as one tensor, that is."""
    tables = [adapted.get_input_embeddings(), adapted.get_output_embeddings()]
    ours, theirs = (trained_copy(table) for table in tables)
    return ours is not tables[0] and theirs is not tables[1] and torch.equal(ours.weight, theirs.weight)


def adapted_layers(model: Any) -> list[Any]:
    """Everything in a model that peft has put in the place of something else."""
    return [part for part in model.modules() if isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper)]


@contextmanager
def base_alone(layers: Sequence[Any]) -> Iterator[None]:
    """Within the block these layers compute as those in whose place they are. Unlike peft's `disable_adapter` it leaves
    alone what wants gradients: shards and the sums of gradients were made by that."""
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, disabled in zip(layers, before, strict=True):
            layer._disable_adapters = disabled


def _require_names_that_come_back(adapted: Any) -> None:
    """Raise ConfigError where peft, loading what was trained, would put it elsewhere: it renames an adapter's weights
    as transformers renames those of older files of the base."""
    outline = torch.empty(0, device="meta")
    names = dict.fromkeys(adapter_file_names(adapted), outline)
    config = adapted.peft_config[adapted.active_adapter]
    read = convert_peft_adapter_state_dict_for_transformers(adapted, config, dict(names))
    lost = {name.partition(".lora_")[0].rpartition(".")[2] for name in names.keys() - read.keys()}
    if lost:
        what = f"peft {peft.__version__} cannot read adapters on {' and '.join(sorted(lost))} of this architecture back"
        hint = "name other layers in lora.target_modules; the attention's alone are lora.target_modules: auto"
        raise ConfigError(what, where="lora.target_modules", hint=hint)


def read_adapter_config(directory: Path) -> PeftConfig:
    """What a saved adapter is. Raises ConfigError where it does not say, StorageError where it cannot be read now."""
    _require_read(directory / CONFIG_NAME)
    try:
        return PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"adapter_config.json cannot be read: {first_line(error)}"
        raise ConfigError(what, where=str(directory), hint=_AGAIN) from error


def load_adapter(model: Any, directory: Path) -> Any:
    """The model with a saved adapter on it, to compute with. Raises ConfigError where they do not belong together, or
    the adapter cannot be read, StorageError where that is so at the moment."""
    read_adapter_config(directory)
    for name in (SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME):
        _require_read(directory / name)
    tied = len(embedding_tables(model)) > 1 and is_tied(model)
    try:
        with outlined(model):
            adapted = PeftModel.from_pretrained(model, str(directory), local_files_only=True)
            lost = _not_read(adapted, directory)
    except SafetensorError as error:
        what = f"the adapter's weights cannot be read: {first_line(error)}"
        raise ConfigError(what, where=str(directory), hint=_AGAIN) from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        what = f"the adapter does not fit the model: {first_line(error)}"
        raise ConfigError(what, where=str(directory), hint=_ITS_MODEL) from error
    if lost:
        raise ConfigError(f"the adapter does not fit the model: {lost}", where=str(directory), hint=_ITS_MODEL)
    if tied and _are_trained_alike(adapted):
        _tie(adapted)
    over_packed_tensors(adapted)
    keep_head_biases(adapted)
    return adapted


def _require_read(file: Path) -> None:
    """Raise StorageError or ConfigError for a file that cannot be read: peft and safetensors take it for missing."""
    with read_errors(file):
        if is_file(file):
            with file.open("rb") as opened:
                opened.read(1)


_AGAIN = "a file may be cut off: copy the adapter again"
_ITS_MODEL = "take the model that it was trained on"


def _not_read(adapted: Any, directory: Path) -> str:
    """What of an adapter is not in its files, or in its files and nowhere in the model; empty where all is read. peft
    only warns of the one, and does not speak of the other."""
    found = set_peft_model_state_dict(adapted, load_peft_weights(str(directory), device="cpu"))
    missing = [name for name in found.missing_keys if ".lora_" in name]  # all of the base are missing as well
    said = []
    for names, words in (
        (missing, "of its weights are not in the adapter's files"),
        (found.unexpected_keys, "of the adapter's weights have no place in this model"),
    ):
        if names:
            first = names[0].removeprefix("base_model.model.")
            said.append(f"{len(names)} {words}: {first}{', …' if len(names) > 1 else ''}")
    return "; ".join(said)


def lora_config(
    lora: LoraSpec,
    model: Any,
    targets: Targets,
    *,
    use: ModelUse,
    packed: bool,
    base_name: str,
    tokens: Sequence[int] = (),
) -> LoraConfig:
    """What peft is told, and what it writes beside the adapter. Raises ConfigError where peft cannot be told it."""
    modules = [name for name, _ in model.named_modules()]
    tables = embedding_tables(model)
    refuse_what_cannot_be_trained(lora, model, targets, tables, tokens, packed=packed)
    config = LoraConfig(
        task_type=CLASSIFIER if use == "classifies" else "CAUSAL_LM",
        base_model_name_or_path=base_name,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=shortest(targets.modules, set(modules) - set(targets.modules)) or _no_layers(targets),
        target_parameters=list(targets.parameters) or None,
        modules_to_save=_names_to_save(targets, modules) or None,
        trainable_token_indices={name: list(tokens) for name in tables} if tokens else None,
        ensure_weight_tying=_ties(targets, tables, model),
        use_dora=lora.use_dora,
        use_rslora=lora.use_rslora,
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in targets.modules),
    )
    return _as_peft_reads_it(config, lora, model, targets, packed=packed)


def _ties(targets: Targets, tables: list[str], model: Any) -> bool:
    touched = [name for name in targets.saved if name in tables]
    return bool(touched) and is_tied(model) and tied_by_peft(touched, model)


def token_numbers(lora: LoraSpec, tokenizer: Any) -> tuple[int, ...]:
    """The numbers of lora.trainable_token_indices, sorted. Raises ConfigError for each text that is no single token."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    unknown = [token for token in lora.trainable_token_indices if isinstance(token, str) and token not in vocabulary]
    hint = "tokenizer.add_tokens([…]), save_pretrained, and name that directory in model.tokenizer_dir"
    if unknown:
        where = "lora.trainable_token_indices"
        raise ConfigError([Problem(f"the tokenizer has no token {token!r}", where, hint) for token in unknown])
    return tuple(sorted({vocabulary[t] if isinstance(t, str) else t for t in lora.trainable_token_indices}))


def refuse_what_cannot_be_trained(
    lora: LoraSpec, model: Any, targets: Targets, tables: list[str], tokens: Sequence[int], *, packed: bool
) -> None:
    """Raise ConfigError for packed modules that would be trained in full, and for tokens that have no row."""
    problems = []
    held = [name for name in targets.saved if packed and any(inside(linear, [name]) for linear in linear_parts(model))]
    if held and lora.modules_to_save:
        hint = "put an adapter on it, or leave quantization out"
        problems.append(
            Problem(f"{held[0]} is held in fewer bits, which cannot be trained", "lora.modules_to_save", hint)
        )
    where = "lora.trainable_token_indices"
    rows = model.get_input_embeddings().weight.shape[0] if tokens and tables else 0
    beyond = [token for token in tokens if token >= rows]
    if beyond:
        hint = f"resize the model's embeddings first (resize_token_embeddings) and save it: they have {rows} rows"
        problems.append(Problem(f"token {beyond[0]} has no embedding", where, hint))
    if tokens and any(name in tables for name in targets.saved):
        hint = "leave them out of one of the two"
        problems.append(Problem("the embeddings are trained in full already, by lora.modules_to_save", where, hint))
    if problems:
        raise ConfigError(problems)


def parameter_counts(model: Any) -> tuple[int, int]:
    """(trainable, all) parameters; a quantised weight counts as the weight that it stands for."""
    trainable = total = 0
    for name, parameter in model.named_parameters():
        if ".original_module." in name:  # peft keeps what a module was before training; it is not computed with
            continue
        count = prod(shape) if (shape := _shape_before_quantising(model, name, parameter)) else parameter.numel()
        total += count
        trainable += count if parameter.requires_grad else 0
    return trainable, total


def _no_layers(targets: Targets) -> list[str] | str:
    """What peft is told where no layer gets an adapter: it insists on a name where no tensor gets one either."""
    return [] if targets.parameters else DUMMY_TARGET_MODULES


def _names_to_save(targets: Targets, modules: list[str]) -> list[str]:
    short = shortest(targets.saved, set(modules) - set(targets.saved), boundary="")  # peft looks for no dot here
    return [name for name in short if name not in ADDED_BY_PEFT]


def _as_peft_reads_it(config: LoraConfig, lora: LoraSpec, model: Any, targets: Targets, *, packed: bool) -> LoraConfig:
    """The config, so written that peft, when it applies or loads it, means what was meant.

    For architectures whose experts transformers stores as one tensor, peft takes a layer called `gate_proj` for an
    expert's, wherever it is. Dense layers of that name are therefore adapted as tensors, which packed ones cannot be.
    """
    if isinstance(config.target_modules, str):
        return config
    mistaken = {name for name in config.target_modules if _is_taken_for_experts(name, model)}
    if not mistaken:
        return config
    layers = f"{', '.join(sorted(mistaken))} of this architecture"
    problems = adapted_tensor_problems(lora, layers)
    if packed:
        hint = "name other layers in lora.target_modules, or leave quantization out"
        problems.append(Problem(f"adapters on {layers} cannot lie over packed weights", "lora.target_modules", hint))
    if problems:
        raise ConfigError(problems)
    lost = [name for name in targets.modules if any(name == m or name.endswith(f".{m}") for m in mistaken)]
    config.target_modules = set(config.target_modules) - mistaken
    config.target_parameters = [*targets.parameters, *(f"{name}.weight" for name in lost)]
    return config


def _is_taken_for_experts(name: str, model: Any) -> bool:
    """Whether peft takes layers of this name for experts' that are stored as one tensor, alone or with others: of
    `gate_proj` without `up_proj` it raises ValueError."""
    alone = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(alone, model, None)
    except ValueError:
        return True
    return name not in alone.target_modules


def _shape_before_quantising(model: Any, name: str, parameter: torch.nn.Parameter) -> tuple[int, ...] | None:
    state = getattr(parameter, "quant_state", None)
    if state is None and name.endswith(".original") and ".parametrizations." in name:
        state = getattr(model.get_submodule(name.rpartition(".")[0])[0], "quant_state", None)
    return None if state is None else tuple(state.shape)


def over_packed_tensors(adapted: Any) -> None:
    """Let every adapter on a packed tensor work as it does on an unpacked one."""
    for module in adapted.modules():
        if isinstance(module, ParamWrapper) and is_held(module.get_base_layer(), module.parameter_name):
            module.__class__ = PackedTensorAdapter


class PackedTensorAdapter(ParamWrapper):  # type: ignore[misc]
    """peft's adapter on a tensor, over a packed one.

    Where a tensor is parametrised already, peft 0.21 leaves its own parametrisation behind after each forward pass, so
    that the adapter counts double in the second, and looks at the tensor before it adds itself to it, which is what the
    pass then reads from the cache.
    """

    def get_param(self) -> torch.Tensor:
        """A tensor of the shape, precision and place of the unpacked one: more is not asked of it."""
        return tensor_outline(self.get_base_layer(), self.parameter_name)

    @contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        held = self.get_base_layer().parametrizations[self.parameter_name]
        deltas = [_Delta(*self.get_delta_factors(name)) for name in active_adapters if name in self.lora_A]
        held.extend(deltas)
        try:
            with parametrize.cached():
                yield
        finally:
            del held[len(held) - len(deltas) :]


class _Delta(torch.nn.Module):
    """Adds scaling * left @ right to a tensor of shape (experts, …, …), in its precision."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.left, self.right, self.scaling = left, right, scaling

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return torch.baddbmm(weight, self.left, self.right, alpha=self.scaling)
