"""Models from checked local files: which class, in which precision, on what. Knows nothing of adapters or data."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from rankzero.collector import look_as_usual
from rankzero.data.tokens.built_in_templates import read_template
from rankzero.errors import ConfigError
from rankzero.model import varlen
from rankzero.model.files import if_own_code, stored_precision
from rankzero.model.parts import after_encoder
from rankzero.model.quantize import forget_packing, keep_layout, outline_packed, quantization_config
from rankzero.model.source import ModelSource
from rankzero.model.tying import say_whether_tied, tie_as_stored
from rankzero.model.unread import check_unread
from rankzero.model.weights import saved_buffers
from rankzero.process_wide import ProcessWide
from rankzero.spec.run_spec import ModelSpec
from rankzero.spec.tasks import ModelUse
from rankzero.wording import first_line

_log = logging.getLogger("rankzero.model")

ModelKind = Literal["causal", "vision", "classifier"]

_CLASSES = {
    "causal": AutoModelForCausalLM,
    "vision": AutoModelForImageTextToText,
    "classifier": AutoModelForSequenceClassification,
}


@dataclass(frozen=True, slots=True)
class ClassHead:
    """What a classifier has besides its encoder."""

    labels: tuple[str, ...] | None = None
    """The classes by number; None: those of the model's own config."""
    pad_token_id: int | None = None
    """What fills rows up, by which the model finds a row's end; None: what its config says."""
    seed: int = 0
    """What decides the weights of a head that is not in the files, or there for another number of classes: those rows
    stand for other classes and cannot be kept."""


def settle_libraries() -> None:
    """To be called once they are imported. One progress bar at a time, ours; what the libraries warn of is either
    handled here or not the user's; and what they brought is not looked through for cycles."""
    look_as_usual()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if not torch.cuda.is_available():  # where DeepSpeed is installed, other libraries import it, and it would say so
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


@contextmanager
def _settled_for_now() -> Iterator[None]:
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    accelerator, filters = os.environ.get("DS_ACCELERATOR"), list(warnings.filters)
    settle_libraries()
    of_ours = [one for one in warnings.filters if one not in filters]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if accelerator is None:
            os.environ.pop("DS_ACCELERATOR", None)
        # Others stay: of libraries that were imported meanwhile, which say them once.
        cast(list[Any], warnings.filters)[:] = [one for one in warnings.filters if one not in of_ours]


settled_libraries = ProcessWide(_settled_for_now)
"""As `settle_libraries`, in a process that goes on as it was: a notebook's warnings are its own."""


