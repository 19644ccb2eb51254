"""A tokenizer for commands that only look at data: no weights are looked for. Imports transformers when called."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rankzero.data.tokens.image_tokens import ImageRules
    from rankzero.spec.run_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TokenizerPlace:
    """Where a tokenizer is, and how it may be loaded."""

    name: str
    """A directory or a Hub id."""
    revision: str | None = None
    trust_remote_code: bool = False
    local_files_only: bool = False
    model: str | None = None
    """Where the model's config and processor are; None: where the tokenizer is."""

    @classmethod
    def of(cls, model: ModelSpec) -> TokenizerPlace:
        """That of a run's model. Raises as `locate` does, for a .gguf file."""
        name = model.tokenizer_dir or model.local_dir or model.name
        if name.endswith(".gguf"):
            from rankzero.model.source import locate

            name = str(locate(model).tokenizer)
        own = model.local_dir or model.name
        other = None if own == name or own.endswith(".gguf") else own
        return cls(name, model.revision, model.trust_remote_code, model.local_files_only, other)


def load_tokenizer(place: TokenizerPlace, chat_template: Path | None) -> Any:
    """The tokenizer, with another chat template where one is given. Raises ConfigError or UsageError."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place.name,
            revision=place.revision,
            trust_remote_code=place.trust_remote_code,
            local_files_only=place.local_files_only,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "give a directory with tokenizer.json and tokenizer_config.json, or a Hub id"
        raise ConfigError(f"the tokenizer cannot be loaded: {reason}", where=place.name, hint=hint) from error
    if chat_template is not None:
        from rankzero.data.tokens.built_in_templates import read_template

        try:
            tokenizer.chat_template = read_template(str(chat_template), tokenizer)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{chat_template} cannot be read: {error}", hint="give a Jinja file, or plain") from error
    return tokenizer


def load_image_rules(
    place: TokenizerPlace, tokenizer: Any, chat_template: Path | None, max_tokens: int | None = None
) -> ImageRules | None:
    """How images stand in the text of the tokenizer's model; None for one that sees none, and where there is only a
    tokenizer. A chat template that the processor has is given to the tokenizer, unless `chat_template` names one.
    Raises ConfigError."""
    from transformers import AutoConfig

    name = place.model or place.name
    options: dict[str, Any] = {
        "revision": place.revision,
        "trust_remote_code": place.trust_remote_code,
        "local_files_only": place.local_files_only,
    }
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError):
        return None
    if getattr(config, "vision_config", None) is None:
        return None
    from rankzero.model.load import kind_of
    from rankzero.model.vision import Vision
    from rankzero.model.vision_rules import ProcessorPlace

    if kind_of(config, "writes") != "vision":
        return None
    vision = Vision(ProcessorPlace(name, tokenizer=place.name, max_tokens=max_tokens, **options))
    if chat_template is None and vision.chat_template is not None:
        tokenizer.chat_template = vision.chat_template
    return vision.rules


def served_prompt(
    tokenizer: Any,
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt that transformers, and vLLM with it, make of these turns. `kwargs`: as data.chat_template_kwargs."""
    prompt = tokenizer.apply_chat_template(
        list(turns), tools=list(tools) or None, add_generation_prompt=True, tokenize=False, **(kwargs or {})
    )
    return str(prompt)


def stop_tokens(tokenizer: Any, place: TokenizerPlace) -> list[str]:
    """Tokens at which serving stops besides the tokenizer's end token: those of generation_config.json, where it is on
    this machine."""
    file: Any = Path(place.name) / "generation_config.json"
    if not Path(place.name).is_dir():
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(place.name, "generation_config.json", revision=place.revision)
    try:
        ids = json.loads(Path(file).read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, TypeError, ValueError, AttributeError):
        return []
    ids = ids if isinstance(ids, list) else [ids]
    return [str(tokenizer.convert_ids_to_tokens(token)) for token in ids if isinstance(token, int)]


def require(*modules: str) -> None:
    """Raise ConfigError for what is not installed: the launcher alone can be without what reads data."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ValueError:
            found = None
        if found is None:
            hint = 'pip install "rankzero[train]"'
            raise ConfigError(f"this command needs {name}, which is not installed", hint=hint)
