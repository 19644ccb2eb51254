"""Where assistant turns begin and end in a text, learnt from small conversations of the same structure.

A template writes the same characters around all turns that stand in the same surroundings. They are looked for once, in
a conversation of stand-ins that is short enough to be rendered again and again, and found again in the texts of rows,
each of which is then rendered once. Nothing is believed: where a text does not consist of exactly what was learnt, the
row itself is looked at in full. Knows templates and conversations; nothing of rules or token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rankzero.data.rows.conversation import Conversation, Message, Role
from rankzero.data.tokens.chat_text import ChatText, KnownTurn, LeftOutError, RewrittenError, names_shown
from rankzero.data.tokens.own_words import first_lost
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError
from rankzero.data.tokens.tokenizer import TokenizerParts

_SHORT = 8
"""A conversation of as many turns is its own structure; in a longer one each turn is seen with its surroundings."""
_BEGINNING = 3
_REMEMBERED = 4096

# What stands for a string: noncharacters at either end, others than chat_text.STAND_IN has, so that it differs from it
# in its first character already. Ids are of the form that templates want which look at them.
_OPEN, _CLOSE, _ID = "\ufdd4", "\ufdd5", "q7Zk0W"
_STAND_IN = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}|{_ID}[0-9]{{3}}")


class Shape(NamedTuple):
    """What of a turn a template can tell without reading its text."""

    role: Role
    says: bool
    thinks: str = ""
    """Its reasoning is "apart", in its "text", or not there."""
    calls: tuple[tuple[bool, bool], ...] = ()
    """Of each call: whether it has an id, and arguments."""
    answers: bool = False
    """Whether it says which call it answers."""
    named: bool = False


class Region(NamedTuple):
    """What stands between an assistant turn and the next one, or an end of the text: `literals` and, between each two
    of them, a string of a turn, named by what it is and by how many turns that is away. The first `closing` characters
    are still the turn's. `unopened`, of the turn behind it, is as of Rendered."""

    literals: tuple[str, ...]
    values: tuple[tuple[str, int], ...]
    closing: int = 0
    unopened: str = ""


class Around(NamedTuple):
    """A turn's surroundings: the shapes of some turns, the turn's place among them, and which of them, from `low` up to
    `high`, are turns of the row."""

    shapes: tuple[Shape, ...]
    at: int
    low: int
    high: int


Structure = tuple[tuple[Shape, ...], bool]
"""Turns, and whether there are tools."""

_BARE = Region((), ())


class Places:
    """What has been learnt of one template."""

    def __init__(self, template: ChatTemplate, parts: TokenizerParts) -> None:
        self._template, self._parts = template, parts
        self._learnt = lru_cache(_REMEMBERED)(self._learn)
        self._example = lru_cache(_REMEMBERED)(self._render)

    def turns(self, text: ChatText) -> dict[int, KnownTurn] | None:
        """What each assistant turn is made of; None where that has to be looked for in the row itself.

        Of templates that mark turns nothing is told but that all turns and calls are shown: an empty dict.
        """
        shapes = self._shapes(text.messages)
        if shapes is None or shapes[0].role == "assistant":
            return None
        tools = bool(text.tools)
        assistants = [i for i, shape in enumerate(shapes) if shape.role == "assistant"]
        if not assistants or not names_shown(text.tools, text.text):
            return None
        regions: list[Region] = []
        for i in (-1, *assistants):
            region = self._learnt(_surroundings(shapes, i), tools)
            if region is None:
                return None
            regions.append(region)
        if self._template.marks_turns:
            return {} if _all_said(text) else None
        return _located(text, assistants, regions)

    def _shapes(self, messages: Sequence[Message]) -> tuple[Shape, ...] | None:
        """None where what a turn says might mean more to the template than text."""
        shapes: list[Shape] = []
        for message in messages:
            shape = _shape(message)
            if shape is None or any(asked in text for asked in self._template.asks_for for text in _texts(message)):
                return None
            shapes.append(shape)
        return tuple(shapes)

    def _learn(self, around: Around, tools: bool) -> Region | None:
        """What stands behind a turn, or before the first answer (`at` is -1); None where it is not so simple."""
        example = self._example((around.shapes, tools))
        if example is None:
            return None
        if self._template.marks_turns:
            return _BARE
        following = next((i for i in range(around.at + 1, len(around.shapes)) if _answers(around.shapes[i])), None)
        example.unopened = ""
        try:
            start = len(example.text) if following is None else example.turn_span(following)[0]
            unopened = example.unopened
            end = 0 if around.at < 0 else example.turn_span(around.at)[1]
        except (RewrittenError, TemplateRefusedError):
            return None
        if tools and around.at < 0:  # tools say more than turns do: what they come to is looked at in the row
            end = max(found.end() for found in _STAND_IN.finditer(example.text, 0, start))
        region = _region(example.text, around, end, start, self._parts.specials)
        return region and region._replace(unopened=unopened)

    def _render(self, structure: Structure) -> ChatText | None:
        """A conversation of this structure; None where the template refuses it, or leaves something of it out."""
        shapes, tools = structure
        messages = tuple(_stand_in(i, shape) for i, shape in enumerate(shapes))
        given = (_TOOL,) if tools else ()
        conversation = Conversation(messages, templated=True, line=0, tools=given)
        try:
            text = ChatText(conversation, (1.0,) * len(messages), self._template, self._parts)
        except (LeftOutError, TemplateRefusedError):
            return None
        asked = [i for i, shape in enumerate(shapes) if shape.role != "assistant" and shape.says]
        shown = all(_words(i) in text.text for i in asked)
        blocks = len(text.blocks) == sum(shape.role == "assistant" for shape in shapes)
        return text if shown and (blocks or not self._template.marks_turns) else None


