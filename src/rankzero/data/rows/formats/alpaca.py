"""Rows with `instruction`, `input` and `output`, as Alpaca's. Knows nothing of templates or tokens."""

from __future__ import annotations

from collections.abc import Set

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats.detection import ambiguous
from rankzero.data.rows.formats.fields import CHAT_FIELDS, CONTEXT_KEYS, chat, read_history, read_text, with_context
from rankzero.data.rows.formats.format import ASKING, Claim, Column, Format, Result, Row, Writer, Written
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.writing import beside, one_round
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"instruction", "output"})
INPUT_BELOW = "the input is put below the instruction"


def to_conversation(row: Row, line: int) -> Result:
    """The earlier rounds, then the instruction with its input on the next line as a question, the output its answer."""
    slots = Slots(row, line)
    problems: list[RowProblem] = []
    asked: list[str] = []
    for key in ("instruction", "input"):
        value = row.get(key)
        if isinstance(value, str):
            asked += [value] if value.strip() else []
        elif value is not None:
            what = f"`{key}` is {kind(value)}, not a string"
            problems.append(RowProblem(line, f"{key} is not a string", what, "write it as a JSON string"))
    if not asked and not problems:
        problems.append(RowProblem(line, "empty prompt", "`instruction` has no text", "remove the row"))
    answer = read_text(row, "output", line)
    if isinstance(answer, RowProblem):
        return [*problems, answer]
    turns, more = read_history(row, line, slots)
    question, bad, rules = with_context(row, "\n".join(asked), line)
    rules = (INPUT_BELOW, *rules) if len(asked) > 1 else rules
    turns += (slots.message("user", question), slots.message("assistant", answer))
    return chat(row, line, turns, [*problems, *more, *bad], slots, rules)


def _judge(row: Row, keys: Set[str], line: int) -> bool | RowProblem:
    """A `text` beside the two may be the same again, written into Alpaca's prompt."""
    return ambiguous(row, line, keys, "alpaca") if "text" in keys and not _retells(row) else True


def _retells(row: Row) -> bool:
    text, asked, answer = row["text"], row["instruction"], row["output"]
    if not isinstance(text, str) or not isinstance(asked, str) or not isinstance(answer, str):
        return False
    return text.startswith("Below is an instruction") or (asked in text and answer in text)


def to_row(conversation: Conversation) -> Written:
    """One instruction and its output, under a system prompt at most."""
    turns, rules = one_round(conversation, "alpaca", system=True)
    row = {"instruction": turns[-2].content, "input": "", "output": turns[-1].content}
    if len(turns) == 3:
        row["system"] = turns[0].content
    return {**row, **beside(conversation)}, rules


_COLUMNS: dict[str, Column] = {
    "instruction": "text",
    "input": "text",
    "output": "text",
    "system": "text",
    "chat_template_kwargs": "json",
}

FORMAT = Format(
    name="alpaca",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS | {"input", "history", *CONTEXT_KEYS},
    shape='{"instruction": "…", "input": "…", "output": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    claims=(Claim(KEYS, beside=frozenset({"text"}), judge=_judge),),
    writers=(Writer("alpaca", to_row, _COLUMNS),),
)