def load_tokenizer(source: ModelSource, spec: ModelSpec, chat_template: str | None) -> Any:
    """The tokenizer, with the chat template of `chat_template` (a Jinja file, or `plain`) where given. Raises
    ConfigError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source.tokenizer), trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    except ImportError as error:
        raise missing_package(error, source.tokenizer) from error
    except Exception as error:  # tokenizers raises bare ones; the cause is kept
        if source.tokenizer == source.weights:
            load_config(source, spec)  # transformers reads it here too, and what is wrong with it is to be said of it
        raise ConfigError(
            f"the tokenizer cannot be loaded: {first_line(error)}",
            where=str(source.tokenizer),
            hint=if_own_code(error, "check tokenizer.json and tokenizer_config.json against the model's Hub page"),
        ) from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = read_template(chat_template, tokenizer)
        except (OSError, UnicodeDecodeError) as error:
            hint = "give the path of a Jinja file, or plain"
            what = f"{chat_template} cannot be read: {error}"
            raise ConfigError(what, where="data.chat_template", hint=hint) from error
    return tokenizer


def missing_package(error: ImportError, where: object) -> ConfigError:
    """What to say where a model's own code, or transformers', needs a package that is not installed."""
    return ConfigError(
        first_line(error), where=str(where), hint="this model needs that package: install it beside rankzero"
    )


def _not_imported(error: ImportError, where: object, spec: ModelSpec, attention: str | None) -> ConfigError:
    """What to say where a model cannot be made for want of a package: the attention's, where one was asked for. With
    `auto` only what is installed is chosen."""
    if attention is None or spec.attention == "auto":
        return missing_package(error, where)
    return ConfigError(first_line(error), where="model.attention", hint="use model.attention: auto")


def load_config(source: ModelSource, spec: ModelSpec) -> Any:
    """The model's config, which says of head and embeddings what its files do. Raises ConfigError where it is none that
    transformers knows."""
    try:
        config = AutoConfig.from_pretrained(
            str(source.weights), trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    except ImportError as error:
        raise missing_package(error, source.weights) from error
    except Exception as error:  # transformers' checks of fields raise a bare one, others an AttributeError
        raise ConfigError(
            f"config.json cannot be used: {first_line(error)}",
            where=str(source.weights),
            hint=if_own_code(error, "a newer transformers may know this architecture"),
        ) from error
    tie_as_stored(config, source.weights)
    return config


STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
"""Precisions by their names in safetensors files."""
_SAID = (*STORED.values(), torch.float64)


def stored_dtype(config: Any, weights: Path) -> torch.dtype:
    """The precision of a model's files: as its config says, or that of the part that writes (of a model that also sees
    images it may be said there alone), else as the files are; float32 where they mix precisions."""
    for said in (config.dtype, getattr(config.get_text_config(), "dtype", None)):
        dtype = getattr(torch, str(said).removeprefix("torch."), None)
        if dtype in _SAID:  # a config may say anything, and a result is written after all of the training
            return cast(torch.dtype, dtype)
    return STORED.get(stored_precision(weights) or "", torch.float32)


def unembedded_tokens(tokenizer: Any, config: Any, kind: ModelKind, source: ModelSource) -> dict[int, str]:
    """The added tokens that the embedding has no row for, by number: Gemma 3 1B shares its tokenizer with models that
    see images. Text that has none of them is trained all the same. Raises ConfigError where what has no row is a token
    of the vocabulary itself, or begins, ends or fills rows: that is the tokenizer of another model."""
    rows = config.get_text_config().vocab_size
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    own = vocabulary.keys() - tokenizer.get_added_vocab().keys()
    in_every_row = [vocabulary.get(str(tokenizer.special_tokens_map.get(name)), -1) for name in _ENDS]
    if kind == "classifier":
        in_every_row.append(padding_id(tokenizer, config))
    largest = max([*(vocabulary[token] for token in own), *in_every_row])
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer has ids up to {largest}, the model's embedding only {rows} rows",
            where=str(source.tokenizer),
            hint="use the tokenizer that belongs to the model (model.tokenizer_dir)",
        )
    return {number: token for token, number in vocabulary.items() if number >= rows}


_ENDS = ("bos_token", "eos_token")


def kind_of(config: Any, use: ModelUse) -> ModelKind:
    """Which class of model a config and a use ask for. Raises ConfigError where transformers has none for both."""
    if use == "classifies":
        kind: ModelKind = "classifier"
    elif getattr(config, "vision_config", None) is not None and _has_class(config, "vision"):
        kind = "vision"
    else:
        kind = "causal"
    if (kind != "classifier" and _sees_ahead(config)) or not _has_class(config, kind):
        raise ConfigError(f"{config.model_type} is {_NONE[kind][0]}", where="model.name", hint=_NONE[kind][1])
    if kind == "causal" and config.is_encoder_decoder:
        what = f"{config.model_type} is an encoder and a decoder, of which chats would train the decoder alone"
        raise ConfigError(
            what, where="model.name", hint="take a model that is a decoder: Llama, Qwen, Gemma and the like"
        )
    return kind


_NONE: dict[ModelKind, tuple[str, str]] = {
    "causal": ("no model that writes text", "task: classify puts texts into classes"),
    "classifier": ("no text classifier", "take another model, or task: sft"),
    "vision": ("no model that writes text from left to right: of a question each token sees all", "take another model"),
}
"""Of a config without a class of a kind, or whose tokens see those behind them: what it is not, and what to do."""


_SEE_AHEAD = frozenset({"bert-generation", "cpmant", "prophetnet", "xlnet"})
"""Model types without a masked language model whose class that writes text sees what stands behind a token."""


_TO_BOTH_SIDES = "use_bidirectional_attention"
"""Of Gemma's models for embeddings; others have `is_causal: false`."""


