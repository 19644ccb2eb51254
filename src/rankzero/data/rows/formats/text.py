"""Rows with `text`: plain text, every token of it trained. Knows nothing of tokens."""

from __future__ import annotations

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import read_group, read_id
from rankzero.data.rows.formats.format import CannotSayError, Format, Result, Row, Writer, Written
from rankzero.data.rows.formats.writing import beside, require_plain
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"text"})


def to_conversation(row: Row, line: int) -> Result:
    """The text as one segment."""
    value = row["text"]
    if not isinstance(value, str):
        hint = "write it as a JSON string"
        return [RowProblem(line, "text is not a string", f"`text` is {kind(value)}, not a string", hint)]
    if not value.strip():
        return [RowProblem(line, "empty text", "`text` is empty", "remove the row")]
    return Conversation(
        (Message("completion", value),), templated=False, line=line, id=read_id(row), group=read_group(row)
    )


def to_row(conversation: Conversation) -> Written:
    """Plain text alone: nothing in it could say which part is the prompt, or who speaks."""
    require_plain(conversation, "text")
    if conversation.templated or len(conversation.messages) != 1:
        what = "text cannot say which part of a row is trained, or who speaks"
        raise CannotSayError("prompt or turns", what, "use --as messages or --as prompt_completion")
    return {"text": conversation.messages[0].content, **beside(conversation)}, ()


FORMAT = Format(
    name="text",
    needs=(KEYS,),
    reads=KEYS | {"id", "conversation_id"},
    shape='{"text": "…"}',
    to_conversation=to_conversation,
    learns_answers=False,
    marks=(KEYS,),
    writers=(Writer("text", to_row, {"text": "text"}),),
)
