"""Turns in the form in which chat templates read them: contents as text, or as lists of parts with images among them.

Knows templates; nothing of what is trained.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rankzero.data.rows.conversation import Message
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError

# Stands in for a turn's content to see where it comes to stand. A noncharacter at either end, so that what the text
# and its stand-in have in common ends exactly where the content does.
STAND_IN = "\ufdd2content\ufdd3"


def turn_of(message: Message, *, in_parts: bool = False) -> dict[str, Any]:
    """A turn as templates expect it: the content as text, or as a list of parts where it has images."""
    content = _parts(message) if in_parts or message.image_offsets else message.content
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


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
    return text if isinstance(content, str) else [{"type": "text", "text": text}]


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
