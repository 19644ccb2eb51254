"""Rows with `text`: plain text, every token of it trained. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.data.conversation import Conversation, Message
from rankzero.data.problems import RowProblem, kind

KEYS = frozenset({"text"})
SHAPE = '{"text": "…"}'


def to_conversation(row: Mapping[str, Any], line: int) -> Conversation | list[RowProblem]:
    """The text as one segment."""
    value = row["text"]
    if not isinstance(value, str):
        return [RowProblem(line, "text is not a string", f"`text` is {kind(value)}, not a string")]
    if not value.strip():
        return [RowProblem(line, "empty text", "`text` is empty", "remove the row")]
    return Conversation((Message("completion", value),), templated=False, line=line)
