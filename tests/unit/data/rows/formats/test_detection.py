"""Which format a row is read as, why, and what a column map does to that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.formats import FORMATS, check_columns, reason, rename
from rankzero.data.rows.parse import parse
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.rows.formats.support import ROWS, bad, good, read, reasons, turns


def test_the_spec_has_every_format() -> None:
    for name in FORMATS:
        assert SourceSpec.model_validate({"path": "x", "format": name}).format == name


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (ROWS["alpaca"][1], "alpaca: keys instruction, input, output"),
        (ROWS["messages"][0], "messages: keys messages"),
        (ROWS["messages"][1], "messages: keys messages, tools"),
        (ROWS["query_response"][0], "query_response: keys question, answer"),
        (ROWS["openorca"][1], "openorca: keys system_prompt, question, response"),
        (ROWS["classification"][0], "classification: keys sentence, label"),
    ],
)
def test_reason(row: dict[str, Any], why: str) -> None:
    assert reason(row, read(row)[0]) == why


@pytest.mark.parametrize(
    ("row", "possible"),
    [
        ({"conversations": [], "messages": []}, "messages"),
        ({"conversations": [], "text": "t"}, "sharegpt"),
        ({"prompt": "p", "completion": "c", "chosen": "a", "rejected": "b"}, "prompt_completion"),
        ({"text": "t", "question": "q"}, "text"),
        ({"instruction": "Add", "output": "12", "text": "t"}, "alpaca"),
        ({"conversations": [], "conversation": []}, "sharegpt"),
        ({"text": "t", "label": 1, "question": "q"}, "classification"),
        ({"question": "When?", "sentence": "In 1945.", "label": 0, "idx": 0}, "classification"),
        ({"text": "a", "text_pair": "b", "label": 1}, "classification"),
        ({"text": "good food", "aspect": "service", "label": 1}, "classification"),
        ({"sentence": "a", "hypothesis": "b", "label": 1}, "classification"),
    ],
)
def test_rows_of_two_shapes_are_a_question(row: dict[str, Any], possible: str) -> None:
    (problem,) = bad(row)
    assert problem.reason == "ambiguous row" and f"format: {possible}" in problem.hint


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"messages": ROWS["messages"][0]["messages"], "problem": "q", "solution": "s"}, "messages"),
        ({"prompt": "p", "completion": "c", "answer": "x"}, "prompt_completion"),
        ({"messages": ROWS["messages"][0]["messages"], "chosen": "x"}, "messages"),
        ({"text": "t", "label": 1, "title": "q"}, "classification"),
        ({"text": "t", "label": 1, "question": " "}, "classification"),
        ({"prompt": "p", "response": "r", "label": None}, "query_response"),
    ],
)
def test_keys_that_do_not_matter(row: dict[str, Any], name: str) -> None:
    assert read(row)[0] == name


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_another_format_is_not_in_the_stated_one(name: str) -> None:
    for other in ({"zzz": 1}, {}):
        assert reasons(other, name)[0] in ("not in the stated format", "no query")


class TestColumns:
    def test_rename(self) -> None:
        row = {"q": "1", "a": "2", "id": 3}
        assert rename(row, {"query": "q", "response": "a"}) == {"query": "1", "response": "2", "id": 3}
        assert rename(row, {"query": "missing"}) == row

    def test_swap(self) -> None:
        row = {"prompt": "c", "completion": "p"}
        assert rename(row, {"prompt": "completion", "completion": "prompt"}) == {"prompt": "p", "completion": "c"}

    def test_what_is_said_outright_is_no_question(self) -> None:
        row = {"problem": "q", "solution": "long", "answer": "short"}
        assert reasons(row) == ["two columns for one name"]
        assert turns(good(rename(row, {"response": "solution"}))) == [("user", "q"), ("assistant", "long")]

    def test_parse_counts_what_is_left(self) -> None:
        chunk = Chunk(0, 1, b'{"ask": "q", "solution": "a", "answer": "b", "prompt": "x", "id": 1, "more": 2}\n')
        parsed = parse(chunk, "query_response", {"query": "ask", "response": "solution"})
        assert turns(parsed.conversations[0]) == [("user", "q"), ("assistant", "a")]
        assert parsed.ignored_keys == {"answer": 1, "prompt": 1, "more": 1} and parsed.conversations[0].id == "1"

    def test_keys_with_values_that_another_key_has_too_are_unread_all_the_same(self) -> None:
        row = {"q": "x", "completion": "y", "id": 1, "score": 1, "note": "", "system": "", "conversation_id": None}
        line = json.dumps(row | {"more": None, "prompt": "z"}).encode() + b"\n"
        parsed = parse(Chunk(0, 1, line), "auto", {"prompt": "q"})
        assert parsed.ignored_keys == dict.fromkeys(("score", "note", "more", "prompt"), 1)
        swapped = parse(Chunk(0, 1, line), "auto", {"prompt": "completion", "completion": "prompt"})
        assert swapped.ignored_keys == dict.fromkeys(("q", "score", "note", "more"), 1)

    @pytest.mark.parametrize("key", ["ask", "solution"])
    def test_a_renamed_key_twice(self, key: str) -> None:
        chunk = Chunk(0, 1, b'{"ask": "q", "solution": "a", "%s": "b"}' % key.encode())
        parsed = parse(chunk, "auto", {"query": "ask", "response": "solution"})
        assert [problem.reason for problem in parsed.problems] == ["duplicate key"]

    def test_check(self) -> None:
        assert not check_columns("alpaca", {"instruction": "ask", "output": "reply"}, ["ask", "reply"])
        found = check_columns("alpaca", {"instuction": "ask", "output": "repli", "input": "ask"}, ["ask", "reply"])
        assert [problem.what for problem in found] == [
            "`instuction` is no name of format alpaca",
            "the data has no column `repli`",
            "`ask` is given two names: instuction, input",
        ]
        assert [problem.hint for problem in found[:2]] == ["did you mean instruction?", "did you mean reply?"]
        assert not check_columns("auto", {"query": "x", "messages": "y"})
        assert [problem.where for problem in check_columns("auto", {"zzz": "x"})] == ["columns.zzz"]
