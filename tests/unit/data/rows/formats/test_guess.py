"""What columns of unknown names may be."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.cli.data.inputs import column_map
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import FORMATS, convert, rename
from rankzero.data.rows.formats.detection import Detector
from rankzero.data.rows.formats.guess import as_flag, likely_columns

TELLING = Detector(tuple(FORMATS.values())).telling


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"question": "?", "reply": "!"}, {"prompt": "question", "completion": "reply"}),
        ({"id": "7", "reply": "!", "User Question": "?"}, {"prompt": "User Question", "completion": "reply"}),
        ({"userQuestion": "?", "botReply": "!", "score": 3}, {"prompt": "userQuestion", "completion": "botReply"}),
        ({"q": "?", "a": "!"}, {"prompt": "q", "completion": "a"}),
        ({"frage": "?", "antwort": "!"}, {"prompt": "frage", "completion": "antwort"}),
        ({"reply": "!", "vraag": "?"}, {"prompt": "vraag", "completion": "reply"}),
        ({"document": "a b", "url": "x"}, {"text": "document"}),
        ({"line": "a b"}, {"text": "line"}),
        ({"massages": [{"role": "user", "content": "?"}]}, {"messages": "massages"}),
        ({"prompt": "?", "completon": "!"}, {"completion": "completon"}),
        ({"chosenn": "!", "rejected": "?"}, {"chosen": "chosenn"}),
        ({"title": "a", "pages": 3}, {}),
        ({"premise": "a", "hypothesis": "b", "label": 1}, {}),
        ({"question": "a", "reply": "b", "label": "same"}, {}),
        ({"x": "a", "y": "b", "z": "c"}, {}),
        ({"n": 1}, {}),
        ({}, {}),
    ],
)
def test_proposals(row: dict[str, Any], columns: dict[str, str]) -> None:
    assert likely_columns(row, TELLING) == columns


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "reply": "!"},
        {"frage, bitte": "?", "Die Antwort": "!"},
        {"line": "a"},
        {"review": "a", "label": 1},
        {"opinion": "a", "label": "good", "source": "web"},
        {
            "question": "?",
            "reply": "!",
            "system": None,
            "label": None,
            "role": None,
        },  # none of these is what is missing
    ],
)
def test_what_the_hint_proposes_reads_the_row(row: dict[str, Any]) -> None:
    _, problems = convert(row, 3)
    assert isinstance(problems, list)
    flag = as_flag(likely_columns(row, TELLING))
    assert f"likely: {flag} (in a run spec" in problems[0].hint
    names = column_map([flag.removeprefix("--columns ").strip("'")])
    _, read = convert(rename(row, names), 3)
    assert isinstance(read, Conversation) and read.label == row.get("label")
