"""Turns, calls and images of a conversation as JSON values. Pure; knows no format as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.images import TAG


def tagged(message: Message) -> str:
    """The text with a tag wherever an image stands."""
    pieces: list[str] = []
    at = 0
    for offset in message.image_offsets:
        pieces += (message.content[at:offset], TAG)
        at = offset
    return "".join([*pieces, message.content[at:]])


def content_parts(message: Message, images: list[str], kind: str) -> list[dict[str, Any]]:
    """Content parts, each image with its own source, taken from the front of `images`."""
    parts: list[dict[str, Any]] = []
    at = 0
    for offset in message.image_offsets:
        if offset > at:
            parts.append({"type": "text", "text": message.content[at:offset]})
        source = images.pop(0)
        image = {"image_url": {"url": source}} if kind == "image_url" else {"image": source}
        parts.append({"type": kind, **image})
        at = offset
    if at < len(message.content) or not parts:
        parts.append({"type": "text", "text": message.content[at:]})
    return parts


def call_row(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call as OpenAI writes it: its arguments are JSON in a string."""
    function = call["function"]
    written = orjson.dumps(function["arguments"]).decode()
    return {**call, "function": {"name": function["name"], "arguments": written}}


def turn_row(message: Message, content: Any, flag: str = "loss") -> dict[str, Any]:
    """A turn with all that it has. `flag` names whether it is trained: loss (true, false) or weight (1, 0)."""
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = [call_row(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    if message.train is not None:
        turn[flag] = message.train if flag == "loss" else int(message.train)
    return turn


def beside(conversation: Conversation) -> dict[str, Any]:
    """What stands beside the turns in every chat format."""
    row: dict[str, Any] = {}
    if conversation.tools:
        row["tools"] = [dict(tool) for tool in conversation.tools]
    if conversation.id is not None:
        row["id"] = conversation.id
    if conversation.group is not None and conversation.group not in conversation.images:
        row["conversation_id"] = conversation.group
    return row


def turn_rows(turns: Sequence[Message], conversation: Conversation) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turns with `loss`, and `images` beside them; parts with their own images where a tag would be misread."""
    if conversation.images and any(TAG in turn.content for turn in turns):
        left = list(conversation.images)
        return [
            turn_row(turn, content_parts(turn, left, "image") if turn.image_offsets else turn.content) for turn in turns
        ], {}
    images = {"images": list(conversation.images)} if conversation.images else {}
    return [turn_row(turn, tagged(turn)) for turn in turns], images
