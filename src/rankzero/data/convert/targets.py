"""Conversations as rows of a format that other tools read. Pure; what a format has no place for is a problem.

A target is a function from a conversation to a row, or to what the row has that the format cannot say. Where the text
stays and only its frame changes (raw prompt and completion as chat turns), a named rule says so and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.images import TAG
from rankzero.data.rows.formats.writing import beside, content_parts, tagged, turn_row, turn_rows

RAW_AS_CHAT = "raw prompt and completion become chat turns"
CHAT_AS_RAW = "a question and its answer become raw prompt and completion"
NAMES_LEFT_OUT = "ids and groups of rows are left out"
CALL_IDS = "ids of tool calls are left out: calls and answers are in the same order"


class CannotSayError(Exception):
    """What a row has that the target has no place for: `reason` is short and the same for every such row."""

    def __init__(self, reason: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True, slots=True)
class Target:
    """One format that can be written. `columns` in their order, all of them strings, where a row is flat enough for a
    table; () where it is not."""

    to_row: Callable[[Conversation], tuple[dict[str, Any], tuple[str, ...]]]
    columns: tuple[str, ...] = ()


def _require_plain(conversation: Conversation, target: str) -> None:
    if conversation.rejected:
        raise CannotSayError("preference row", f"{target} has no place for a rejected answer", "use --to preference")
    if conversation.label is not None:
        raise CannotSayError("classification row", f"{target} has no place for a label", "use --to classification")


def _chat_turns(conversation: Conversation, target: str) -> tuple[Sequence[Message], tuple[str, ...]]:
    """The row's chat turns; raw prompt and completion as two of them."""
    _require_plain(conversation, target)
    if conversation.templated:
        return conversation.messages, ()
    if len(conversation.messages) == 2:
        prompt, completion = conversation.messages
        return (Message("user", prompt.content), Message("assistant", completion.content)), (RAW_AS_CHAT,)
    raise CannotSayError("plain text", f"{target} needs a question, and the row is plain text", "use --to text")


def _require_tags(turns: Sequence[Message], conversation: Conversation, target: str) -> None:
    if conversation.images and any(TAG in turn.content for turn in turns):
        what = f"a text has {TAG} as text beside images, and {target} would take it for an image"
        raise CannotSayError("image tag as text", what)


def to_messages(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Says everything that a chat row can have."""
    turns, rules = _chat_turns(conversation, "messages")
    rows, images = turn_rows(turns, conversation)
    return {"messages": rows, **images, **beside(conversation)}, rules


def to_openai(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """As OpenAI's fine-tuning takes it: `weight`, ids on calls, images in user turns alone."""
    turns, rules = _chat_turns(conversation, "openai")
    left = list(conversation.images)
    rows = []
    for turn in turns:
        if turn.train is not None and turn.role != "assistant" and not conversation.completion_only:
            raise CannotSayError("per-turn loss", f"openai has a weight on assistant turns, not on a {turn.role} turn")
        if turn.image_offsets and turn.role != "user":
            raise CannotSayError("image of another role", f"openai takes no image in a {turn.role} turn")
        if any("id" not in call for call in turn.tool_calls) or (turn.role == "tool" and turn.tool_call_id is None):
            raise CannotSayError("tool call without id", "openai needs an id on every tool call and its answer")
        content = content_parts(turn, left, "image_url") if turn.image_offsets else turn.content
        row = turn_row(turn, content, "weight")
        if turn.role != "assistant":
            row.pop("weight", None)
        if turn.tool_calls and not turn.content:
            row["content"] = None
        rows.append(row)
    if conversation.tools:
        return {"messages": rows, "tools": [dict(tool) for tool in conversation.tools]}, rules
    return {"messages": rows}, rules


_FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}


