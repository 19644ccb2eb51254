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