def _texts(message: Message) -> tuple[str, ...]:
    return (message.content, message.reasoning) if message.reasoning else (message.content,)


def _shape(message: Message) -> Shape | None:
    """None where its text might mean more to a template than text."""
    content = message.content
    says = bool(content)
    if (says and not content.strip()) or message.image_offsets:
        return None
    if message.plain and not message.tool_calls and message.tool_call_id is None and message.name is None:
        return None if "<think>" in content else Shape(message.role, says)
    thinks = ""
    if message.reasoning:
        thinks = "apart"
        if "</think>" in content:
            return None
    elif "</think>" in content:
        thinks = "text"
        if not (message.thought.strip() and message.answer.strip()) or content.count("</think>") > 1:
            return None
    calls = tuple([("id" in call, bool(call["function"]["arguments"])) for call in message.tool_calls])
    if any(not isinstance(call["function"]["arguments"], dict) for call in message.tool_calls):
        return None
    return Shape(message.role, says, thinks, calls, message.tool_call_id is not None, message.name is not None)


def _words(number: int, what: str = "text") -> str:
    return f"{_OPEN}{what} {number}{_CLOSE}"


_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _words(0, "tool"),
        "description": _words(0, "description"),
        "parameters": {"type": "object", "properties": {"argument": {"type": "string"}}, "required": ["argument"]},
    },
}


def _stand_in(number: int, shape: Shape) -> Message:
    """A turn of such a shape."""
    content = _words(number) if shape.says else ""
    thought = _words(number, "thought")
    if shape.thinks == "text":
        content = f"<think>\n{thought}\n</think>\n\n{content}"
    calls = [
        {
            **({"id": f"{_ID}{number:03}"} if has_id else {}),
            "type": "function",
            "function": {
                "name": _words(number, f"call {place}"),
                "arguments": {"argument": _words(number, f"argument {place}")} if has_arguments else {},
            },
        }
        for place, (has_id, has_arguments) in enumerate(shape.calls)
    ]
    return Message(
        shape.role,
        content,
        tool_calls=tuple(calls),
        tool_call_id=f"{_ID}{number:03}" if shape.answers else None,
        name=_words(number, "name") if shape.named else None,
        reasoning=thought if shape.thinks == "apart" else "",
    )


def _answers(shape: Shape) -> bool:
    return shape.role == "assistant"


def _surroundings(shapes: tuple[Shape, ...], at: int) -> Around:
    """The turn between the round before it and the two behind it, where a round is a turn with the tools' answers to
    it. What comes before and after these stands for what the conversation has there: how it begins, whether somebody
    asks again, how it ends. -1 is what comes before the first turn."""
    if len(shapes) <= _SHORT:
        return Around(shapes, at, 0, len(shapes))
    begins = _before(shapes, at)
    ends = _behind(shapes, _behind(shapes, _behind(shapes, at)))
    if begins <= _BEGINNING:
        head, low = shapes[:begins], 0
    else:
        head = shapes[:1] if shapes[0].role in ("system", "developer") else ()
        head += (Shape("user", True), Shape("assistant", True))
        if _answers(shapes[begins]):
            head += (Shape("user", True),)
        low = len(head)
    seen = (*head, *shapes[begins:ends])
    return Around((*seen, *_end(shapes, ends)), len(head) + at - begins, low, len(seen))


def _end(shapes: tuple[Shape, ...], ends: int) -> tuple[Shape, ...]:
    """What stands for the turns from `ends` on."""
    left = shapes[ends:]
    if len(left) <= _BEGINNING:
        return left
    if not any(shape.role == "user" for shape in left):
        last = _before(shapes, len(shapes))
        return shapes[last:]
    asked = (Shape("user", True), Shape("assistant", True))
    return (Shape("assistant", True), *asked) if shapes[ends - 1].role == "user" else asked


