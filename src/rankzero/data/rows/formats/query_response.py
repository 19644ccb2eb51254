"""Rows of a question and its answer under any of the names that are in use for them. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Mapping, Set

from rankzero.data.rows.formats import text as plain_text
from rankzero.data.rows.formats.detection import ambiguous
from rankzero.data.rows.formats.fields import (
    CHAT_FIELDS,
    CONTEXT_KEYS,
    chat,
    read_history,
    read_text,
    with_context,
)
from rankzero.data.rows.formats.format import ASKING, SYSTEM_KEYS, Claim, Format, Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.problems import RowProblem

QUERY = ("query", "prompt", "input", "instruction", "question", "problem", "inputs", "inputs_pretokenized")
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
    "targets_pretokenized",
)
FIRST_ANSWER = "the first of several answers is taken"

ALIASES = {"query": QUERY, "response": RESPONSE, "system": SYSTEM_KEYS}

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
    row, first = _with_one_answer(row, names["response"])
    texts = []
    for canonical in ("query", "response"):
        text = read_text(row, names[canonical] or canonical, line)
        if isinstance(text, RowProblem):
            problems.append(text)
        else:
            texts.append(text)
    if problems:
        return problems
    history, problems = read_history(row, line, slots)
    question, bad, below = with_context(row, texts[0], line)
    turns = [*history, slots.message("user", question), slots.message("assistant", texts[1])]
    return chat(row, line, turns, [*problems, *bad], slots, (*first, *below))


def _with_one_answer(row: Row, name: str | None) -> tuple[Row, tuple[str, ...]]:
    """Answers as SQuAD has them, {"text": […], "answer_start": […]}: the first, where there are any."""
    answers = row.get(name) if name else None
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    if name is None or not isinstance(texts, list) or not texts:
        return row, ()
    several = any(text != texts[0] for text in texts)
    return {**row, name: texts[0]}, (FIRST_ANSWER,) if several else ()


def _only(row: Row, canonical: str, line: int, problems: list[RowProblem]) -> str | None:
    """The one column that has this meaning."""
    names = [name for name in ALIASES[canonical] if row.get(name) is not None]
    # What a tokenizer made of one of them is the same again (P3).
    names = [name for name in names if f"{name}_pretokenized" not in names]
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
    reads=CHAT_FIELDS | {*QUERY, *RESPONSE, "history", *CONTEXT_KEYS},
    shape='{"query": "…", "response": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    aliases=ALIASES,
    claims=(Claim(frozenset(), beside=frozenset({"prompt", "text"}), judge=_judge),),
)
