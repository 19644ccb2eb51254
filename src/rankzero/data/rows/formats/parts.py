"""What turns hold in parts, as OpenAI, Anthropic, Gemini, Bedrock and LLaMA-Factory write them. Knows no format.

A part is text, an image, reasoning, a tool call or the answer to one. What is none of these is a problem that names it:
no part is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.images import Slots, part_source
from rankzero.data.rows.formats.json_text import write_text
from rankzero.data.rows.formats.reasoning import thinking_part
from rankzero.data.rows.formats.tools import Call, read_calls
from rankzero.data.rows.problems import RowProblem, kind

Part = Mapping[str, Any]

_TEXTS = (None, "text", "input_text", "output_text")
_HINT = "parts are text, images, reasoning, tool calls and their answers: write it as one of these, or remove the row"


@dataclass(slots=True)
class Content:
    """What a turn says: its text, where in it images stand, its reasoning, its calls, and the answers of tools that
    come before the text."""

    text: str = ""
    offsets: tuple[int, ...] = ()
    thought: str = ""
    calls: tuple[Call, ...] = ()
    answers: list[Message] = field(default_factory=list)


def read_content(value: str | list[Any], slots: Slots, line: int, where: str) -> Content | RowProblem:
    """A turn's content, a text or a list of parts; `where` names it in problems."""
    if isinstance(value, str):
        return Content(*slots.take(value))
    reader = _Reader(slots, line, where)
    for index, part in enumerate(value):
        problem = reader.take(part, f"{where}[{index}]")
        if problem is not None:
            return problem
    text = "".join(reader.texts)
    return Content(text, tuple(reader.offsets), "\n".join(reader.thoughts), tuple(reader.calls), reader.answers)


class _Reader:
    """The parts of one turn, in their order."""

    def __init__(self, slots: Slots, line: int, where: str) -> None:
        self._slots, self._line, self._where = slots, line, where
        self.texts: list[str] = []
        self.offsets: list[int] = []
        self.thoughts: list[str] = []
        self.calls: list[Call] = []
        self.answers: list[Message] = []
        self._at = 0

    def take(self, part: object, at: str) -> RowProblem | None:
        """Read one part, or say why it cannot be."""
        if not isinstance(part, Mapping):
            return self._problem("unknown content part", f"{at} is {kind(part)}, not an object", _HINT)
        if (thought := _thought(part)) is not None:
            return self._reasoning(thought)
        if (text := _text(part)) is not None:
            return self._text(text)
        if (call := _call(part)) is not None:
            found, problems = read_calls(call, self._line, at)
            self.calls += found
            return problems[0] if problems else None
        if (answer := _answer(part)) is not None:
            return self._answer(answer)
        if (source := part_source(part)) is not False:
            return self._image(cast("str | None", source))
        what = f"{self._where} has a part that is not read: {_name(part)[:60]}"
        return self._problem("unknown content part", what, _HINT)

    def _reasoning(self, thought: str) -> RowProblem | None:
        if self._at or self.calls:
            hint = 'reasoning is {"type": "thinking", "thinking": "…"} before the text of the same turn'
            return self._problem("reasoning after the text", f"{self._where} has reasoning behind text", hint)
        self.thoughts.append(thought)
        return None

    def _text(self, text: str) -> RowProblem | None:
        if self.calls and text.strip():
            hint = "the text of a turn comes before its calls; what follows their answers is a turn of its own"
            return self._problem("text after a tool call", f"{self._where} has text behind a tool call", hint)
        text, places = self._slots.take(text, self._at)
        self.texts.append(text)
        self.offsets += places
        self._at += len(text)
        return None

    def _image(self, source: str | None) -> RowProblem | None:
        self._slots.add(source)
        self.offsets.append(self._at)
        return None

    def _answer(self, answer: Message | str) -> RowProblem | None:
        if isinstance(answer, str):
            hint = "a tool's answer is text or JSON"
            return self._problem("bad tool answer", f"{self._where} has a tool's answer with {answer}", hint)
        if self._at or self.offsets:
            hint = "tools answer before anything else is said: put the answer first"
            what = f"{self._where} has a tool's answer behind text"
            return self._problem("tool answer after the text", what, hint)
        self.answers.append(answer)
        return None

    def _problem(self, reason: str, what: str, hint: str) -> RowProblem:
        return RowProblem(self._line, reason, what, hint)


def _text(part: Part) -> str | None:
    if part.get("type") not in _TEXTS:
        return None
    value = part.get("text", part.get("value") if "type" in part else None)
    return value if isinstance(value, str) else None


def _thought(part: Part) -> str | None:
    if part.get("thought") is True and isinstance(part.get("text"), str):
        return str(part["text"])
    inner = part.get("reasoningContent")
    if isinstance(inner, Mapping):
        inner = inner.get("reasoningText")
        return inner["text"] if isinstance(inner, Mapping) and isinstance(inner.get("text"), str) else None
    return thinking_part(part)


def _call(part: Part) -> object | None:
    """A call in a form that `read_calls` takes; None where the part is none."""
    if part.get("type") in ("tool_call", "function_call") and "value" in part:
        return cast(object, part["value"])
    if part.get("type") == "tool_use":
        return _function(part.get("id"), part.get("name"), part.get("input"))
    if isinstance(inner := _under(part, "toolUse", "tool_use"), Mapping):
        return _function(inner.get("toolUseId"), inner.get("name"), inner.get("input"))
    if isinstance(inner := _under(part, "functionCall", "function_call"), Mapping):
        return _function(inner.get("id"), inner.get("name"), inner.get("args") or {})
    return None


def _function(name: object, function: object, arguments: object) -> dict[str, Any]:
    return {"id": name, "function": {"name": function, "arguments": arguments}}


def _answer(part: Part) -> Message | str | None:
    """A tool's answer, or what is in it that is no text; None where the part is none."""
    if part.get("type") == "tool_result":
        return _told(part.get("content", ""), part.get("tool_use_id"))
    if isinstance(inner := _under(part, "toolResult", "tool_result"), Mapping):
        return _told(inner.get("content", ""), inner.get("toolUseId"))
    if isinstance(inner := _under(part, "functionResponse", "function_response"), Mapping):
        name = inner.get("name")
        return _told(inner.get("response", ""), inner.get("id"), name if isinstance(name, str) else None)
    return None


def _told(value: object, call: object, name: str | None = None) -> Message | str:
    texts = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Mapping) and isinstance(item.get("text"), str) and item.get("type") in _TEXTS:
            texts.append(item["text"])
        elif isinstance(item, Mapping) and ("type" in item or _name(item) in ("image", "document", "video")):
            return f"a part that is not read: {_name(item)[:60]}"
        else:
            item = item["json"] if isinstance(item, Mapping) and item.keys() == {"json"} else item
            texts.append(item if isinstance(item, str) else write_text(item))
    return Message("tool", "\n".join(texts), tool_call_id=call if isinstance(call, str) and call else None, name=name)


def _under(part: Part, *names: str) -> object:
    return next((part[name] for name in names if part.get(name) is not None), None) if "type" not in part else None


def _name(part: Part) -> str:
    """What a part calls itself: its type, what kind of file it is, or its first key."""
    return next(_names(part))


def _names(part: Part) -> Iterator[str]:
    if isinstance(part.get("type"), str):
        yield str(part["type"]) + (" without a string" if part["type"] in _TEXTS else "")
    for value in part.values():
        for key in ("mimeType", "mime_type"):
            if isinstance(value, Mapping) and isinstance(value.get(key), str):
                yield value[key]
    yield from (str(key) for key in part)
    yield "an empty object"
