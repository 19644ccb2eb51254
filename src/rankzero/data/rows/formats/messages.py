"""Rows with `messages`: chat turns, as OpenAI, TRL and others write them. Knows nothing of templates or tokens."""

from __future__ import annotations

from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat
from rankzero.data.rows.formats.format import CannotSayError, Column, Format, Keys, Result, Row, Writer, Written
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.turns import SHAPE, TURN_KEYS, read_messages, unread_keys
from rankzero.data.rows.formats.writing import (
    NAMES_LEFT_OUT,
    beside,
    chat_turns,
    content_parts,
    plain_turns,
    turn_row,
    turn_rows,
)
from rankzero.data.rows.problems import RowProblem

KEYS = frozenset({"messages"})
PAIR_BESIDE = "a pair beside the messages is left to task dpo, which reads it (--format preference)"
PATHS_FOR_OPENAI = "images are paths, and OpenAI takes http(s) or data URLs alone"


def to_conversation(row: Row, line: int) -> Result:
    """The row's turns; what they train on is decided by the rules of the spec and by each turn's loss or weight."""
    slots = Slots(row, line)
    turns, problems = read_messages(row["messages"], line, "messages", slots)
    if not problems:
        problems = require_reply(turns, line)
    rules = (PAIR_BESIDE,) if row.get("chosen") is not None and row.get("rejected") is not None else ()
    return chat(row, line, turns, problems, slots, rules)


def require_reply(turns: tuple[Message, ...] | list[Message], line: int) -> list[RowProblem]:
    """A problem where no turn is the assistant's."""
    if any(turn.role == "assistant" for turn in turns):
        return []
    roles = ", ".join(dict.fromkeys(turn.role for turn in turns))
    hint = "a row needs an assistant turn to learn; remove the row"
    return [RowProblem(line, "no assistant turn", f"nothing to train on: there are only {roles} turns", hint)]


def _repeats(row: Row, marks: Keys) -> bool:
    """Whether `prompt` only says again how the messages begin, as in UltraChat: the first turn, or the second after
    a system turn."""
    if "messages" not in marks or not isinstance(row["messages"], list):
        return False
    prompt, turns = row.get("prompt"), row["messages"]
    if marks >= {"chosen", "rejected"}:  # UltraFeedback: the wanted answer, written out once more to learn it
        return marks <= {"messages", "prompt", "chosen", "rejected"} and row["chosen"] == turns
    if marks != {"messages", "prompt"}:
        return False
    if isinstance(prompt, list):
        return prompt == turns[: len(prompt)]
    return prompt in [turn.get("content") for turn in turns[:2] if isinstance(turn, dict)]


def to_messages(conversation: Conversation) -> Written:
    """Says everything that a chat row can have."""
    turns, rules = chat_turns(conversation, "messages")
    rows, images = turn_rows(turns, conversation)
    return {"messages": rows, **images, **beside(conversation)}, rules


def _to_columns(conversation: Conversation) -> Written:
    row, rules = to_messages(conversation)
    if not all(isinstance(turn["content"], str) for turn in row["messages"]):
        raise CannotSayError("image tag as text", "a Parquet file of turns has texts, not content parts")
    return row, rules


def to_openai(conversation: Conversation) -> Written:
    """As OpenAI's fine-tuning takes it: `weight`, ids on calls, images in user turns alone."""
    turns, rules = plain_turns(conversation, "openai")
    if conversation.template_kwargs:
        raise CannotSayError("chat_template_kwargs", "openai has no place for what a chat template is given")
    left = list(conversation.images)
    rows = []
    for turn in turns:
        if turn.train is not None and turn.role != "assistant" and not conversation.completion_only:
            raise CannotSayError("per-turn loss", f"openai has a weight on assistant turns, not on a {turn.role} turn")
        if turn.image_offsets and turn.role != "user":
            raise CannotSayError("image of another role", f"openai takes no image in a {turn.role} turn")
        if any("id" not in call for call in turn.tool_calls) or (turn.role == "tool" and turn.tool_call_id is None):
            raise CannotSayError("tool call without id", "openai needs an id on every tool call and its answer")
        content: Any = content_parts(turn, left, "image_url") if turn.image_offsets else turn.content
        row = turn_row(turn, content, "weight")
        if turn.role != "assistant":
            row.pop("weight", None)
        if turn.tool_calls and not turn.content:
            row["content"] = None
        rows.append(row)
    if conversation.id is not None or conversation.group is not None:
        rules = (*rules, NAMES_LEFT_OUT)
    if not all(image.lower().startswith(_FETCHED) for image in conversation.images):
        rules = (*rules, PATHS_FOR_OPENAI)
    if conversation.tools:
        return {"messages": rows, "tools": [dict(tool) for tool in conversation.tools]}, rules
    return {"messages": rows}, rules


_FETCHED = ("http://", "https://", "data:")

_TURN: Column = {
    "role": "text",
    "content": "text",
    "loss": "flag",
    "tool_calls": "json",
    "tool_call_id": "text",
    "name": "text",
    "reasoning_content": "text",
    "loss_weight": "number",
}
_COLUMNS: dict[str, Column] = {
    "messages": [_TURN],
    "images": ["text"],
    "tools": "json",
    "chat_template_kwargs": "json",
    "id": "text",
    "conversation_id": "text",
}

FORMAT = Format(
    name="messages",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS,
    shape=SHAPE,
    to_conversation=to_conversation,
    marks=(KEYS,),
    settles=_repeats,
    turn_lists=KEYS | {"rejected_messages"},
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    writers=(Writer("messages", to_messages, _COLUMNS, _to_columns), Writer("openai", to_openai)),
)
