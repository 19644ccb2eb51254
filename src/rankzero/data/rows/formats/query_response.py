"""Rows of a question and its answer under any of the names that are in use for them. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Set

from rankzero.data.rows.formats import text as plain_text
from rankzero.data.rows.formats.detection import ambiguous
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_history, read_system, read_text
from rankzero.data.rows.formats.format import ASKING, Claim, Format, Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.problems import RowProblem

QUERY = ("query", "prompt", "input", "instruction", "question", "problem")
RESPONSE = (
    "response",
    "answer",
    "output",
    "targets",
    "target",
    "answer_key",
    "answers",
    "solution",
    "text",
    "completion",
    "content",
)
SYSTEM = ("system", "system_prompt")
ALIASES = {"query": QUERY, "response": RESPONSE, "system": SYSTEM}

_QUESTIONS = frozenset(QUERY)
# Names that mean an answer even where nobody says so; text, content and completion do not.
_ANSWERS = frozenset(RESPONSE) - {"text", "content", "completion"}


def to_conversation(row: Row, line: int) -> Result:
    """A system prompt and earlier rounds where there are any, then the question and its answer."""
    slots = Slots(row, line)
    problems: list[RowProblem] = []
    names = {canonical: _only(row, canonical, line, problems) for canonical in ALIASES}
    if problems:
        return problems
    texts = []
    for canonical in ("query", "response"):
        text = read_text(row, names[canonical] or canonical, line)
        if isinstance(text, RowProblem):
            problems.append(text)
        else:
            texts.append(text)
    if problems:
        return problems
    # `system` itself is read by `chat`, as everywhere.
    other = names["system"] if names["system"] != "system" else None
    system, problems, rules = read_system(row, other, line) if other else ([], [], ())
    history, more = read_history(row, line, slots)
    turns = [*system, *history, slots.message("user", texts[0]), slots.message("assistant", texts[1])]
    return chat(row, line, turns, problems + more, slots, rules)


def _only(row: Row, canonical: str, line: int, problems: list[RowProblem]) -> str | None:
    """The one column that has this meaning."""
    names = [name for name in ALIASES[canonical] if row.get(name) is not None]
    if len(names) == 1:
        return names[0]
    if len(names) > 1:
        what = f"{', '.join(f'`{name}`' for name in names)} could each be the {canonical}"
        hint = f"say which: data.train: [{{path: …, format: query_response, columns: {{{canonical}: {names[0]}}}}}]"
        if canonical == "query" and {"instruction", "input"} <= set(names):
            hint = "instruction with input is format: alpaca, columns: {output: …}"
        problems.append(RowProblem(line, "two columns for one name", what, hint))
    elif canonical != "system":
        what = f"no column has the {canonical}"
        problems.append(RowProblem(line, f"no {canonical}", what, f"one of: {', '.join(ALIASES[canonical])}"))
    return None


def _judge(row: Row, keys: Set[str], line: int) -> bool | RowProblem:
    """A question and an answer; with a `text` alone beside the question, that may be the answer or all there is."""
    asked = keys & _QUESTIONS
    if asked and "text" in keys:
        return ambiguous(row, line, {"text", *asked}, plain_text.FORMAT.name)
    return bool(asked and keys & _ANSWERS)


FORMAT = Format(
    name="query_response",
    needs=(frozenset(),),  # which of its many names a row has, `to_conversation` finds out
    reads=CHAT_FIELDS | {*QUERY, *RESPONSE, *SYSTEM, "history"},
    shape='{"query": "…", "response": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    aliases=ALIASES,
    claims=(Claim(frozenset(), beside=frozenset({"prompt", "text"}), judge=_judge),),
)
