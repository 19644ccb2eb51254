"""Answers that a row says are not wanted: such a row is for another task than to learn them. Knows no format."""

from __future__ import annotations

from rankzero.data.rows.formats.format import Keys, Row
from rankzero.data.rows.problems import RowProblem

_WORSE = ("rejected_response", "rejected_messages", "rejected_images")
_WANTED = ("label", "kto_tag")

JUDGED: Keys = frozenset({*_WANTED, *_WORSE})
"""Keys that may say so."""


def judged(row: Row, line: int) -> RowProblem | None:
    """Why a row whose answer is judged, or beside a worse one, is none to learn the answer of."""
    for key in _WANTED:
        if str(row.get(key)).lower() in ("true", "false"):
            what = f"`{key}` says whether the answer is wanted: unpaired preference rows are for task kto"
            hint = f"to fine-tune on the wanted answers, keep the rows whose `{key}` is true, without the key"
            return RowProblem(line, "unpaired preference rows are for task kto", what, hint)
    worse = next((key for key in _WORSE if row.get(key)), None)
    if worse is None:
        return None
    what = f"`{worse}` is an answer that is not wanted: preference rows are for task dpo"
    return RowProblem(line, "preference rows are for task dpo", what, f"to fine-tune on the answers, remove `{worse}`")