def _sees_ahead(config: Any) -> bool:
    """Whether a token sees those behind it in what transformers would load as a model that writes: an encoder, whatever
    class its files were saved by, or a model that was made one. It would learn to copy what it is to predict."""
    text = config.get_text_config()
    both_sides = getattr(text, "is_causal", True) is False or getattr(text, _TO_BOTH_SIDES, None) in (True, "all")
    if both_sides or any(name.endswith("ForMaskedLM") for name in config.architectures or ()):
        return True
    if getattr(config, "is_decoder", False) or getattr(config, "causal", False):
        return False
    encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder
    return encoder or config.model_type in _SEE_AHEAD


def _has_class(config: Any, kind: ModelKind) -> bool:
    auto = _CLASSES[kind]
    return type(config) in auto._model_mapping or auto.__name__ in (getattr(config, "auto_map", None) or {})


def load_model(
    source: ModelSource,
    spec: ModelSpec,
    config: Any,
    dtype: torch.dtype,
    *,
    device: torch.device | None = None,
    pack_on: torch.device | None = None,
    attention: str | None = None,
    head: ClassHead | None = None,
) -> Any:
    """The model in `dtype` with its cache switched off: on the CPU, or on `device` where its weights are quantised.

    `pack_on` quantises them there, one after the other. `attention` is transformers' name of an attention
    implementation, None for its own choice. With a `head` it is a classifier, without one a model that writes. Raises
    ConfigError.
    """
    kind = _kind(config, head)
    config = _own_config(config, head)
    quantised = quantization_config(spec, config, dtype, device, pack_on=pack_on)
    try:
        with drawn_from(0 if head is None else head.seed, device):
            model, report = _CLASSES[kind].from_pretrained(
                str(source.weights),
                config=config,
                dtype=dtype,
                attn_implementation=_by_part(config, attention),
                trust_remote_code=spec.trust_remote_code,
                use_safetensors=None if spec.trust_pickle else True,
                local_files_only=True,
                ignore_mismatched_sizes=kind == "classifier",
                quantization_config=quantised,
                device_map=None if spec.quantization == "none" else {"": device or torch.device("cpu")},
                output_loading_info=True,
            )
    except ImportError as error:
        raise _not_imported(error, source.weights, spec, attention) from error
    except Exception as error:  # safetensors, torch and transformers each have their own; the cause is kept
        raise ConfigError(
            f"the weights cannot be loaded: {first_line(error)}",
            where=str(source.weights),
            hint="a file may be cut off or belong to another model; copy it again",
        ) from error
    _check_loaded(model, kind, report, source)
    say_whether_tied(model)
    keep_layout(model)
    model.config.use_cache = False
    return model


def _by_part(config: Any, attention: str | None) -> str | dict[str, str] | None:
    """Rows end to end concern the text model alone: an image is attended to whole by its tower."""
    text = config.get_text_config()
    if attention != varlen.NAME or text is config:
        return attention
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    return {"": attention, **{name: attention if part is text else "sdpa" for name, part in parts.items()}}


def empty_model(
    spec: ModelSpec,
    config: Any,
    dtype: torch.dtype,
    *,
    attention: str | None = None,
    head: ClassHead | None = None,
    packed: bool = False,
) -> Any:
    """The same module tree in the same precision without memory: to check names, to count, to receive weights.

    Weights that loading would pack look as they are before, or `packed`. Raises ConfigError.
    """
    kind = _kind(config, head)
    config = _own_config(config, head)
    forget_packing(config)
    try:
        with torch.device("meta"):
            model = _CLASSES[kind].from_config(
                config,
                dtype=dtype,
                attn_implementation=_by_part(config, attention),
                trust_remote_code=spec.trust_remote_code,
            )
    except ImportError as error:
        raise _not_imported(error, spec.local_dir or spec.name, spec, attention) from error
    except Exception as error:  # whatever the code of an architecture makes of values that it does not know
        raise ConfigError(
            f"no model can be made of config.json: {type(error).__name__}: {first_line(error)}",
            where=str(spec.local_dir or spec.name),
            hint="check it against the model's Hub page; a newer transformers may know what it says",
        ) from error
    state = dict(model.named_parameters()) | saved_buffers(model)
    for name in _planned_in_float32(model, dtype, state):  # as loading does
        state[name].data = state[name].data.to(torch.float32)
    if packed:
        outline_packed(model, spec.quantization, dtype)
        keep_layout(model)
    model.config.use_cache = False
    return model


