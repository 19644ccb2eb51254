"""Rows of a text and its label, for task classify. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.detection import ambiguous
from rankzero.data.rows.formats.fields import read_group, read_id, read_text
from rankzero.data.rows.formats.format import CannotSayError, Claim, Format, Noted, Result, Row, Writer, Written
from rankzero.data.rows.formats.writing import beside
from rankzero.data.rows.problems import RowProblem, kind

_TEXTS = (frozenset({"text"}), frozenset({"sentence"}))
SHAPE = '{"text": "…", "label": 1}'

UNLABELLED = "unlabelled"
"""Rows whose label is null or -1, as in the test parts of GLUE; -1 is a class where data.labels names it."""


def to_conversation(row: Row, line: int) -> Result:
    """The text as one segment, with its label."""
    both = row.get("text") is not None and row.get("sentence") is not None
    if both:
        what = "`text` and `sentence` could each be the text"
        hint = "say which: data.train: [{path: …, format: classification, columns: {text: sentence}}]"
        return [RowProblem(line, "two columns for one name", what, hint)]
    text = read_text(row, "sentence" if row.get("text") is None and "sentence" in row else "text", line)
    problems = [text] if isinstance(text, RowProblem) else []
    if "label" not in row:
        return [*problems, RowProblem(line, "no label", "the row has no `label`", f"expected: {SHAPE}")]
    label = row["label"]
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # as tables have numbers beside a missing one
    if isinstance(label, bool):
        label = "true" if label else "false"
    minus_one = label in (-1, "-1")
    if label is None or (minus_one and problems):
        return problems or Noted((), dropped=UNLABELLED)
    if not isinstance(label, (int, str)):
        what = f"`label` is {kind(label)}, not a number without fraction or a string"
        problems.append(RowProblem(line, "bad label", what, 'labels are like 0, 1, 2 or "positive"'))
    elif isinstance(label, str) and not label.strip():
        problems.append(RowProblem(line, "bad label", "`label` has no text", "remove the row, or name its class"))
    if isinstance(text, RowProblem) or problems:
        return problems
    conversation = Conversation(
        (Message("prompt", text),), False, line, id=read_id(row), group=read_group(row), label=label
    )
    if minus_one:
        return Noted((), dropped=UNLABELLED, if_minus_one_is_a_class=conversation)
    return conversation


_SECOND_TEXTS = frozenset(
    {
        *("question", "query", "premise", "hypothesis", "sentence1", "sentence2", "text_pair", "text1", "text2"),
        *("passage", "context", "aspect"),
    }
)
"""What the class of a pair of texts depends on, as in GLUE's tasks."""


def _labelled(row: Row, keys: Set[str], line: int) -> bool | RowProblem:
    """The label may be null. Of a pair, half would be trained on."""
    if "label" not in row:
        return False
    others = [key for key in row if key in keys & _SECOND_TEXTS and isinstance(row[key], str) and row[key].strip()]
    if not others:
        return True
    problem = ambiguous(row, line, [*others, "text", "sentence"], "classification")
    return replace(problem, hint=f"join them as `text`; for `text` or `sentence` alone {problem.hint}")


def to_row(conversation: Conversation) -> Written:
    """A text and its label."""
    if conversation.label is None:
        raise CannotSayError("no label", "classification needs a label")
    return {"text": conversation.messages[0].content, "label": conversation.label, **beside(conversation)}, ()


FORMAT = Format(
    name="classification",
    needs=_TEXTS,
    reads=frozenset({"text", "sentence", "label", "id", "conversation_id"}),
    shape=SHAPE,
    to_conversation=to_conversation,
    learns_answers=False,
    claims=tuple(Claim(text, beside=frozenset({"text"}), judge=_labelled) for text in _TEXTS),
    writers=(Writer("classification", to_row, {"text": "text", "label": "text"}),),
)
