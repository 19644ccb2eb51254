"""What tokenising needs of a tokenizer object, as plain data that is cheap to send and to hash.

Imports neither transformers nor torch: whoever loads the tokenizer hands it in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from rankzero.data.tokens.surroundings import surroundings
from rankzero.errors import ConfigError

if TYPE_CHECKING:  # workers need not load pydantic
    from rankzero.spec.tasks import Trains


class Tokenizer(Protocol):
    """The part of transformers' fast tokenizers that is used."""

    @property
    def is_fast(self) -> bool: ...
    @property
    def backend_tokenizer(self) -> Any: ...
    @property
    def chat_template(self) -> Any: ...
    @property
    def eos_token(self) -> Any: ...
    @property
    def eos_token_id(self) -> Any: ...
    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer taken apart. `backend` is tokenizers' JSON; `specials` are the texts of all special tokens,
    the longest first."""

    backend: str
    chat_template: str | None
    variables: Mapping[str, str]
    eos_token: str
    eos_id: int
    """-1, and the token empty, where there is none."""
    specials: tuple[str, ...]
    opens_with_bos: bool = False
    """Whether the tokenizer itself begins every text with its BOS token."""
    tool_template: str | None = None
    """The chat template for conversations with tools, where the model has two."""

    @property
    def fingerprint(self) -> str:
        """Changes when the same text could become other tokens."""
        rest = json.dumps(
            [self.chat_template, sorted(self.variables.items()), self.eos_token, self.eos_id]
            + ([self.tool_template] if self.tool_template else [])
        )
        whole = _hash_begun(self.backend).copy()
        whole.update(b", " + rest[1:].encode())
        return str(whole.hexdigest())


def take_apart(tokenizer: Tokenizer, trains: Trains = "answers") -> TokenizerParts:
    """The parts of a fast tokenizer. Raises ConfigError where one that the task needs is missing."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it cannot say which characters a token stands for",
            where="model.tokenizer_dir",
            hint="use a tokenizer directory with tokenizer.json (AutoTokenizer.from_pretrained(…).save_pretrained(…))",
        )
    variables = template_variables(tokenizer)
    eos_id = tokenizer.eos_token_id if "eos_token" in variables else None
    if eos_id is None and trains != "label":
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so a model could not learn where to stop",
            where="model.tokenizer_dir",
            hint="name it in tokenizer_config.json: eos_token",
        )
    backend, named = _backend(tokenizer.backend_tokenizer.to_str())
    eos_token = variables.get("eos_token", "")
    specials = {eos_token, *named} - {""}
    return TokenizerParts(
        backend=backend,
        chat_template=single_template(tokenizer.chat_template),
        variables=variables,
        eos_token=eos_token,
        eos_id=-1 if eos_id is None else int(eos_id),
        specials=tuple(sorted(specials, key=lambda token: (-len(token), token))),
        opens_with_bos=opens_with_bos(tokenizer),
        tool_template=tool_template(tokenizer.chat_template),
    )


def template_variables(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by the names that a chat template has for them."""
    # Asked through the map: reading an unset token itself makes transformers log an error.
    return {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if not isinstance(token, (list, dict))
    }


@lru_cache(2)
def _backend(text: str) -> tuple[str, frozenset[str]]:
    """The backend as it is used, and its special tokens. Remembered: a large vocabulary takes a second, and a run asks
    for it several times."""
    backend = orjson.loads(text)
    # How someone padded or cut with this object before is not part of what it is.
    backend["truncation"] = backend["padding"] = None
    _keep_whole_offsets(backend.get("post_processor"))
    specials = frozenset(token["content"] for token in backend["added_tokens"] if token["special"])
    return json.dumps(backend, ensure_ascii=False, sort_keys=True), specials


@lru_cache(2)
def _hash_begun(backend: str) -> Any:
    """The hash of a JSON list that begins with this text."""
    return hashlib.sha256(b"[" + json.dumps(backend).encode())


def opens_with_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself begins every text with its BOS token."""
    bos = tokenizer.special_tokens_map.get("bos_token")
    if bos is None or not tokenizer.is_fast:
        return False
    backend = tokenizer.backend_tokenizer
    return surroundings(backend).before[:1] == [backend.token_to_id(str(bos))]


def _keep_whole_offsets(post_processor: Any) -> None:
    """Some tokenizers leave a token's leading space out of its offsets; then a token that joins the end of a prompt
    with the start of an answer would look as if it did not. The tokens themselves stay the same."""
    if isinstance(post_processor, dict):
        if "trim_offsets" in post_processor:
            post_processor["trim_offsets"] = False
        for part in post_processor.get("processors", ()):
            _keep_whole_offsets(part)


def tool_template(template: Any) -> str | None:
    """The chat template where tools are given, if that is one of its own: transformers chooses it by its name."""
    named = template.get("tool_use") if isinstance(template, Mapping) else None
    return named if isinstance(named, str) else None


def single_template(template: Any) -> str | None:
    """The chat template, of several the default. Raises ConfigError where there is none among them."""
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, Mapping) and isinstance(template.get("default"), str):
        return str(template["default"])
    names = ", ".join(template) if isinstance(template, Mapping) else type(template).__name__
    hint = "choose one: save it to a file and set data.chat_template"
    raise ConfigError(f"the tokenizer has several chat templates and no default: {names}", hint=hint)
