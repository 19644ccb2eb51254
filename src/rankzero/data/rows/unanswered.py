"""Rows that end with a question, with a mark where the answer would stand: the formats read none without one. Knows how
questions look; whether one can be read is the formats' to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.data.rows.formats.format import ASKING, Row
from rankzero.data.rows.formats.json_text import TwiceReadError
from rankzero.data.rows.formats.query_response import QUERY, RESPONSE
from rankzero.data.rows.formats.sharegpt import PAIRS
from rankzero.data.rows.formats.tools import decoded

NO_ANSWER = "\ufdd4"
"""The mark. A noncharacter, which no text has."""

_TURN_LISTS = ("messages", "conversations", "conversation", "texts", "contents", "segments")
_ANSWERS = frozenset({*RESPONSE, "chosen", "rejected", "message_tree_id"})
"""Beside a question, one of these may be its answer."""


def with_answer(row: Row) -> Row | None:
    """The row with the mark for an answer; None where it has an answer already, or is no question that is known. A key
    whose value is null counts as absent."""
    row = {key: value for key, value in row.items() if value is not None}
    if (key := next((key for key in _TURN_LISTS if key in row), None)) is not None:
        try:
            turns = decoded(row[key])
        except TwiceReadError:
            return None
        answered = _answered(turns, key) if isinstance(turns, list) and turns else None
        return None if answered is None else {**row, key: answered}
    if not row.keys().isdisjoint(_ANSWERS):
        return None
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        return {**row, "completion": [{"role": "assistant", "content": NO_ANSWER}]}
    if isinstance(prompt, str) and not any(row.get(key) for key in ASKING):  # of which raw text has no place
        return {**row, "completion": NO_ANSWER}
    if "instruction" in row:
        return {**row, "output": NO_ANSWER}
    return {**row, "response": NO_ANSWER} if any(isinstance(row.get(key), str) for key in QUERY) else None


def _answered(turns: list[Any], key: str) -> list[Any] | None:
    """The turns and an answer in their form; None where the last one is an answer without its question."""
    last = turns[-1]
    if isinstance(last, str):
        return [*turns, NO_ANSWER]
    if key == "segments":
        return [*turns, {"label": True, "text": NO_ANSWER}]
    if isinstance(last, Mapping) and last.keys().isdisjoint(("role", "from", "parts")):
        for asks, answers in PAIRS:
            if isinstance(last.get(asks), str) and last.get(answers) is None:
                return [*turns[:-1], {**last, answers: NO_ANSWER}]
        return None
    if key == "contents":
        return [*turns, {"role": "model", "parts": [{"text": NO_ANSWER}]}]
    if isinstance(last, Mapping) and "from" in last and "role" not in last:
        return [*turns, {"from": "gpt", "value": NO_ANSWER}]
    return [*turns, {"role": "assistant", "content": NO_ANSWER}]
