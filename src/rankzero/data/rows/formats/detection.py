"""Which format a row is meant for, from its keys alone. Reads no values but to tell apart what keys cannot.

Keys that stand for a whole row shape decide (`messages`, `prompt` with `completion`, `text` …). Rows that have those of
two shapes are a question, never a choice. Names that merely are common for questions and answers decide last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rankzero.data.rows.formats import oasst
from rankzero.data.rows.formats.format import Row
from rankzero.data.rows.formats.query_response import QUERY, RESPONSE
from rankzero.data.rows.problems import RowProblem

_STRONG = frozenset({"messages", "conversations", "conversation", "prompt", "completion", "text", "chosen", "rejected"})
_SHAPE_OF: dict[frozenset[str], str] = {
    frozenset({"messages"}): "messages",
    frozenset({"conversations"}): "sharegpt",
    frozenset({"conversation"}): "sharegpt",
    frozenset({"chosen", "rejected"}): "preference",
    frozenset({"prompt", "chosen", "rejected"}): "preference",
    frozenset({"prompt", "completion"}): "prompt_completion",
    frozenset({"text"}): "text",
}
_ALONE = ("messages", "prompt_completion", "preference", "sharegpt", "text")
_QUERY = frozenset(QUERY)
# Names that mean an answer even where nobody says so; text, content and completion do not.
_RESPONSE = frozenset(RESPONSE) - {"text", "content", "completion"}
_ANSWERS = ("completion", "response", "output", "answer", "target", "label")


def detect(row: Row, line: int, shapes: str = "") -> str | RowProblem:
    """The format that the row's keys call for. A key whose value is null counts as absent."""
    strong = row.keys() & _STRONG
    if len(strong) != len(row):
        weak = _weak(row, line, strong)
        if weak is not None:
            return weak
    keys = frozenset(key for key in strong if row[key] is not None)
    if (keys & {"chosen", "rejected"}) and not keys >= {"chosen", "rejected"}:
        keys -= {"chosen", "rejected"}
    name = _SHAPE_OF.get(keys)
    if name is not None:
        return name
    if keys == {"messages", "prompt"} and _repeats(row["prompt"], row["messages"]):
        return "messages"
    if keys == {"prompt"}:
        return "oasst" if oasst.is_tree(row) else _no_match(row, line, shapes)
    named = {of for need, of in _SHAPE_OF.items() if need <= keys}
    possible = next((name for name in _ALONE if name in named), None)
    return _no_match(row, line, shapes) if possible is None else _ambiguous(row, line, sorted(keys), possible)


def _weak(row: Row, line: int, strong: set[str]) -> str | RowProblem | None:
    """What keys that are common in many places call for; None where they do not decide."""
    keys = {key for key in row if row[key] is not None}
    shaped = keys & strong
    if shaped <= {"text"}:
        if {"instruction", "output"} <= keys:
            repeated = "text" in keys and not _retells(row)
            return _ambiguous(row, line, sorted(keys), "alpaca") if repeated else "alpaca"
        if "label" in row and ("text" in keys or "sentence" in keys):
            return "classification"
        if "text" in keys and oasst.is_flat(row):
            return "oasst"
    if not shaped and {"system_prompt", "question", "response"} <= keys:
        return "openorca"
    answered = keys & _RESPONSE
    if shaped <= {"prompt"} and answered and keys & _QUERY:
        return "query_response"
    if shaped == {"text"} and (keys & _QUERY):
        return _ambiguous(row, line, sorted({"text", *(keys & _QUERY)}), "text")
    if shaped == {"prompt", "completion"} and isinstance(row.get("label"), bool):
        what = "`label` says whether `completion` is wanted: unpaired preference rows are not read yet"
        return RowProblem(line, "unpaired preference row", what, "keep the rows whose label is true, without the label")
    return None


def reason(row: Row, name: str, reads: Iterable[str]) -> str:
    """Why a row is read as it is: `alpaca: keys instruction, input, output`."""
    read = set(reads) - {"id", "conversation_id"}
    return f"{name}: keys {', '.join(key for key in row if key in read and row[key] is not None)}"


def listed(keys: Mapping[str, Any] | Iterable[str]) -> str:
    """Names of keys in a sentence, bounded."""
    names = list(keys)
    shown = [f"`{key[:40]}`" for key in names[:12]]
    return (", ".join(shown) + (", …" if len(names) > 12 else "")) or "none"


def _ambiguous(row: Row, line: int, present: list[str], possible: str) -> RowProblem:
    return RowProblem(
        line,
        "ambiguous row",
        f"the row has {listed(key for key in row if key in present)}: which is to be trained?",
        f"say so for the file: data.train: [{{path: …, format: {possible}}}]",
    )


def _repeats(prompt: object, turns: object) -> bool:
    """Whether `prompt` only says again how the messages begin, as in UltraChat: the first turn, or the second after
    a system turn."""
    if not isinstance(turns, list):
        return False
    if isinstance(prompt, list):
        return prompt == turns[: len(prompt)]
    return prompt in [turn.get("content") for turn in turns[:2] if isinstance(turn, dict)]


def _retells(row: Row) -> bool:
    """Whether `text` is only the row's own instruction and output again, written into Alpaca's prompt."""
    text, asked, answer = row["text"], row["instruction"], row["output"]
    if not isinstance(text, str) or not isinstance(asked, str) or not isinstance(answer, str):
        return False
    return text.startswith("Below is an instruction") or (asked in text and answer in text)


def _no_match(row: Row, line: int, shapes: str) -> RowProblem:
    accepted = f"accepted: {shapes}"
    lone = next((key for key in ("chosen", "rejected") if row.get(key) is not None), None)
    if lone is not None:
        other = "rejected" if lone == "chosen" else "chosen"
        what = f"the row has `{lone}` and no `{other}`"
        hint = "to fine-tune on single answers, rename it to completion"
        return RowProblem(line, f"{lone} without {other}", what, hint)
    if row.get("prompt") is not None:
        near = next((key for key in _ANSWERS if row.get(key) is not None), None)
        hint = f"rename {near} to completion" if near else accepted
        return RowProblem(line, "prompt without completion", "the row has `prompt` and no `completion`", hint)
    if row.get("completion") is not None:
        what = "the row has `completion` and no `prompt`"
        return RowProblem(line, "completion without prompt", what, 'plain text is {"text": "…"}')
    nulls = sorted(key for key in row if key in _STRONG | _QUERY | _RESPONSE and row[key] is None)
    what = f"the row's keys are {listed(row)}" + (f"; {listed(nulls)} is null" if nulls else "")
    return RowProblem(line, "unknown row shape", what, accepted)
