"""Rows of `system_prompt`, `question` and `response`, as OpenOrca's. Knows nothing of templates or tokens."""

from __future__ import annotations

from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_system, read_text
from rankzero.data.rows.formats.format import ASKING, Claim, Format, Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.problems import RowProblem

KEYS = frozenset({"system_prompt", "question", "response"})


def to_conversation(row: Row, line: int) -> Result:
    """Question and answer, under a system prompt where that says anything."""
    slots = Slots(row, line)
    system, problems, rules = read_system(row, "system_prompt", line)
    question, response = read_text(row, "question", line), read_text(row, "response", line)
    problems = problems + [text for text in (question, response) if isinstance(text, RowProblem)]
    if isinstance(question, RowProblem) or isinstance(response, RowProblem):
        return problems
    turns = [*system, slots.message("user", question), slots.message("assistant", response)]
    return chat(row, line, turns, problems, slots, rules)


FORMAT = Format(
    name="openorca",
    needs=(KEYS,),
    reads=KEYS | (CHAT_FIELDS - {"system"}),
    shape='{"system_prompt": "…", "question": "…", "response": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    claims=(Claim(KEYS),),
)
