"""Chat templates: Jinja in a sandbox, as the model families write them. Knows text; nothing of tokens or rules.

Rendering happens in data workers, which are spared the seconds and hundreds of megabytes that transformers needs to
start. A test compares every result with transformers' own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from rankzero.data.rows.formats.reasoning import REASONING_KEYS
from rankzero.data.tokens.call_form import CallForm, find_call_form
from rankzero.errors import ConfigError

Turns = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Span = tuple[int, int]
"""Characters from, to (exclusive)."""

TODAY = datetime(2024, 7, 26)
"""The date that templates see. A real date would make the same rows other tokens tomorrow, so a run could not be
continued exactly; this one is what Llama 3's templates fall back to."""

# What a `{% generation %}` block prints around itself: noncharacters, which no valid text contains. They are taken out
# again, and where they stood is where the block was, even when the template trimmed or moved it.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


_WHERE_IT_IS = (
    "a model's own is its chat_template.jinja, or in its tokenizer_config.json: copy that again; or set "
    "data.chat_template to another file, or to plain"
)


class TemplateRefusedError(Exception):
    """The template cannot or will not render this conversation; says why."""


class ChatTemplate:
    """A compiled template. `variables` are what it finds by name: the special tokens (`bos_token`, …), and what the
    spec gives it (data.chat_template_kwargs)."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        self._variables = {"documents": None, **variables}
        self.marks_turns = re.search(r"\{%[-+]?\s*generation\b", source) is not None
        self.reasoning_keys = tuple(key for key in REASONING_KEYS if re.search(_read_as(key), source))
        """Under which names it reads a turn's reasoning."""
        self.knows_thoughts = "</think>" in source
        """Whether it has rules of its own for `<think>…</think>` in a text."""
        if not source.strip():
            raise ConfigError("the chat template is empty", where="data.chat_template", hint=_WHERE_IT_IS)
        try:
            self._template, self.asks_for = _compiled(source)
            """`asks_for`: texts that it looks for in what turns say, so that it may write a turn differently where one
            is there."""
        except jinja2.TemplateSyntaxError as error:
            what = f"the chat template is not valid Jinja: {error.message} (line {error.lineno} of the template)"
            raise ConfigError(what, where="data.chat_template", hint=_WHERE_IT_IS) from error

    def render(self, turns: Turns, *, tools: Tools = (), opening: bool = False) -> str:
        """The text of these turns; `opening` adds the head of the assistant turn that is to follow."""
        text, _ = self.render_marked(turns, tools=tools, opening=opening)
        return text

    @cached_property
    def opening(self) -> str:
        """What opens an answer in use; "" where that is nothing, or cannot be told."""
        turns = [{"role": "user", "content": "question"}]
        try:
            asked, opened = self.render(turns), self.render(turns, opening=True)
        except TemplateRefusedError:
            return ""
        return opened[len(asked) :] if opened.startswith(asked) else ""

    @cached_property
    def call_form(self) -> CallForm:
        """How it takes tool calls."""
        return find_call_form(self.render)

    def render_marked(self, turns: Turns, *, tools: Tools = (), opening: bool = False) -> tuple[str, list[Span]]:
        """The text, and where its `{% generation %}` blocks are."""
        try:
            text = self._template.render(
                messages=turns, tools=tools or None, add_generation_prompt=opening, **self._variables
            )
        except Exception as error:  # a template is foreign code: it may fail in any way
            reason = str(error) or type(error).__name__
            raise TemplateRefusedError(reason.splitlines()[0]) from error
        return _take_marks(text) if self.marks_turns else (text, [])


@lru_cache(8)
def _compiled(source: str) -> tuple[jinja2.Template, tuple[str, ...]]:
    """And what it asks for. Remembered: each prompt may be asked with a template of its own variables, and compiling
    takes much longer than rendering. Raises jinja2.TemplateSyntaxError."""
    environment = _environment()
    return environment.from_string(source), _asked_for(environment.parse(source))


def _read_as(key: str) -> str:
    """A pattern of how a template reads a key of a turn: `turn.key`, `turn['key']`, `'key' in turn`."""
    return rf"(?:\.|['\"])\b{key}\b"


def _asked_for(template: nodes.Template) -> tuple[str, ...]:
    """The texts with which a template compares, or which it hands to methods of texts; but no names of keys and roles,
    nor are the tags of reasoning, which turns tell of themselves."""
    asking = (*template.find_all(nodes.Compare), *template.find_all(nodes.Call))
    texts = {
        text.value.strip() for place in asking for text in place.find_all(nodes.Const) if isinstance(text.value, str)
    }
    return tuple(sorted(text for text in texts if len(text) > 1 and not _NAME.fullmatch(text) and text not in _TAGS))


_NAME = re.compile(r"[\w .:]*")
_TAGS = ("<think>", "</think>")


def _take_marks(text: str) -> tuple[str, list[Span]]:
    pieces: list[str] = []
    spans: list[Span] = []
    length = 0
    for number, piece in enumerate(text.split(_OPEN)):
        inside, closed, after = piece.partition(_CLOSE)
        if bool(number) != bool(closed) or _CLOSE in after:
            raise TemplateRefusedError("the template's {% generation %} blocks are nested or cut apart")
        if number and inside:
            spans.append((length, length + len(inside)))
        pieces += (inside, after)
        length += len(inside) + len(after)
    return "".join(pieces), spans


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise, strftime_now=TODAY.strftime, namespace=_TemplateNamespace, dict=_template_dict
    )
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`: the part of the text that the assistant is to produce."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


class _TemplateNamespace(Namespace):
    """A namespace whose names cannot shadow what Python finds by underscores: templates come from strangers."""

    def __init__(self, *pairs: Any, **values: Any) -> None:
        super().__init__()
        for name, value in dict(*pairs, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template may not set {name!r}")
        super().__setitem__(name, value)


def _template_dict(*pairs: Any, **values: Any) -> dict[Any, Any]:
    """`dict(…)` for templates, without the type itself."""
    return dict(*pairs, **values)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes < and > for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
