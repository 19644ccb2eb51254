"""Rows with `conversations` of from and value, or of human and assistant in pairs. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rankzero.data.rows.conversation import Conversation, Message, Role
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat
from rankzero.data.rows.formats.format import CannotSayError, Column, Format, Result, Row, Writer, Written
from rankzero.data.rows.formats.images import TAG, Slots
from rankzero.data.rows.formats.messages import require_reply
from rankzero.data.rows.formats.reasoning import REASONING_KEYS, read_reasoning
from rankzero.data.rows.formats.tools import read_calls
from rankzero.data.rows.formats.turn_loss import LOSS_KEYS, read_loss
from rankzero.data.rows.formats.turns import TURN_KEYS, empty_reply, read_messages, unread_beside, unread_keys
from rankzero.data.rows.formats.writing import beside, plain_turns, tagged
from rankzero.data.rows.problems import RowProblem, kind

KEYS = (frozenset({"conversations"}), frozenset({"conversation"}))
SHAPE = '{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}'

ASSISTANT_FIRST = "the assistant speaks first"
CALL_IDS = "ids of tool calls are left out: calls and answers are in the same order"

_CALLS = ("function_call", "tool_call")
_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "tool_response": "tool",
}


def to_conversation(row: Row, line: int) -> Result:
    """The turns under the roles that they mean. A row that the assistant begins is kept as it is, and counted."""
    slots = Slots(row, line)
    key = "conversation" if row.get("conversations") is None else "conversations"
    items = row[key]
    first = items[0] if isinstance(items, list) and items else None
    if not isinstance(items, list) or not items or (isinstance(first, dict) and "role" in first):
        turns, problems = read_messages(items, line, key, slots)
    else:
        turns, problems = _read(items, line, key, slots)
    if not problems:
        problems = require_reply(turns, line)
    spoken = (turn.role for turn in turns if turn.role != "system")
    rules = (ASSISTANT_FIRST,) if not problems and next(spoken) == "assistant" else ()
    return chat(row, line, turns, problems, slots, rules)


def _read(items: list[Any], line: int, key: str, slots: Slots) -> tuple[tuple[Message, ...], list[RowProblem]]:
    turns: list[Message] = []
    problems: list[RowProblem] = []
    for index, item in enumerate(items):
        where = f"{key}[{index}]"
        if not isinstance(item, dict):
            problems.append(RowProblem(line, "turn is not an object", f"{where} is {kind(item)}, not an object"))
        elif "human" in item or "assistant" in item:
            _read_pair(item, line, where, slots, turns, problems)
        else:
            turn = _read_turn(item, line, where, slots)
            (turns if isinstance(turn, Message) else problems).append(turn)  # type: ignore[arg-type]
    return tuple(turns), problems


def _read_pair(
    item: dict[str, Any], line: int, where: str, slots: Slots, turns: list[Message], problems: list[RowProblem]
) -> None:
    for name, role in (("human", "user"), ("assistant", "assistant")):
        text = item.get(name)
        if not isinstance(text, str):
            problems.append(RowProblem(line, f"{name} is not a string", f"{where}.{name} is {kind(text)}"))
        elif role == "assistant" and not text.strip():
            problems.append(empty_reply(line, where))
        else:
            turns.append(slots.message("assistant" if role == "assistant" else "user", text))


def _read_turn(item: dict[str, Any], line: int, where: str, slots: Slots) -> Message | RowProblem:
    name, value = item.get("from"), item.get("value")
    if not isinstance(name, str) or name not in _ROLES:
        shown = repr(name[:40]) if isinstance(name, str) else kind(name)
        if "from" not in item:
            return RowProblem(line, "turn without role", f"{where} has no `from`", f"expected: {SHAPE}")
        return RowProblem(line, "unknown role", f"{where}.from is {shown}", f"roles are {', '.join(_ROLES)}")
    if value is None and "value" not in item:
        return RowProblem(line, "turn without content", f"{where} has no `value`", f"expected: {SHAPE}")
    role = _ROLES[name]
    loss = read_loss(item, role, line, where)
    if isinstance(loss, RowProblem):
        return loss
    thought = read_reasoning(item, "", value if isinstance(value, str) else "", role, line, where)
    if isinstance(thought, RowProblem):
        return thought
    if name in _CALLS:
        calls, bad = read_calls(value, line, f"{where}.value")
        return bad[0] if bad else Message(role, "", loss.train, tool_calls=calls, weight=loss.weight, reasoning=thought)
    if not isinstance(value, str):
        reason = "content is null" if value is None else "content is not a string"
        return RowProblem(line, reason, f"{where}.value is {kind(value)}, not a string")
    if role == "assistant" and not value.strip() and loss.train is not False:
        return empty_reply(line, where)
    content, offsets = slots.take(value)
    return Message(role, content, loss.train, offsets, weight=loss.weight, reasoning=thought)


_READ_OF_FROM = frozenset({"from", "value", *LOSS_KEYS, *REASONING_KEYS})
_READ_OF_PAIR = frozenset({"human", "assistant"})


def _unread_in_turn(item: Mapping[str, Any]) -> set[str]:
    """In whichever of the three forms the turn is."""
    if "role" in item:
        return unread_keys(item)
    return unread_beside(item, _READ_OF_FROM if "from" in item else _READ_OF_PAIR)


_FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}


def to_row(conversation: Conversation) -> Written:
    """from and value; no per-turn loss, no ids of tool calls, no text beside a call."""
    turns, rules = plain_turns(conversation, "sharegpt")
    if conversation.images and any(TAG in turn.content for turn in turns):
        what = f"a text has {TAG} as text beside images, and sharegpt would take it for an image"
        raise CannotSayError("image tag as text", what)
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


_COLUMNS: dict[str, Column] = {
    "conversations": [{"from": "text", "value": "text"}],
    "images": ["text"],
    "tools": "json",
    "id": "text",
    "conversation_id": "text",
}

FORMAT = Format(
    name="sharegpt",
    needs=KEYS,
    reads=CHAT_FIELDS | {"conversations", "conversation"},
    shape=SHAPE,
    to_conversation=to_conversation,
    marks=KEYS,
    turn_lists=frozenset({"conversations", "conversation"}),
    turn_keys=TURN_KEYS | _READ_OF_FROM | _READ_OF_PAIR,
    unread_in_turn=_unread_in_turn,
    writers=(Writer("sharegpt", to_row, _COLUMNS),),
)
