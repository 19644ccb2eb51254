"""`rankzero.data.check` and `show`, as a notebook calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rankzero
from rankzero.errors import UsageError
from tests.support.tiny import chat_rows, write_jsonl


def test_bad_rows_are_found_and_raised_on_request(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [*chat_rows(2), {"messages": []}])
    found = rankzero.data.check(path)
    assert not found.ok and "rows.jsonl:3" in found.problems[0].where
    assert "rows         3 in 1 file" in str(found) and "rows.jsonl:3: " in str(found)
    with pytest.raises(rankzero.DataError, match="rows.jsonl:3"):
        found.raise_if_bad()
    assert found._repr_html_().startswith("<iframe srcdoc=")


def test_columns_and_several_sources(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [{"q": "Ping", "a": "Pong"}])
    second = write_jsonl(tmp_path / "b.jsonl", chat_rows(2))
    mapped = {"path": str(first), "columns": {"prompt": "q", "completion": "a"}}
    found = rankzero.data.check([mapped, second])
    assert found.ok and found.report.counts.rows == 3


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array])
def test_files_may_be_in_whatever_holds_several(kind: Callable[[list[str]], Any], tmp_path: Path) -> None:
    names = [str(write_jsonl(tmp_path / f"{n}.jsonl", chat_rows(n))) for n in (1, 2)]
    assert rankzero.data.check(kind(names)).report.counts.rows == 3


def test_a_column_may_hold_files_and_a_table_is_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    table = pandas.DataFrame({str(write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))): ["its only row"]})
    assert rankzero.data.check(pandas.Series(table.columns)).report.counts.rows == 2
    with pytest.raises(UsageError, match="of type DataFrame, and no path"):
        rankzero.data.check(table)


def test_no_image_root_is_the_directory_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    said = [{"role": "user", "content": "<image>look"}, {"role": "assistant", "content": "yes"}]
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": said, "images": ["a.png"]}])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for root in ({}, {"image_root": None}, {"image_root": ""}):
        rankzero.data.check({"path": str(path), **root}, images=True).raise_if_bad()


def test_trained_tokens_are_shown(tmp_path: Path, tiny: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    rows = rankzero.data.show(path, str(tiny), rows=2)
    assert len(rows) == 2 and "⟦" in str(rows[0])
    [third] = rankzero.data.show(path, str(tiny), line=3)
    assert "rows.jsonl:3" in third.headline
    found = rankzero.data.check(path, model=str(tiny))
    assert found.ok and found.serving is not None and found.report.counts.tokens is not None


def test_nothing_to_train_is_a_problem(tmp_path: Path, tiny: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    found = rankzero.data.check(path, model=str(tiny), max_length=8)
    assert not found.report.log.total and not found.ok
    assert "no example has a trained token" in found.problems[0].what


def test_a_run_yaml_is_looked_at_by_its_own_rules(tmp_path: Path, tiny: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{name: {tiny}}}\ndata: {{train: rows.jsonl, max_length: 64}}\n")
    assert [row.supervised > 0 for row in rankzero.data.show(path)] == [True, True]
    assert rankzero.data.check(path).ok
    for call in (rankzero.data.show, rankzero.data.check):
        with pytest.raises(UsageError, match="names its model"):
            call(path, model=str(tiny))
    with pytest.raises(UsageError, match="takes a model"):
        rankzero.data.show(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"path": "r.jsonl", "format": "alpca"}, rankzero.ConfigError, "data format: .*did you mean alpaca"),
        ({"path": "r.jsonl", "colums": {"a": "b"}}, rankzero.ConfigError, "data colums: unknown key.*mean columns"),
        (["r.jsonl", {"format": "chat"}], rankzero.ConfigError, r"data\[1\] path: required"),
        ({"path": "${NO_SUCH}/r.jsonl"}, rankzero.ConfigError, "variable NO_SUCH is not set"),
        ("", UsageError, "data: it is ''"),
        ([], UsageError, "data: there is no data"),
        (None, UsageError, "of type NoneType"),
        ([{"text": "a"}], UsageError, "data: this is a row.*in .jsonl"),
        ([["a"], ["b"]], UsageError, r"data\[0\]: it is of type list"),
        (np.zeros((2, 2)), UsageError, "of type ndarray, and no path"),
        (np.array("r.jsonl"), UsageError, "of type ndarray, and no path"),
        (np.zeros(1), UsageError, "data: it is of type float64"),
    ],
)
def test_what_is_no_data_is_said_by_the_rules_of_a_spec(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        rankzero.data.check(given)


def test_what_is_no_data_to_evaluate_on_is_said_so_too(tmp_path: Path) -> None:
    from rankzero.api.data_sources import sources_of

    with pytest.raises(rankzero.ConfigError) as caught:
        sources_of([{"path": "a", "formt": "chat"}, {"path": "b", "weight": 0}])
    assert [problem.where for problem in caught.value.problems] == ["data[0] formt", "data[1] weight"]


def test_a_model_may_be_a_path(tmp_path: Path, tiny: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    assert rankzero.data.check(iter([path]), model=tiny).ok
    assert rankzero.data.show(path, tiny, rows=1)[0].headline
