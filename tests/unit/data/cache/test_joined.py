"""Rows of several data sets are what they are in their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankzero.data.cache.joined import JoinedRows
from rankzero.data.cache.labels import label_codes
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl


def test_joined_rows_are_those_of_their_data_sets(tmp_path: Path) -> None:
    tokenizer, rows = tiny_tokenizer(), chat_rows(12)
    rows[4]["messages"][1]["loss_weight"] = 0.5
    parts = []
    for name, chosen in (("a", [5, 0, 4]), ("b", [11])):
        path = write_jsonl(tmp_path / name / "rows.jsonl", rows)
        parts.append(
            (prepare([SourceSpec(path=str(path))], tokenizer, TokenRules(), tmp_path / "cache"), np.array(chosen))
        )
    joined = JoinedRows(parts)
    flat = [(dataset, int(row)) for dataset, chosen in parts for row in chosen]
    assert len(joined) == len(flat) == 4
    for i, (dataset, row) in enumerate(flat):
        ours, theirs = joined.row(i), dataset.row(row)
        assert np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])
        assert joined.where(i) == dataset.where(row) and joined.images(i) == dataset.images(row)
        assert (joined.weights(i) is None) == (dataset.weights(row) is None)
        for name in ("lengths", "supervised", "loss_weights"):
            assert getattr(joined, name)[i] == getattr(dataset, name)[row]
    for outside in (-1, 4):
        with pytest.raises(IndexError):
            joined.row(outside)


def test_their_labels_are_joined_by_name(tmp_path: Path) -> None:
    tokenizer, parts = tiny_tokenizer(), []
    for name, labels in (("a", ["no", "yes", "no"]), ("b", ["maybe", "yes"])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"x {i}", "label": at} for i, at in enumerate(labels)])
        dataset = prepare([SourceSpec(path=str(path))], tokenizer, TokenRules(trains="label"), tmp_path / "cache")
        parts.append((dataset, np.arange(len(labels))[::-1]))
    assert label_codes(JoinedRows(parts), ("no", "yes", "maybe")).tolist() == [0, 1, 0, 1, 2]