def _before(shapes: Sequence[Shape], at: int) -> int:
    """Where the round before a turn begins."""
    at = max(0, at - 1)
    while at and shapes[at].role == "tool":
        at -= 1
    return at


def _behind(shapes: Sequence[Shape], at: int) -> int:
    """Where the round behind a turn begins."""
    at = min(at + 1, len(shapes))
    while at < len(shapes) and shapes[at].role == "tool":
        at += 1
    return at


def _region(text: str, around: Around, end: int, start: int, specials: tuple[str, ...]) -> Region | None:
    """The text from a turn's end, what closes it included, to `start`; None where that holds more than turns say."""
    closed = end
    while end and (token := next((one for one in specials if text.endswith(one, 0, closed)), None)) is not None:
        closed -= len(token)
    literals: list[str] = []
    values: list[tuple[str, int]] = []
    at = closed
    for found in _STAND_IN.finditer(text, closed, start):
        is_id = found[0].startswith(_ID)
        what, _, number = ("id", "", found[0][len(_ID) :]) if is_id else found[0][1:-1].rpartition(" ")
        if what not in _VALUES or not around.low <= int(number) < around.high:
            return None
        literals.append(text[at : found.start()])
        values.append((what, int(number) - around.at))
        at = found.end()
    last = text[at:start]
    if start < len(text) and not last.strip():
        return None
    return Region((*literals, last), tuple(values), end - closed)


def _located(text: ChatText, assistants: Sequence[int], regions: Sequence[Region]) -> dict[int, KnownTurn] | None:
    """The turns between these regions; None where the text does not consist of them, or has one of them twice."""
    starts = _starts(text.text, [region.literals[-1] for _, region in zip(assistants, regions, strict=False)])
    if starts is None or not (text.tools or _ends_there(text, regions[0], -1, 0, starts[0]) == 0):
        return None
    if text.tools and not text.begins_as(assistants[0], starts[0]):
        return None
    turns: dict[int, KnownTurn] = {}
    limits = [*starts[1:], len(text.text)]
    for i, opened, region, start, limit in zip(assistants, regions[:-1], regions[1:], starts, limits, strict=True):
        at = _ends_there(text, region, i, start, limit)
        if at is None or (opened.unopened and text.text.startswith(opened.unopened[0], start)):
            return None
        written = text.text[start : at + region.closing]
        turns[i] = KnownTurn((start, start + len(written.rstrip())), opened.unopened)
        message = text.messages[i]
        said = not message.tool_calls or first_lost([message.content], written) is None
        if not (said and names_shown(message.tool_calls, written)):
            return None
    return turns


def _ends_there(text: ChatText, region: Region, i: int, start: int, end: int) -> int | None:
    """Where the region behind turn `i` begins that ends at `end`; None where what stands there is something else."""
    literals = region.literals
    for form in _FORMS if region.values else _FORMS[:1]:
        pieces = [literals[0]]
        for (what, away), literal in zip(region.values, literals[1:], strict=True):
            pieces += (form(_VALUES[what](text.messages[i + away])), literal)
        whole = "".join(pieces)
        if end - len(whole) >= start and text.text.endswith(whole, start, end):
            return end - len(whole)
    return None


_VALUES: Mapping[str, Callable[[Message], str]] = {
    "text": lambda message: message.content,
    "name": lambda message: message.name or "",
    "id": lambda message: message.tool_call_id or "",
}
_FORMS: Sequence[Callable[[str], str]] = (
    str,
    str.strip,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
)
"""How templates write what a turn says."""


def _starts(text: str, befores: Sequence[str]) -> list[int] | None:
    """Where each of these ends, if they stand in the text as often as here and in this order, and nowhere else."""
    distinct = sorted(set(befores), key=len, reverse=True)
    if len(distinct) > 1:
        matches = list(_scanner(tuple(distinct)).finditer(text))
        return [match.end() for match in matches] if [match[0] for match in matches] == befores else None
    found: list[int] = []
    at = text.find(befores[0])
    while at >= 0:
        found.append(at + len(befores[0]))
        at = text.find(befores[0], found[-1])
    return found if len(found) == len(befores) else None


@lru_cache(_REMEMBERED)
def _scanner(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _all_said(text: ChatText) -> bool:
    """Whether the text has the words of all turns, and the names of all calls."""
    calls = [call for message in text.messages for call in message.tool_calls]
    return (
        names_shown(calls, text.text) and first_lost([message.answer for message in text.messages], text.text) is None
    )
