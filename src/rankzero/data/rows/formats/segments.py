"""Rows with `segments` of text and label: raw text that says itself what of it is trained. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import read_group, read_id
from rankzero.data.rows.formats.format import CannotSayError, Claim, Format, Result, Row, Writer, Written
from rankzero.data.rows.formats.tools import decoded
from rankzero.data.rows.formats.turns import unread_beside
from rankzero.data.rows.formats.writing import beside
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"segments"})
_READ = frozenset({"label", "text"})
SHAPE = '{"segments": [{"label": false, "text": "…"}, {"label": true, "text": "…"}]}'


def to_conversation(row: Row, line: int) -> Result:
    """The segments as they stand: nothing is put between or around them."""
    value = decoded(row["segments"])
    if not isinstance(value, list):
        return [RowProblem(line, "bad segments", f"`segments` is {kind(value)}, not a list", f"expected: {SHAPE}")]
    segments: list[Message] = []
    for index, item in enumerate(value):
        text, label = (item.get("text"), item.get("label")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(text, str) or not isinstance(label, bool):
            what = f"segments[{index}] is not a text with a label of true or false"
            return [RowProblem(line, "bad segments", what, f"expected: {SHAPE}")]
        segments.append(Message("completion" if label else "prompt", text))
    if not any(segment.role == "completion" and segment.content.strip() for segment in segments):
        what = "nothing to train on: no segment with text has label true"
        return [RowProblem(line, "no trained segment", what, "remove the row")]
    return Conversation(
        tuple(segments), False, line, completion_only=True, id=read_id(row), group=read_group(row), verbatim=True
    )


def to_row(conversation: Conversation) -> Written:
    """Raw text alone, which has its special tokens in it already."""
    if not conversation.verbatim:
        what = "segments hold all special tokens as text, and the row leaves them to the tokenizer"
        raise CannotSayError("special tokens", what, "use --as prompt_completion or --as messages")
    rows = [{"label": turn.role == "completion", "text": turn.content} for turn in conversation.messages]
    return {"segments": rows, **beside(conversation)}, ()


FORMAT = Format(
    name="segments",
    needs=(KEYS,),
    reads=KEYS | {"id", "conversation_id"},
    shape=SHAPE,
    to_conversation=to_conversation,
    claims=(Claim(KEYS),),  # beside a `text`, as transcripts have them, they only say it again
    turn_lists=KEYS,
    turn_keys=_READ,
    unread_in_turn=lambda item: unread_beside(item, _READ),
    writers=(Writer("segments", to_row),),
)
