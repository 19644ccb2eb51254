"""A tokenizer for commands that only look at data: no weights are looked for. Imports transformers when called."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.api.installed import require_tokenizer
from rankzero.errors import ConfigError, Problem, RankzeroError, UsageError
from rankzero.wording import first_line

if TYPE_CHECKING:
    from rankzero.data.tokens.image_tokens import ImageRules
    from rankzero.model.context import Context
    from rankzero.spec.run_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TokenizerPlace:
    """The directory of a tokenizer, and how it may be loaded."""

    name: str
    trust_remote_code: bool = False
    model: str | None = None
    """The directory of the model's config and processor; None: where the tokenizer is."""


def find_tokenizer(model: ModelSpec, where: str = "model.name") -> TokenizerPlace:
    """The tokenizer of a model, fetched where it is on the Hub only. `where` is what named the model.

    Raises ConfigError, AccessError or ServiceError.
    """
    require_tokenizer()
    from rankzero.model.hub import TOKENIZER, snapshot

    def directory(name: str) -> str:
        if name.endswith(".gguf"):
            from rankzero.model.source import locate

            return str(locate(model).tokenizer)
        path = Path(os.path.expanduser(name))
        return str(path if path.is_dir() else snapshot(model.model_copy(update={"name": name}), TOKENIZER))

    try:
        tokenizer = directory(model.tokenizer_dir or model.local_dir or model.name)
    except RankzeroError as error:
        raise type(error)(Problem(p.what, where, p.hint) for p in error.problems) from error
    own = None
    if model.tokenizer_dir is not None:
        with suppress(RankzeroError):  # all that is asked of it is whether it sees images
            own = directory(model.local_dir or model.name)
    return TokenizerPlace(tokenizer, model.trust_remote_code, own)


def load_tokenizer(place: TokenizerPlace, chat_template: Path | None) -> Any:
    """The tokenizer, with another chat template where one is given. Raises ConfigError or UsageError."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place.name, trust_remote_code=place.trust_remote_code, local_files_only=True
        )
    except Exception as error:  # tokenizers raises bare ones, and a config that is wrong AttributeError; it is kept
        reason = first_line(error)
        from rankzero.model.files import if_own_code

        hint = if_own_code(error, "give a directory with tokenizer.json and tokenizer_config.json, or a Hub id")
        if isinstance(error, ImportError):
            hint = "this tokenizer needs that package: install it beside rankzero"
        raise ConfigError(f"the tokenizer cannot be loaded: {reason}", where=place.name, hint=hint) from error
    if chat_template is not None:
        from rankzero.data.tokens.built_in_templates import read_template

        try:
            tokenizer.chat_template = read_template(str(chat_template), tokenizer)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{chat_template} cannot be read: {error}", hint="give a Jinja file, or plain") from error
    return tokenizer


def load_context(place: TokenizerPlace) -> Context | None:
    """The context of the tokenizer's model; None where it is not known, or is no limit."""
    from rankzero.model.context import computed_context

    config = _config(place)
    return None if config is None else computed_context(config)


def _config(place: TokenizerPlace) -> Any:
    """The config of the tokenizer's model; None where there is only a tokenizer."""
    from transformers import AutoConfig

    name = place.model or place.name
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=place.trust_remote_code, local_files_only=True)
    except Exception:  # what is wrong with it is said where the model itself is needed
        return None


def load_image_rules(
    place: TokenizerPlace, tokenizer: Any, chat_template: Path | None, max_tokens: int | None = None
) -> ImageRules | None:
    """How images stand in the text of the tokenizer's model; None for one that sees none, and where there is only a
    tokenizer. A chat template that the processor has is given to the tokenizer, unless `chat_template` names one.
    Raises ConfigError."""
    name, config = place.model or place.name, _config(place)
    if getattr(config, "vision_config", None) is None:
        return None
    from rankzero.model.load import kind_of
    from rankzero.model.vision import Vision
    from rankzero.model.vision_rules import ProcessorPlace

    if kind_of(config, "writes") != "vision":
        return None
    vision = Vision(ProcessorPlace(name, place.name, place.trust_remote_code, max_tokens))
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
    try:
        ids = json.loads((Path(place.name) / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, TypeError, ValueError, AttributeError):
        return []
    ids = ids if isinstance(ids, list) else [ids]
    return [str(tokenizer.convert_ids_to_tokens(token)) for token in ids if isinstance(token, int)]
