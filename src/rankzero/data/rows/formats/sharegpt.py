"""Rows with `conversations` of from and value, of pairs, or of texts in turn. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message, Role
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_system
from rankzero.data.rows.formats.format import CannotSayError, Claim, Column, Format, Result, Row, Writer, Written
from rankzero.data.rows.formats.images import TAG, Slots
from rankzero.data.rows.formats.json_text import write_text
from rankzero.data.rows.formats.messages import require_reply
from rankzero.data.rows.formats.tools import decoded
from rankzero.data.rows.formats.turn_loss import LOSS_KEYS, TurnLoss, read_loss
from rankzero.data.rows.formats.turns import (
    TURN_KEYS,
    empty_reply,
    read_messages,
    unread_beside,
    unread_beside_content,
    unread_keys,
)
from rankzero.data.rows.formats.writing import beside, plain_turns, tagged
from rankzero.data.rows.problems import RowProblem, kind

KEYS = (frozenset({"conversations"}), frozenset({"conversation"}), frozenset({"texts"}))
SHAPE = '{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}'

ASSISTANT_FIRST = "the assistant speaks first"
LOSS_LEFT_OUT = "`loss: true` of all answers before the last is left out: it matters with train_on: last_turn alone"
CALLS_JOINED = "tool calls right behind an assistant turn become part of it"
CALL_IDS = "ids of tool calls are left out: calls and answers are in the same order"

PAIRS = (("human", "assistant"), ("user", "assistant"), ("input", "output"))
"""Keys of a question and its answer that are one item together."""


def to_conversation(row: Row, line: int) -> Result:
    """The turns under the roles that they mean. A row that the assistant begins is kept as it is, and counted."""
    slots = Slots(row, line)
    key = next(key for (key,) in KEYS if row.get(key) is not None)
    items = decoded(row[key])
    empty: tuple[str, ...] = ()
    if isinstance(items, list) and items and all(pair_keys(item) for item in items):
        turns, problems, empty = _read_pairs(items, line, key, slots)
    elif isinstance(items, list) and items and key != "texts" and all(isinstance(item, str) for item in items):
        turns, problems = _read_texts(items, line, key, slots)
    else:
        turns, problems = read_messages(items, line, key, slots)
    if not problems:
        problems = require_reply(turns, line)
    spoken = (turn.role for turn in turns if turn.role != "system")
    rules = (*empty, *((ASSISTANT_FIRST,) if not problems and next(spoken) == "assistant" else ()))
    return chat(row, line, turns, problems, slots, rules)


def pair_keys(item: object) -> tuple[str, str] | None:
    """The keys of a question and its answer; one alone is half a pair."""
    if not isinstance(item, dict) or "role" in item or "from" in item:
        return None
    whole = next((pair for pair in PAIRS if item.keys() >= set(pair)), None)
    return whole or next((pair for pair in PAIRS[:1] if item.keys() & set(pair)), None)


def _read_pairs(
    items: list[Any], line: int, key: str, slots: Slots
) -> tuple[tuple[Message, ...], list[RowProblem], tuple[str, ...]]:
    """The rounds, each under the system prompt that it has where that is another than the one before (XTuner)."""
    turns: list[Message] = []
    problems: list[RowProblem] = []
    rules: tuple[str, ...] = ()
    said = ""
    roles: tuple[Role, Role] = ("user", "assistant")
    for index, item in enumerate(items):
        where = f"{key}[{index}]"
        problems += unread_beside_content(item, line, where)
        loss = read_loss(item, "assistant", line, where)  # of the answer
        if isinstance(loss, RowProblem):
            problems.append(loss)
            loss = TurnLoss(train=False)
        system, bad, empty = read_system(item, "system", line)
        problems, rules = problems + bad, rules or empty
        if system and system[0].content != said:
            turns += system
            said = system[0].content
        for name, role in zip(pair_keys(item) or (), roles, strict=False):
            text = item.get(name)
            if not isinstance(text, str):
                what = f"{where}.{name} is {kind(text)}"
                problems.append(RowProblem(line, f"{name} is not a string", what, "write it as a JSON string"))
            elif role == "assistant" and not text.strip() and loss.train is not False:
                problems.append(empty_reply(line, where))
            else:
                turn = slots.message(role, text)
                turns.append(replace(turn, train=loss.train, weight=loss.weight) if role == "assistant" else turn)
    return tuple(turns), problems, rules


def _read_texts(items: list[str], line: int, key: str, slots: Slots) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """Texts alone, the user's and the assistant's in turn, as LIMA has them."""
    problems = [empty_reply(line, f"{key}[{i}]") for i in range(1, len(items), 2) if not items[i].strip()]
    roles: tuple[Role, Role] = ("user", "assistant")
    return tuple(slots.message(roles[i % 2], text) for i, text in enumerate(items)), problems


_READ_OF_PAIRS = frozenset({"system", *LOSS_KEYS}).union(*PAIRS)


def _unread_in_turn(item: Mapping[str, Any]) -> set[str]:
    """In whichever of its forms the turn is."""
    pair = pair_keys(item)
    return unread_keys(item) if pair is None else unread_beside(item, frozenset({"system", *LOSS_KEYS, *pair}))


_FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
_ANSWERS = ("gpt", "function_call")


def to_row(conversation: Conversation) -> Written:
    """from and value; no per-turn loss, no ids of tool calls, no text beside a call."""
    turns, rules = plain_turns(conversation, "sharegpt")
    if conversation.images:
        _require_tags_found(turns)
    rules = (*rules, *_without_loss(turns))
    rows: list[dict[str, str]] = []
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
            value = write_text(calls if len(calls) > 1 else calls[0])
            if rows and rows[-1]["from"] in _ANSWERS:  # which is how such a turn is read
                rules = (*rules, CALLS_JOINED) if CALLS_JOINED not in rules else rules
            else:
                waiting = []
            rows.append({"from": "function_call", "value": value})
            waiting += [call.get("id") for call in turn.tool_calls]
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


def _require_tags_found(turns: Sequence[Message]) -> None:
    """Raise where tags would not be read as the images that they stand for, or texts would."""
    if any(TAG in turn.content for turn in turns):
        what = f"a text has {TAG} as text beside images, and sharegpt would take it for an image"
        raise CannotSayError("image tag as text", what)
    said = all(turn.role == "assistant" and turn.content.strip() for turn in turns if turn.image_offsets)
    if said and any(turn.role == "user" for turn in turns):
        what = f"all images are in answers beside text, where {TAG} is read as text"
        raise CannotSayError("images in answers alone", what, "use --as messages, which has content parts")


def _without_loss(turns: Sequence[Message]) -> tuple[str, ...]:
    """The rule by which earlier answers lose that they are to be trained; the last one is, whatever is said of it."""
    earlier = [turn.train for turn in turns if turn.role == "assistant"][:-1]
    if not any(earlier):
        return ()
    if not all(earlier):
        raise CannotSayError("per-turn loss", "sharegpt cannot say that a turn is trained, which others are not")
    return (LOSS_LEFT_OUT,)


_COLUMNS: dict[str, Column] = {
    "conversations": [{"from": "text", "value": "text"}],
    "images": ["text"],
    "tools": "json",
    "chat_template_kwargs": "json",
    "id": "text",
    "conversation_id": "text",
}

FORMAT = Format(
    name="sharegpt",
    needs=KEYS,
    reads=CHAT_FIELDS.union(*KEYS),
    shape=SHAPE,
    to_conversation=to_conversation,
    marks=KEYS[:2],
    claims=(Claim(KEYS[2]),),
    turn_lists=frozenset({"rejected_messages"}).union(*KEYS),
    turn_keys=TURN_KEYS | _READ_OF_PAIRS,
    unread_in_turn=_unread_in_turn,
    writers=(Writer("sharegpt", to_row, _COLUMNS),),
)
