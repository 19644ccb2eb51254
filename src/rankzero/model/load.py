"""Tokenizer and causal language model from checked local files. Knows nothing of adapters, data or devices' choice."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from rankzero.errors import ConfigError
from rankzero.model.source import ModelSource
from rankzero.spec.run_spec import ModelSpec


def quiet_libraries() -> None:
    """One progress bar at a time, ours; what the libraries warn of is either handled here or not the user's."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def load_tokenizer(source: ModelSource, spec: ModelSpec, chat_template: str | None) -> Any:
    """The tokenizer, with the chat template of `chat_template` (a Jinja file) where given. Raises ConfigError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source.tokenizer), trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the tokenizer cannot be loaded: {_first_line(error)}",
            where=str(source.tokenizer),
            hint="check tokenizer.json and tokenizer_config.json against the model's Hub page",
        ) from error
    if chat_template is not None:
        path = Path(chat_template)
        try:
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}", where="data.chat_template", hint="give the path of a Jinja file"
            ) from error
    return tokenizer


def load_config(source: ModelSource, spec: ModelSpec) -> Any:
    """The model's config. Raises ConfigError where it is no config of a causal language model."""
    try:
        return AutoConfig.from_pretrained(
            str(source.weights), trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"config.json cannot be used: {_first_line(error)}",
            where=str(source.weights),
            hint="a newer transformers may know this architecture; model.trust_remote_code runs the model's own code",
        ) from error


def check_vocabulary(tokenizer: Any, config: Any, source: ModelSource) -> None:
    """Raise ConfigError where the tokenizer can produce an id that the embedding has no row for."""
    rows = config.get_text_config().vocab_size
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer has ids up to {largest}, the model's embedding only {rows} rows",
            where=str(source.tokenizer),
            hint="use the tokenizer that belongs to the model (model.tokenizer_dir)",
        )


def load_model(source: ModelSource, spec: ModelSpec, config: Any, dtype: torch.dtype) -> Any:
    """The model on the CPU in `dtype`, its cache switched off. Raises ConfigError."""
    attention = None if spec.attention == "auto" else spec.attention
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(source.weights),
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            trust_remote_code=spec.trust_remote_code,
            use_safetensors=None if spec.trust_pickle else True,
            local_files_only=True,
        )
    except ImportError as error:
        raise ConfigError(_first_line(error), where="model.attention", hint="use model.attention: auto") from error
    except Exception as error:  # safetensors, torch and transformers each have their own; the cause is kept
        raise ConfigError(
            f"the weights cannot be loaded: {_first_line(error)}",
            where=str(source.weights),
            hint="a file may be cut off or belong to another model; copy it again",
        ) from error
    model.config.use_cache = False
    return model


def meta_model(config: Any, *, trust_remote_code: bool) -> Any:
    """The model's module tree without memory: to check names and count parameters before weights are read."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def stop_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every id that ends a generation: the tokenizer's, the config's and the generation config's."""
    found: list[int] = []
    for holder in (tokenizer, model.config, getattr(model, "generation_config", None)):
        ids = getattr(holder, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else []
    return sorted(set(found))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
