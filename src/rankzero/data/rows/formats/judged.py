"""Answers that a row says are not wanted: such a row is for another task than to learn them. Knows no format."""

from __future__ import annotations

from rankzero.data.rows.formats.format import Keys, Row
from rankzero.data.rows.problems import RowProblem

_WORSE = ("rejected_response", "rejected_messages", "rejected_images")
_WANTED = ("label", "kto_tag")

UNTRAINED = "no task trains on single judged answers"
"""Why rows of single answers, wanted or not, are refused."""
PREFERENCES = "preferences are for task dpo"
"""Why rows of better and worse answers are refused by other tasks."""
LEARN_CHOSEN = (
    "set task: dpo; to fine-tune on the chosen ones alone: columns {completion: chosen}, or {messages: chosen} without "
    "a prompt"
)

JUDGED: Keys = frozenset({*_WANTED, *_WORSE})
"""Keys that may say so."""


def judged(row: Row, line: int) -> RowProblem | None:
    """Why a row whose answer is judged, or beside a worse one, is none to learn the answer of."""
    for key in _WANTED:
        if str(row.get(key)).lower() in ("true", "false"):
            what = f"`{key}` says whether the answer is wanted, as for kto: {UNTRAINED}"
            hint = f"to fine-tune on the wanted answers, keep the rows whose `{key}` is true, without the key"
            return RowProblem(line, UNTRAINED, what, hint)
    worse = next((key for key in _WORSE if row.get(key)), None)
    if worse is None:
        return None
    what = f"`{worse}` is an answer that is not wanted, beside one that is"
    hint = f"to fine-tune on the answers, remove `{worse}`; for task dpo, name the two chosen and rejected"
    return RowProblem(line, "an answer that is not wanted", what, hint)