def kept_in_float32(model: Any, dtype: torch.dtype) -> frozenset[str]:
    """Names of the parameters that the architecture has in float32 where the others are `dtype`: routers that would
    choose other experts if they were rounded, for one. A model with adapters computes with its base as it was loaded.
    """
    return _planned_in_float32(model, dtype, (name for name, _ in model.named_parameters()))


def _planned_in_float32(model: Any, dtype: torch.dtype, names: Iterable[str]) -> frozenset[str]:
    plan = model._get_dtype_plan(dtype) if isinstance(model, PreTrainedModel) else {}
    return frozenset(name for name in names if any(fnmatch(name, f"*{pattern}*") for pattern in plan))


def meta_model(config: Any, spec: ModelSpec, use: ModelUse) -> Any:
    """An `empty_model` whose precision and classes do not matter: to check names before anything is read."""
    return empty_model(spec, config, torch.float32, head=ClassHead() if use == "classifies" else None)


def padding_id(tokenizer: Any, config: Any) -> int:
    """What fills rows up where the model looks for the end of a row by it; any id serves where none is set."""
    ids = (tokenizer.pad_token_id, getattr(config.get_text_config(), "pad_token_id", None), tokenizer.eos_token_id)
    return next((number for number in ids if isinstance(number, int)), 0)


_PADDING_COUNTS = frozenset({"canine", "convbert", "fnet", "funnel", "nystromformer", "xlnet", "yoso"})


def padding_counts(config: Any) -> bool:
    """Whether a classifier says another class of a text that is filled up, whatever the mask says: its layers mix
    neighbours or all places, or it looks at the last one. Texts that share a pass have to be of one length then."""
    return config.model_type in _PADDING_COUNTS


_LEFT_PADDING_COUNTS = frozenset(
    {
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "cpmant", "deepseek_v4", "marian", "mbart"),
        *("mvp", "pegasus", "plbart", "recurrent_gemma", "roformer", "rwkv", "trocr", "whisper"),
    }
)


def left_padding_counts(model: Any) -> bool:
    """Whether a model says something else of a prompt that stands behind padding, whatever the mask says: it has states
    that the padding goes into, or counts places from the first column. One that takes no mask does, as xLSTM."""
    takes_mask = "attention_mask" in inspect.signature(type(model).forward).parameters
    return not takes_mask or model.config.model_type in _LEFT_PADDING_COUNTS


def stop_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every id that ends a generation: the tokenizer's, the config's and the generation config's."""
    found: list[int] = []
    for holder in (tokenizer, model.config, getattr(model, "generation_config", None)):
        ids = getattr(holder, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else []
    return sorted(set(found))


@contextmanager
def drawn_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Random numbers inside follow from `seed` alone, and those after the block from what was before it."""
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield


def _kind(config: Any, head: ClassHead | None) -> ModelKind:
    return kind_of(config, "writes" if head is None else "classifies")


def _own_config(config: Any, head: ClassHead | None) -> Any:
    """A copy that the model may change; a classifier's has the classes, and the id that it finds a row's end by."""
    config = copy.deepcopy(config)
    if head is not None:
        if head.labels is not None:
            config.id2label = dict(enumerate(head.labels))
            config.label2id = {label: number for number, label in enumerate(head.labels)}
        if head.pad_token_id is not None:
            config.get_text_config().pad_token_id = head.pad_token_id
        config.problem_type = "single_label_classification"
    return config


def _check_loaded(model: Any, kind: ModelKind, report: dict[str, Any], source: ModelSource) -> None:
    """Raise ConfigError where weights were made up that should have been read."""
    drawn = {*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])}
    if kind == "classifier":
        drawn = {name for name in drawn if not after_encoder(model, name)}
    if drawn:
        first = ", ".join(sorted(drawn)[:3])
        raise ConfigError(
            f"{len(drawn)} of the model's weights are not in its files, or in another shape: {first}",
            where=str(source.weights),
            hint="the files may belong to another architecture than config.json says; copy them again",
        )
    check_unread(model, report["unexpected_keys"], source.weights)
