"""Rows with `instruction`, `input` and `output`, as Alpaca's. Knows nothing of templates or tokens."""

from __future__ import annotations

from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_history, read_text
from rankzero.data.rows.formats.format import Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"instruction", "output"})
READS = KEYS | CHAT_FIELDS | {"input", "history"}
SHAPE = '{"instruction": "…", "input": "…", "output": "…"}'


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
            problems.append(RowProblem(line, f"{key} is not a string", what))
    if not asked and not problems:
        problems.append(RowProblem(line, "empty prompt", "`instruction` has no text", "remove the row"))
    answer = read_text(row, "output", line)
    if isinstance(answer, RowProblem):
        return [*problems, answer]
    turns, more = read_history(row, line, slots)
    turns += (slots.message("user", "\n".join(asked)), slots.message("assistant", answer))
    return chat(row, line, turns, problems + more, slots)
