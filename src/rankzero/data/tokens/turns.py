"""Turns in the form in which chat templates read them: contents as text, or as lists of parts with images among them.

Knows templates; nothing of what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rankzero.data.rows.conversation import Message
from rankzero.data.tokens.call_form import CallForm, in_form
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError

# Stands in for a turn's content to see where it comes to stand. A noncharacter at either end, so that what the text
# and its stand-in have in common ends exactly where the content does.
STAND_IN = "\ufdd2content\ufdd3"


def turn_of(
    message: Message,
    *,
    in_parts: bool = False,
    keys: Sequence[str] = (),
    knows_thoughts: bool = False,
    call_form: CallForm | None = None,
) -> dict[str, Any]:
    """A turn as templates expect it: the content as text, or as a list of parts where it has images.

    Reasoning is where the template reads it: under its `keys`, where it has such, else as `<think>…</think>` before
    the answer. What stands so in the row stays so for a template that `knows_thoughts`. Calls are in the `call_form`.
    """
    thought = "" if message.plain else message.thought
    if thought and keys and not (knows_thoughts and not message.reasoning):
        message = message.without_thought()
    elif message.reasoning:
        message, thought = message.with_thought_in_text(), ""
    else:
        thought = ""
    content = _parts(message) if in_parts or message.image_offsets else message.content
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if thought:
        turn |= dict.fromkeys(keys, thought)
    if message.tool_calls:
        turn["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return in_form(turn, call_form) if message.tool_calls and call_form else turn


def _parts(message: Message) -> list[dict[str, str]]:
    """Text and images in the order in which they stand."""
    parts: list[dict[str, str]] = []
    bounds = [0, *message.image_offsets, len(message.content)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        if number:
            parts.append({"type": "image"})
        if start < end or len(bounds) == 2:
            parts.append({"type": "text", "text": message.content[start:end]})
    return parts


def with_text(content: object, text: str) -> object:
    """Other text in the form that the content has."""
    return text if content is None or isinstance(content, str) else [{"type": "text", "text": text}]


def first_left_out(
    template: ChatTemplate, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> int | None:
    """Which turn that is no answer the template says nothing of, whatever its text is; None where it shows all."""
    words = {i: f"stand-in-{i}-" for i, turn in enumerate(turns) if turn["role"] != "assistant" and turn["content"]}
    others = [
        {**turn, "content": with_text(turn["content"], words[i])} if i in words else turn
        for i, turn in enumerate(turns)
    ]
    try:
        text = template.render(others, tools=tools)
    except TemplateRefusedError:  # it reads a text as more than text
        return None
    return next((i for i, word in words.items() if word not in text), None)


def reads_parts_only(template: ChatTemplate) -> bool:
    """Whether the template leaves out contents that are plain text, as some do that are written for images."""

    def shows(form: object) -> bool:
        turns = [{"role": role, "content": with_text(form, STAND_IN + role)} for role in ("user", "assistant")]
        try:
            text = template.render(turns)
        except TemplateRefusedError:
            return False
        return all(STAND_IN + role in text for role in ("user", "assistant"))

    return not shows("") and shows([])
