"""TokenizedDataset: rows from the map, selections, pickling, damage."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankzero.data.cache.dataset import SCHEMA, DatasetStats, TokenizedDataset, verify_bytes
from rankzero.data.cache.pictures import ImageFile, images_gone
from rankzero.data.images.embedded import kept_images
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import commit_directory

IMAGES = [ImageFile("/d/a.png", "aa", "1 2 3 4"), ImageFile("b0/b", "b", "")]

PARTS = [[[[1, 2, 3], [5]], [[7, 8]]], [[], [[9, 9, 9, 9]]]]
"""Rows of two parts of two record batches each (one of them empty)."""
LABELS = {1: "one", 2: None, 3: "three", 4: "one"}
"""The label of a row by its length."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two parts, as two shards could have written them; of each row the last token is trained."""
    staged = tmp_path / "staged"
    staged.mkdir()
    line = 0
    for number, batches in enumerate(PARTS):
        with pa.OSFile(str(staged / f"part-{number:05}.arrow"), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            for rows in batches:
                lines = [line + i + 1 for i in range(len(rows))]
                line += len(rows)
                columns = {
                    "input_ids": rows,
                    "trained": [[len(row) - 1, len(row)] for row in rows],
                    "weights": [[0.5] if len(row) == 4 else [] for row in rows],
                    "supervised": [1 for _ in rows],
                    "loss_weight": [0.5 if len(row) == 4 else 1.0 for row in rows],
                    "line": lines,
                    "source": [number for _ in rows],
                    "ties": [[line] for _ in rows],
                    "digest": [len(row) for row in rows],
                    "label": [LABELS[len(row)] for row in rows],
                    "images": [IMAGES if len(row) == 3 else None for row in rows],
                }
                writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    meta = {
        "fingerprint": "f",
        "parts": ["part-00000.arrow", "part-00001.arrow"],
        "stats": DatasetStats(rows_in=9, rows=4, dropped={"over_length": 5}, tokens=10, supervised_tokens=4).as_json(),
    }
    commit_directory(staged, tmp_path / "dataset", meta)
    return tmp_path / "dataset"


def rows_of(dataset: TokenizedDataset) -> list[tuple[list[int], list[bool]]]:
    return [(ids.tolist(), mask.tolist()) for ids, mask in map(dataset.row, range(len(dataset)))]


def test_rows_over_parts_and_batches(directory: Path) -> None:
    dataset = TokenizedDataset.open(directory, ["a.jsonl", "b.jsonl"])
    assert rows_of(dataset) == [
        ([1, 2, 3], [False, False, True]),
        ([5], [True]),
        ([7, 8], [False, True]),
        ([9, 9, 9, 9], [False, False, False, True]),
    ]
    assert dataset.lengths.tolist() == [3, 1, 2, 4] and dataset.lengths.dtype == np.int32
    assert dataset.supervised.tolist() == [1, 1, 1, 1] and dataset.supervised.dtype == np.int32
    assert [dataset.where(i) for i in range(4)] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3", "b.jsonl:4"]
    assert dataset.stats.rows_in == 9 and dataset.stats.dropped == {"over_length": 5}


def test_ids_come_straight_from_the_map(directory: Path) -> None:
    ids, mask = TokenizedDataset.open(directory, []).row(2)
    assert ids.dtype == np.int32 and not ids.flags.owndata and not ids.flags.writeable
    assert mask.dtype == np.bool_


def test_weights(directory: Path) -> None:
    dataset = TokenizedDataset.open(directory, [])
    assert dataset.loss_weights.tolist() == [1, 1, 1, 0.5]
    assert dataset.select([3, 0]).loss_weights.tolist() == [0.5, 1]
    assert [dataset.weights(i) is None for i in range(4)] == [True, True, True, False]
    weights = dataset.select([3]).weights(0)
    assert weights is not None and weights.tolist() == [0, 0, 0, 0.5] and weights.dtype == np.float32


def test_labels_and_images(directory: Path) -> None:
    dataset = TokenizedDataset.open(directory, [])
    assert list(dataset.label_names) == ["three", "one", None, "one"]
    assert dataset.label_names.names == ("three", "one")
    assert dataset.label_names[1:3] == ["one", None] and len(dataset.label_names) == 4
    assert list(dataset.select([3, 2, 3]).label_names) == ["one", None, "one"]
    images = ("/d/a.png", str(kept_images() / "b0" / "b"))
    assert [dataset.images(i) for i in range(4)] == [images, (), (), ()]
    assert dataset.select([1, 0]).images(1) == images and dataset.image_files() == set(IMAGES)
    assert images_gone(dataset.image_files()) == 1


@pytest.mark.parametrize("i", [-1, 4])
def test_rows_outside(directory: Path, i: int) -> None:
    dataset = TokenizedDataset.open(directory, [])
    with pytest.raises(IndexError):
        dataset.row(i)
    with pytest.raises(IndexError):
        dataset.select([0, i])


def test_selections(directory: Path) -> None:
    dataset = TokenizedDataset.open(directory, ["a", "b"])
    chosen = dataset.select([3, 0, 2])
    assert len(chosen) == 3 and chosen.lengths.tolist() == [4, 3, 2]
    assert rows_of(chosen) == [rows_of(dataset)[i] for i in (3, 0, 2)]
    nested = chosen.select(np.array([2, 0]))
    assert [nested.where(i) for i in range(2)] == ["a:3", "b:4"]
    assert (nested.stats.rows, nested.stats.tokens, nested.stats.supervised_tokens) == (2, 6, 2)
    assert nested.stats.dropped == {"over_length": 5}
    assert len(dataset.select([])) == 0
    prints = {d.fingerprint for d in (dataset, chosen, nested, dataset.select([0, 3, 2]), dataset.select([3, 0]))}
    assert len(prints) == 5
    assert dataset.select([2, 3]).fingerprint == nested.fingerprint


def test_pickles_as_its_path(directory: Path) -> None:
    chosen = TokenizedDataset.open(directory, ["a", "b"]).select([2, 3])
    data = pickle.dumps(chosen)
    assert len(data) < 1000
    again = pickle.loads(data)  # noqa: S301
    assert rows_of(again) == rows_of(chosen)
    assert (again.fingerprint, again.where(1)) == (chosen.fingerprint, "b:4")


def damaged(directory: Path, change: Any) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    del manifest["seal"]  # of an older version, which had none: the seal itself would tell
    path.write_text(json.dumps({**manifest, "format": 1}))


def test_damage_is_a_storage_error(directory: Path) -> None:
    damaged(directory, lambda manifest: manifest["files"]["part-00001.arrow"].update(size=1))
    with pytest.raises(StorageError, match="damaged") as caught:
        TokenizedDataset.open(directory, [])
    assert "delete" in caught.value.problems[0].hint
    (directory / "part-00001.arrow").unlink()
    with pytest.raises(StorageError, match="damaged"):
        TokenizedDataset.open(directory, [])


def test_every_byte_can_be_compared(directory: Path) -> None:
    verify_bytes(directory, workers=3)
    part = directory / "part-00001.arrow"
    flipped = bytearray(part.read_bytes())
    flipped[len(flipped) // 2] ^= 4
    part.write_bytes(flipped)
    with pytest.raises(StorageError, match="bytes are not those that were written") as caught:
        verify_bytes(directory)
    assert caught.value.problems[0].where == str(part)


def test_another_layout_is_a_storage_error(directory: Path, tmp_path: Path) -> None:
    staged = tmp_path / "other"
    staged.mkdir()
    schema = pa.schema({"x": pa.int32()})
    with pa.OSFile(str(staged / "part-00000.arrow"), "wb") as file, pa.ipc.new_file(file, schema):
        pass
    commit_directory(staged, directory, {"fingerprint": "f", "parts": ["part-00000.arrow"], "stats": {}})
    with pytest.raises(StorageError, match="another layout"):
        TokenizedDataset.open(directory, [])
