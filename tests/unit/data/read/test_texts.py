"""Texts to put into classes: labelled or not, in every kind of file, with every row that has none named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.data.read.texts import Text, read_texts
from rankzero.errors import DataError
from tests.support.tiny import write_jsonl


def test_rows_of_either_name_labelled_or_not(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"sentence": "b ", "label": -1}, {"text": "c", "label": "x", "more": [1]}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    assert read_texts(str(path)) == [Text("a", 1), Text("b ", 3), Text("c", 4)]


def test_other_kinds_of_files_and_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('review,stars\n"good, very",5\nbad,1\n')
    assert [row.text for row in read_texts(str(tmp_path / "rows.csv"), {"text": "review"})] == ["good, very", "bad"]
    (tmp_path / "rows.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
    assert [row.text for row in read_texts(str(tmp_path / "rows.json"))] == ["one", "two"]


def test_a_table_whose_first_line_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("A fine film.,5\nbad,1\n")
    with pytest.raises(DataError, match="looks like a row") as refused:
        read_texts(str(path), {"text": "column_1"})
    assert "--no-header" in refused.value.problems[0].hint
    assert [row.text for row in read_texts(str(path), {"text": "column_1"}, False)] == ["A fine film.", "bad"]
    assert [row.text for row in read_texts(str(path), {"text": "A fine film."}, True)] == ["bad"]


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "ok"}\n{"text": 3}\n{"review": "x"}\n[1]\n{"text": "\n{"text": " "}\n')
    with pytest.raises(DataError) as refused:
        read_texts(str(path))
    found = [problem.where.rpartition(":")[2] for problem in refused.value.problems]
    assert found == ["2", "3", "4", "5", "6"]
    assert "`text`, it has review" in str(refused.value) and "--columns text=" in str(refused.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_texts(str(tmp_path / "none.jsonl"))
