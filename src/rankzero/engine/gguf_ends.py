"""What ends an answer, for a GGUF file: that has one end token, where a model here may name several. Loads a tokenizer.

llama.cpp stops at the file's end token, and at tokens with some names. One that only training has taught is neither,
and the converter does not look at the generation config, which names it.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rankzero.data.tokens.surroundings import surroundings
from rankzero.data.tokens.token_rules import TokenRules
from rankzero.engine.taught_stops import written_stop
from rankzero.errors import ConfigError
from rankzero.model.load import load_tokenizer
from rankzero.model.source import ModelSource
from rankzero.run_dir.atomic import write_json
from rankzero.spec.run_spec import ModelSpec

_STOPPED_AT = frozenset(
    {
        *("<|endoftext|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        *("<|return|>", "<|call|>", "<end_of_utterance>"),
    }
)
"""Names by which llama.cpp knows an end without being told; of one that is not here it is told."""
_TOKENIZER_CONFIG = "tokenizer_config.json"


@contextmanager
def told_of_its_end(model: Path, template_kwargs: Mapping[str, Any]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A model's directory as the converter is to see it, for the duration, and what there is to know of a file that is
    made of it: links to its files, and the taught end in the place of the tokenizer's."""
    said: tuple[str, ...] = ()
    if template_kwargs:
        given = shlex.quote(json.dumps(dict(template_kwargs)))
        said = (f"its chat template was given more in training: llama-server --chat-template-kwargs {given}",)
    tokenizer = _tokenizer_of(model)
    end = None if tokenizer is None else _unknown_end(tokenizer, _stop_ids(model), template_kwargs)
    if end is None:
        yield model, said
        return
    config = json.loads((model / _TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    after_texts = config.get("add_eos_token") or surroundings(tokenizer.backend_tokenizer).after
    if after_texts or _writes_eos(tokenizer, end, template_kwargs):  # prompts would have it, too
        yield model, (f"llama.cpp does not stop at {end}, which ends an answer: give it that as a stop", *said)
        return
    with tempfile.TemporaryDirectory(prefix="rankzero-gguf-") as place:
        told = Path(place) / model.name
        told.mkdir()
        for file in model.iterdir():
            if file.name != _TOKENIZER_CONFIG:
                (told / file.name).symlink_to(file.absolute())
        write_json(told / _TOKENIZER_CONFIG, {**config, "eos_token": end})
        said = (f"its end token is {end}, which ends an answer, in the place of {tokenizer.eos_token}", *said)
        yield told, said


def _tokenizer_of(model: Path) -> Any:
    """None where it cannot be read here, as one with code of its own: the converter may know it."""
    if not (model / _TOKENIZER_CONFIG).is_file():
        return None
    try:
        return load_tokenizer(ModelSource(model, model, model.name), ModelSpec(name=str(model)), None)
    except ConfigError:
        return None


def _unknown_end(tokenizer: Any, named: list[int], template_kwargs: Mapping[str, Any]) -> str | None:
    """The token that ends an answer, one of those `named` as ends, where llama.cpp would not stop at it."""
    try:
        end = written_stop(tokenizer, TokenRules(template_kwargs=template_kwargs))
    except ConfigError:  # a tokenizer that is not trained with here
        return None
    if end is None or end == tokenizer.eos_token_id or end not in named:
        return None
    name: str = tokenizer.added_tokens_decoder[end].content
    return None if name in _STOPPED_AT else name


def _writes_eos(tokenizer: Any, end: str, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether the chat template would write `end` as well, where it writes the tokenizer's own end now."""
    turns = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    texts = []
    for token in (tokenizer.eos_token, end):
        try:
            texts.append(
                tokenizer.apply_chat_template(turns, tokenize=False, **{**template_kwargs, "eos_token": token})
            )
        except TemplateError:  # it wants other turns than these
            return True
    return bool(texts[0] != texts[1])


def _stop_ids(model: Path) -> list[int]:
    """What the generation config names."""
    try:
        ids = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return ids if isinstance(ids, list) else [ids]