def to_sharegpt(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """from and value; no per-turn loss, no ids of tool calls, no text beside a call."""
    turns, rules = _chat_turns(conversation, "sharegpt")
    _require_tags(turns, conversation, "sharegpt")
    rows = []
    waiting: list[str | None] = []
    for turn in turns:
        if turn.role not in _FROM:
            raise CannotSayError("role", f"sharegpt has no {turn.role} turns")
        if turn.train is False and (turn.role == "assistant" or not conversation.completion_only):
            raise CannotSayError("per-turn loss", "sharegpt cannot say that a turn is not trained")
        if turn.tool_calls:
            if turn.content or turn.image_offsets:
                raise CannotSayError("text beside a tool call", "sharegpt has no place for text beside a tool call")
            calls = [dict(call["function"]) for call in turn.tool_calls]
            value = orjson.dumps(calls if len(calls) > 1 else calls[0]).decode()
            rows.append({"from": "function_call", "value": value})
            waiting = [call.get("id") for call in turn.tool_calls]
            continue
        if turn.role == "tool":
            expected = waiting.pop(0) if waiting else None
            if turn.tool_call_id != expected or turn.name is not None:
                raise CannotSayError("tool answer's call", "sharegpt cannot say which call a tool answers")
        elif turn.role == "assistant" and not tagged(turn).strip():
            raise CannotSayError("empty assistant turn", "sharegpt has no place for an empty answer")
        rows.append({"from": _FROM[turn.role], "value": tagged(turn)})
    if any("id" in call for turn in turns for call in turn.tool_calls):
        rules = (*rules, CALL_IDS)
    images = {"images": list(conversation.images)} if conversation.images else {}
    return {"conversations": rows, **images, **beside(conversation)}, rules


def _single(conversation: Conversation, target: str, *, system: bool) -> tuple[list[Message], tuple[str, ...]]:
    """The turns of a row that has one question and one answer, and a system prompt at most."""
    turns, rules = _chat_turns(conversation, target)
    roles = [turn.role for turn in turns]
    if conversation.tools or any(turn.tool_calls for turn in turns):
        raise CannotSayError("tools", f"{target} has no place for tools")
    if conversation.images:
        raise CannotSayError("images", f"{target} has no place for images")
    if roles not in ([["user", "assistant"], ["system", "user", "assistant"]] if system else [["user", "assistant"]]):
        what = f"{target} has one question and one answer, and the row's turns are {', '.join(roles[:8])}"
        raise CannotSayError("more than one round", what, "use --to messages or --to sharegpt")
    marked = any(turn.train is not None for turn in turns[:-1]) and not conversation.completion_only
    if turns[-1].train is False or marked:
        raise CannotSayError("per-turn loss", f"{target} cannot say that a turn is not trained")
    if not all(turn.content.strip() for turn in turns):
        raise CannotSayError("empty turn", f"{target} has no place for a turn without text")
    return list(turns), rules


def to_alpaca(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One instruction and its output, under a system prompt at most."""
    turns, rules = _single(conversation, "alpaca", system=True)
    row = {"instruction": turns[-2].content, "input": "", "output": turns[-1].content}
    if len(turns) == 3:
        row["system"] = turns[0].content
    return {**row, **beside(conversation)}, rules


def to_prompt_completion(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Raw strings as such, chats as lists of turns: what comes before the first trained turn is the prompt."""
    _require_plain(conversation, "prompt_completion")
    if not conversation.templated:
        return to_prompt_completion_text(conversation)
    turns = conversation.messages
    at = next((i for i, turn in enumerate(turns) if turn.role == "assistant" and turn.train is not False), 0)
    if not at:
        what = "prompt_completion needs turns before the first one that is trained"
        raise CannotSayError("no prompt", what, "use --to messages")
    rows, images = turn_rows(turns, conversation)
    for row in rows[:at]:
        row.pop("loss", None)  # a prompt is not trained
    return {"prompt": rows[:at], "completion": rows[at:], **images, **beside(conversation)}, ()


def to_prompt_completion_text(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Two strings, as tables can hold them."""
    _require_plain(conversation, "prompt_completion")
    if conversation.templated:
        turns, _ = _single(conversation, "prompt_completion in a table", system=False)
        return {"prompt": turns[0].content, "completion": turns[1].content}, (CHAT_AS_RAW,)
    if len(conversation.messages) != 2:
        raise CannotSayError(
            "plain text", "prompt_completion needs a prompt, and the row is plain text", "use --to text"
        )
    prompt, completion = conversation.messages
    return {"prompt": prompt.content, "completion": completion.content, **beside(conversation)}, ()


def to_text(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Plain text alone: nothing in it could say which part is the prompt, or who speaks."""
    _require_plain(conversation, "text")
    if conversation.templated or len(conversation.messages) != 1:
        what = "text cannot say which part of a row is trained, or who speaks"
        raise CannotSayError("prompt or turns", what, "use --to messages or --to prompt_completion")
    return {"text": conversation.messages[0].content, **beside(conversation)}, ()


def to_classification(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A text and its label."""
    if conversation.label is None:
        raise CannotSayError("no label", "classification needs a label")
    return {"text": conversation.messages[0].content, "label": conversation.label, **beside(conversation)}, ()


def to_preference(conversation: Conversation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What was asked, the better answer and the worse one."""
    if not conversation.rejected:
        raise CannotSayError("no rejected answer", "preference needs a rejected answer")
    turns = conversation.messages
    if not conversation.templated:
        asked = {"prompt": turns[0].content} if len(turns) == 2 else {}
        pair = {"chosen": turns[-1].content, "rejected": conversation.rejected[0].content}
        return {**asked, **pair, **beside(conversation)}, ()
    rows, images = turn_rows(turns, conversation)
    at = next((i for i, turn in enumerate(turns) if turn.train is not False), 0)
    for row in rows[:at]:
        row.pop("loss", None)
    worse = [turn_row(turn, turn.content) for turn in conversation.rejected]
    before = {"prompt": rows[:at]} if at else {}
    return {**before, "chosen": rows[at:], "rejected": worse, **images, **beside(conversation)}, ()


TARGETS: dict[str, Target] = {
    "messages": Target(to_messages),
    "openai": Target(to_openai),
    "sharegpt": Target(to_sharegpt),
    "prompt_completion": Target(to_prompt_completion, ("prompt", "completion")),
    "alpaca": Target(to_alpaca, ("instruction", "input", "output", "system")),
    "text": Target(to_text, ("text",)),
    "classification": Target(to_classification, ("text", "label")),
    "preference": Target(to_preference),
}
