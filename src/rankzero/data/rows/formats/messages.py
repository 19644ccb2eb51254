"""Rows with `messages`: chat turns, as OpenAI, TRL and others write them. Knows nothing of templates or tokens."""

from __future__ import annotations

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat
from rankzero.data.rows.formats.format import Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.turns import SHAPE as SHAPE
from rankzero.data.rows.formats.turns import read_messages
from rankzero.data.rows.problems import RowProblem

KEYS = frozenset({"messages"})
READS = KEYS | CHAT_FIELDS


def to_conversation(row: Row, line: int) -> Result:
    """The row's turns; what they train on is decided by the rules of the spec and by each turn's loss or weight."""
    slots = Slots(row, line)
    turns, problems = read_messages(row["messages"], line, "messages", slots)
    if not problems:
        problems = require_reply(turns, line)
    return chat(row, line, turns, problems, slots)


def require_reply(turns: tuple[Message, ...] | list[Message], line: int) -> list[RowProblem]:
    """A problem where no turn is the assistant's."""
    if any(turn.role == "assistant" for turn in turns):
        return []
    roles = ", ".join(dict.fromkeys(turn.role for turn in turns))
    hint = "a row needs an assistant turn to learn; remove the row"
    return [RowProblem(line, "no assistant turn", f"nothing to train on: there are only {roles} turns", hint)]
