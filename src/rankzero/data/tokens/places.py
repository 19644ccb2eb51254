"""Where assistant turns begin and end in a text, learnt from small conversations of the same structure.

A template writes the same characters around all turns that stand in the same surroundings. They are looked for once, in
a conversation of stand-ins that is short enough to be rendered again and again, and found again in the texts of rows,
each of which is then rendered once. Nothing is believed: where a text does not consist of exactly what was learnt, the
row itself is looked at in full. Knows templates and conversations; nothing of rules or token ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rankzero.data.rows.conversation import Conversation, Message, Role
from rankzero.data.tokens.chat_text import ChatText, KnownTurn, LeftOutError, RewrittenError
from rankzero.data.tokens.own_words import first_lost
from rankzero.data.tokens.template import ChatTemplate, Span, TemplateRefusedError
from rankzero.data.tokens.tokenizer import TokenizerParts

_SHORT = 8
"""A conversation of as many turns is its own structure; in a longer one each turn is seen with its surroundings."""
_BEGINNING = 3
_REMEMBERED = 4096

# What stands for a string: noncharacters at either end, others than chat_text.STAND_IN has, so that it differs from it
# in its first character already. Ids are of the form that templates want which look at them.
_OPEN, _CLOSE, _ID = "\ufdd4", "\ufdd5", "q7Zk0Wv9x"
_STAND_IN = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}|{_ID}")


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


class Place(NamedTuple):
    """An assistant turn between what stands right before and behind it. The first `closing` characters of what is
    behind are still the turn's. `final`: the text ends there. `unopened`: as of Rendered."""

    before: str
    behind: str
    closing: int
    final: bool
    unopened: str = ""


Structure = tuple[tuple[Shape, ...], bool]
"""Turns, and whether there are tools."""


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
        shapes: list[Shape] = []
        for message in text.messages:
            shape = _shape(message)
            if shape is None or any(asked in text for asked in self._template.asks_for for text in _texts(message)):
                return None
            shapes.append(shape)
        wanted = tuple(shapes)
        places: dict[int, Place] = {}
        for i, shape in enumerate(wanted):
            if shape.role == "assistant":
                around, at = (wanted, i) if len(wanted) <= _SHORT else _surroundings(wanted, i)
                place = self._learnt((around, bool(text.tools)), at)
                if place is None:
                    return None
                places[i] = place
        if not places or (text.tools and not _names_shown(text.tools, text.text)):
            return None
        if self._template.marks_turns:
            calls = [call for message in text.messages for call in message.tool_calls]
            return {} if _names_shown(calls, text.text) else None
        return _located(text, places)

    def _learn(self, structure: Structure, at: int) -> Place | None:
        """The place of an assistant turn in such a structure; None where it is not so simple."""
        example = self._example(structure)
        if example is None or at == 0:
            return None
        if self._template.marks_turns:
            return Place("", "", 0, False)
        example.unopened = ""
        try:
            start, end = example.turn_span(at)
        except (RewrittenError, TemplateRefusedError):
            return None
        place = _place(example.text, start, end, self._parts.specials)
        return place and place._replace(unopened=example.unopened)

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
            **({"id": _ID} if has_id else {}),
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
        tool_call_id=_ID if shape.answers else None,
        name=_words(number, "name") if shape.named else None,
        reasoning=thought if shape.thinks == "apart" else "",
    )


def _surroundings(shapes: tuple[Shape, ...], at: int) -> tuple[tuple[Shape, ...], int]:
    """The turn between the round before it and the two behind it, where a round is a turn with the tools' answers to
    it. What comes before and after these stands for what the conversation has there: how it begins, whether somebody
    asks again, how it ends."""
    begins = _before(shapes, at)
    ends = _behind(shapes, _behind(shapes, _behind(shapes, at)))
    if begins <= _BEGINNING:
        head = shapes[:begins]
    else:
        head = shapes[:1] if shapes[0].role in ("system", "developer") else ()
        head += (Shape("user", True), Shape("assistant", True))
        if shapes[begins].role == "assistant":
            head += (Shape("user", True),)
    return (*head, *shapes[begins:ends], *_end(shapes, ends)), len(head) + at - begins


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


def _place(text: str, start: int, end: int, specials: tuple[str, ...]) -> Place | None:
    """What stands around a turn, up to the words of others; None where that is not enough to find it by."""
    ours = [found for found in _STAND_IN.finditer(text, start, end)]
    earlier = [found.end() for found in _STAND_IN.finditer(text, 0, start)]
    if not ours or not earlier:
        return None
    closed = end
    while (token := next((one for one in specials if text.endswith(one, ours[-1].end(), closed)), None)) is not None:
        closed -= len(token)
    following = _STAND_IN.search(text, end)
    behind = text[closed : following.start() if following else len(text)]
    before = text[earlier[-1] : start]
    if not before.strip() or (following and not behind.strip()):
        return None
    return Place(before, behind, end - closed, following is None)


def _located(text: ChatText, places: Mapping[int, Place]) -> dict[int, KnownTurn] | None:
    """The same places in a row's text; None where it does not have them, or has more of them."""
    starts = _starts(text.text, [place.before for place in places.values()])
    if starts is None:
        return None
    limits = [*starts[1:], (len(text.text), len(text.text))]
    turns: dict[int, KnownTurn] = {}
    for (i, place), (_, start), (_, limit) in zip(places.items(), starts, limits, strict=True):
        end = _end_of(text.text, place, start, limit)
        if end is None or (place.unopened and text.text.startswith(place.unopened[0], start)):
            return None
        message = text.messages[i]
        written = text.text[start:end]
        turns[i] = KnownTurn((start, start + len(written.rstrip())), place.unopened)
        if message.tool_calls and not (
            _names_shown(message.tool_calls, written) and first_lost([message.content], written) is None
        ):
            return None
    return turns


def _starts(text: str, befores: Sequence[str]) -> list[Span] | None:
    """Where each of these stands, if they stand in the text as often as here and in this order, and nowhere else."""
    distinct = sorted(set(befores), key=len, reverse=True)
    if len(distinct) == 1:
        found: list[Span] = []
        at = text.find(befores[0])
        while at >= 0:
            found.append((at, at + len(befores[0])))
            at = text.find(befores[0], at + len(befores[0]))
        return found if len(found) == len(befores) else None
    matches = list(_scanner(tuple(distinct)).finditer(text))
    return [match.span() for match in matches] if [match[0] for match in matches] == befores else None


@lru_cache(_REMEMBERED)
def _scanner(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _end_of(text: str, place: Place, start: int, limit: int) -> int | None:
    """The end of the turn that begins at `start`; the next one begins at `limit`, if there is one."""
    if place.final:
        at = len(text) - len(place.behind)
        return at + place.closing if at >= start and text.endswith(place.behind) else None
    at = text.find(place.behind, start, limit + len(place.behind))
    if at < 0 or text.find(place.behind, at + 1, limit) >= 0:
        return None
    return at + place.closing


def _names_shown(functions: Sequence[Mapping[str, Any]], text: str) -> bool:
    """Whether the names of all of these are in the text, in their order."""
    return first_lost([str(function.get("function", function).get("name", "")) for function in functions], text) is None
