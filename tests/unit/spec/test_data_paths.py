"""Data paths, taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankzero.spec.data_paths import DataPath, RowSlice, parse_data_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.jsonl", DataPath("local", "train.jsonl")),
        ("train.jsonl#500", DataPath("local", "train.jsonl", sample=500)),
        ("data/train.jsonl", DataPath("local", "data/train.jsonl")),
        ("data/*.json.gz", DataPath("local", "data/*.json.gz")),
        ("/abs/dir", DataPath("local", "/abs/dir")),
        ("a#1/b#2", DataPath("local", "a#1/b#2")),  # exists
        ("a#1/missing.csv#3", DataPath("local", "a#1/missing.csv", sample=3)),
        ("tatsu-lab/alpaca", DataPath("hub", "tatsu-lab/alpaca")),
        ("nyu-mll/glue:sst2[train]", DataPath("hub", "nyu-mll/glue", "sst2", "train")),
        ("org/name[train[:1%]]", DataPath("hub", "org/name", split="train", rows=RowSlice(None, 1, True))),
        ("o/n:s[a[10:2_000]]@r#5", DataPath("hub", "o/n", "s", "a", "r", RowSlice(10, 2000), 5)),
        ("org/name[test[-10%:]]", DataPath("hub", "org/name", split="test", rows=RowSlice(-10, None, True))),
        ("org/name[train[a:b]]", DataPath("local", "org/name[train[a:b]]")),
        ("AI-ModelScope/alpaca-gpt4-data-en#500", DataPath("hub", "AI-ModelScope/alpaca-gpt4-data-en", sample=500)),
        ("org/name@main", DataPath("hub", "org/name", revision="main")),
        ("hf://datasets/org/name/x.parquet#2", DataPath("url", "hf://datasets/org/name/x.parquet", sample=2)),
        ("s3://bucket/x.jsonl", DataPath("url", "s3://bucket/x.jsonl")),
    ],
)
def test_paths(text: str, expected: DataPath) -> None:
    assert parse_data_path(text, {"a#1/b#2"}.__contains__) == expected


@pytest.mark.parametrize("subset", ["", ":sst2"])
@pytest.mark.parametrize("split", ["", "[train]", "[train[:1%]]", "[test[10:20]]"])
@pytest.mark.parametrize("revision", ["", "@v1.0", "@refs/pr/3"])
@pytest.mark.parametrize("sample", ["", "#5"])
def test_a_hub_data_set_as_text_again(subset: str, split: str, revision: str, sample: str) -> None:
    """Also of a pipeline, which gives it the split that it does not name."""
    from rankzero.pipelines.steps import data_path

    def parsed(text: str) -> DataPath:
        return parse_data_path(text, lambda _: False)

    text = f"o/n{subset}{split}{revision}{sample}"
    assert str(parsed(text)) == text
    meant = parsed(text) if split else replace(parsed(text), split="dev")
    assert meant.place == "hub" and parsed(data_path(text, "dev")) == meant
    assert data_path(text, "") == text


@pytest.mark.parametrize("text", ["rows.jsonl", "rows.jsonl#5", "s3://bucket/x.jsonl#2"])
def test_a_split_is_of_hub_data_sets_alone(text: str) -> None:
    from rankzero.pipelines.steps import data_path

    assert data_path(text, "train") == text == str(parse_data_path(text, lambda _: False))


@pytest.mark.parametrize(
    ("text", "n_rows", "bounds"),
    [
        (":1%", 1000, (0, 10)),
        (":1%", 149, (0, 1)),
        (":1%", 151, (0, 2)),
        ("50%:", 11, (6, 11)),
        ("-10%:", 100, (90, 100)),
        (":", 7, (0, 7)),
        ("2:5", 7, (2, 5)),
        ("-2:", 7, (5, 7)),
        (":-2", 7, (0, 5)),
        (":7", 7, (0, 7)),
        (":8", 7, None),
        ("5:5", 7, None),
        ("-8:", 7, None),
        (":1%", 10, None),
    ],
)
def test_rows_of_a_split(text: str, n_rows: int, bounds: tuple[int, int] | None) -> None:
    """As `load_dataset(…, split="train[…]")` has them."""
    rows = parse_data_path(f"o/n[train[{text}]]", lambda _: False).rows
    assert rows is not None and str(rows) == text
    if bounds is not None:
        assert rows.bounds(n_rows) == bounds
    else:
        with pytest.raises(ValueError, match="rows"):
            rows.bounds(n_rows)
