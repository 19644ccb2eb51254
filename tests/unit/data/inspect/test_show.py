"""Rows token by token: what is printed, and that nothing is lost between the bars."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.inspect.show import ShownRow, rows_to_show
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import FAMILIES, family_tokenizer
from tests.support.tiny import tiny_tokenizer
from tests.unit.data.support import GOOD, GOOD_TEXT, chat, user_assistant, write


def show(path: str, tokenizer: Any = None, **options: Any) -> list[ShownRow]:
    rules = TokenRules(**options.pop("rules", {}))
    return list(rows_to_show(SourceSpec(path=path), tokenizer or tiny_tokenizer(), rules, **options))


def test_plain(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", json.dumps(user_assistant("Ping", "Pong")).encode())
    (row,) = show(path)
    assert row.headline == f"{path}:1: {row.tokens} tokens, {row.supervised} trained"
    text = row.plain().replace("│", "")
    assert text == "<|im_start|>user⏎\nPing<|im_end|>⏎\n<|im_start|>assistant⏎\n⟦Pong<|im_end|>⟧⏎"
    assert re.sub("[⟦⟧]", "", text) == row.coloured().plain.replace("│", "")
    assert not re.search("\n│|│⟧", row.plain())


@pytest.mark.parametrize("name", [*FAMILIES])
def test_every_character_is_there(tmp_path: Path, name: str) -> None:
    row = user_assistant("Hello 🙂  World", "é…\n\tseven", "再", "Lima")
    path = write(tmp_path / "f.jsonl", json.dumps(row).encode())
    tokenizer = family_tokenizer(name)
    (shown,) = show(path, tokenizer)
    expected = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    joined = "".join(piece.text for piece in shown.pieces)
    assert joined == (expected if FAMILIES[name].end else expected.rstrip() + "<|endoftext|>")
    assert any(piece.special for piece in shown.pieces)
    assert sum(piece.trained for piece in shown.pieces) <= shown.supervised


def test_first_rows_or_the_row_of_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, b"", GOOD_TEXT, GOOD, GOOD)
    assert [row.where for row in show(path)] == [f"{path}:{line}" for line in (1, 3, 4)]
    assert [row.where for row in show(path, count=9)] == [f"{path}:{line}" for line in (1, 3, 4, 5)]
    assert [row.where for row in show(path, line=3)] == [f"{path}:3"]
    for line in (2, 6):
        with pytest.raises(DataError, match="no row here") as caught:
            show(path, line=line)
        assert caught.value.problems[0].where == f"{path}:{line}"


def test_both_answers_of_a_pair(tmp_path: Path) -> None:
    row = {"question": "Ping", "chosen": "Pong", "rejected": "Bang"}
    path = write(tmp_path / "f.jsonl", json.dumps(row).encode())
    shown = show(path, rules={"trains": "preferences"})
    assert [one.where for one in shown] == [f"{path}:1 chosen", f"{path}:1 rejected"]
    asked = "<|im_start|>user⏎\nPing<|im_end|>⏎\n<|im_start|>assistant⏎\n"
    texts = [one.plain().replace("│", "") for one in shown]
    assert texts == [f"{asked}⟦{answer}<|im_end|>⟧⏎" for answer in ("Pong", "Bang")]


def test_notes(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Say ", "completion": "the end"},
        chat(("user", "q"), ("assistant", "a", False)),
        user_assistant("q", "word " * 40),
    ]
    path = write(tmp_path / "f.jsonl", *(json.dumps(row).encode() for row in rows))
    joined, untrained, long = show(path, tiny_tokenizer(vocab_size=600), rules={"max_length": 30})
    assert "joins prompt and completion" in joined.headline
    assert "dropped: nothing_to_train" in untrained.headline and "⟦" not in untrained.plain()
    assert "30 tokens" in long.headline and "truncated" in long.headline and long.plain().endswith("⟧")


def test_bad_rows_are_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, json.dumps({"messages": [{"role": "student"}]}).encode())
    with pytest.raises(DataError) as caught:
        show(path)
    assert len(caught.value.problems) == 2 and {p.where for p in caught.value.problems} == {f"{path}:2"}
    path = write(tmp_path / "g.jsonl", json.dumps(chat(("system", "s"), ("assistant", "a"))).encode())
    with pytest.raises(DataError, match="System role"):
        show(path, family_tokenizer("gemma"))
    with pytest.raises(DataError, match="no such file"):
        show(str(tmp_path / "none"))


def test_rows_that_take_several_lines_or_share_one(tmp_path: Path) -> None:
    rows = [user_assistant("q", f"answer {i}") for i in range(3)]
    path = write(tmp_path / "f.json", json.dumps(rows, indent=2).encode())
    lines = [int(row.where.rpartition(":")[2]) for row in show(path)]
    assert lines[2] > 3
    for index, line in enumerate(lines):
        (row,) = show(path, line=line)
        assert row.where == f"{path}:{line}" and f"answer {index}" in row.plain().replace("│", "")
    first, second, third = (json.dumps(row).encode() for row in rows)
    shared = write(tmp_path / "g.json", b"[", first + b",", second + b", " + third, b"]")
    assert [row.where for row in show(shared)] == [f"{shared}:2", f"{shared}:3", f"{shared}:3"]
    said = [row.plain().replace("│", "") for row in show(shared, line=3)]
    assert len(said) == 2 and "answer 1" in said[0] and "answer 2" in said[1]
    csv = write(tmp_path / "h.csv", b"prompt,completion", b'"a', b"b", b'c",d', b"e,f")
    assert [row.where for row in show(csv)] == [f"{csv}:2", f"{csv}:5"]
    assert [row.where for row in show(csv, line=5)] == [f"{csv}:5"]


def test_a_source_is_found_as_training_finds_it(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", *(json.dumps({"text": f"{name} {i}"}).encode() for i in range(20)))
    first = tmp_path / "a.jsonl"
    for source in (f"{tmp_path}", f"{tmp_path}/*.jsonl", f"{tmp_path}#15", f"file://{first}"):
        assert all(row.where.startswith(f"{first}:") for row in show(source)), source
        assert [row.where for row in show(source, line=7)] == [f"{first}:7"]
    assert [row.where for row in show(f"{first}#3")] != [f"{first}:{line}" for line in (1, 2, 3)]
    assert len(show(f"{first}#2", count=9)) == 2


def test_messages_of_trees(tmp_path: Path) -> None:
    tree = {"message_tree_id": "a", "lang": "en"}
    pieces = [
        {**tree, "message_id": "a", "parent_id": None, "role": "prompter", "text": "question"},
        {**tree, "message_id": "b", "parent_id": "a", "role": "assistant", "text": "answer", "rank": 0},
        {**tree, "message_id": "x", "parent_id": "gone", "role": "assistant", "text": "lost"},
    ]
    path = write(tmp_path / "f.jsonl", *(json.dumps(piece).encode() for piece in pieces))
    (row,) = show(path, line=1)
    assert "answer" in row.plain().replace("│", "") and row.where == f"{path}:1"
    assert next(rows_to_show(SourceSpec(path=path), tiny_tokenizer(), TokenRules(), count=1)).where == f"{path}:1"
    with pytest.raises(DataError) as caught:
        show(path, line=3)
    assert caught.value.problems[0].where == f"{path}:3" and "no row here" not in str(caught.value)
