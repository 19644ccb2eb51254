"""Rows with `text`: plain text, every token of it trained. Knows nothing of tokens."""

from __future__ import annotations

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import read_id
from rankzero.data.rows.formats.format import Result, Row
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"text"})
READS = KEYS | {"id"}
SHAPE = '{"text": "…"}'


def to_conversation(row: Row, line: int) -> Result:
    """The text as one segment."""
    value = row["text"]
    if not isinstance(value, str):
        return [RowProblem(line, "text is not a string", f"`text` is {kind(value)}, not a string")]
    if not value.strip():
        return [RowProblem(line, "empty text", "`text` is empty", "remove the row")]
    return Conversation((Message("completion", value),), templated=False, line=line, id=read_id(row))
