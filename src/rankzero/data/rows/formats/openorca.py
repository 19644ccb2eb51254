"""Rows of `system_prompt`, `question` and `response`, as OpenOrca's. Knows nothing of templates or tokens."""

from __future__ import annotations

from rankzero.data.rows.conversation import Role
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_text
from rankzero.data.rows.formats.format import ASKING, Claim, Format, Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.problems import RowProblem

KEYS = frozenset({"system_prompt", "question", "response"})
_ROLES: tuple[Role, Role] = ("user", "assistant")


def to_conversation(row: Row, line: int) -> Result:
    """Question and answer, under a system prompt where that says anything."""
    slots = Slots(row, line)
    texts = [read_text(row, key, line) for key in ("question", "response")]
    problems = [text for text in texts if isinstance(text, RowProblem)]
    said = zip(_ROLES, texts, strict=True)
    turns = [slots.message(role, text) for role, text in said if isinstance(text, str)]
    return chat(row, line, turns, problems, slots)


FORMAT = Format(
    name="openorca",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS,
    shape='{"system_prompt": "…", "question": "…", "response": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    claims=(Claim(KEYS),),
)
