"""Data paths, taken apart."""

from __future__ import annotations

import pytest

from rankzero.spec.data_paths import DataPath, parse_data_path


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
        ("org/name[train[:1%]]", DataPath("local", "org/name[train[:1%]]")),
        ("AI-ModelScope/alpaca-gpt4-data-en#500", DataPath("hub", "AI-ModelScope/alpaca-gpt4-data-en", sample=500)),
        ("org/name@main", DataPath("hub", "org/name", revision="main")),
        ("hf://datasets/org/name/x.parquet#2", DataPath("url", "hf://datasets/org/name/x.parquet", sample=2)),
        ("s3://bucket/x.jsonl", DataPath("url", "s3://bucket/x.jsonl")),
    ],
)
def test_paths(text: str, expected: DataPath) -> None:
    assert parse_data_path(text, {"a#1/b#2"}.__contains__) == expected
