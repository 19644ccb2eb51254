"""Rows as they lie on disk: the columns that Arrow makes of them, without what it would import to look at them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankzero.data.cache.dataset import SCHEMA
from rankzero.data.cache.encode import Block
from rankzero.data.cache.pictures import ImageFile
from rankzero.data.cache.segments import record_batch

IMAGE = ImageFile(*(f"{name} é" for name in ImageFile._fields))
ROWS: list[dict[str, Any]] = [
    {
        "input_ids": [5, 6, 7],
        "trained": [0, 1, 2, 3],
        "weights": [0.5, 2.0],
        "supervised": 2,
        "loss_weight": 2.5,
        "line": 1,
        "source": 3,
        "ties": [-(1 << 62), 4],
        "digest": -9,
        "label": "né",
        "images": [IMAGE._asdict(), IMAGE._asdict()],
    },
    {
        "input_ids": [],
        "trained": [],
        "weights": [],
        "supervised": 0,
        "loss_weight": 0.0,
        "line": 1 << 40,
        "source": 3,
        "ties": [1],
        "digest": 1 << 62,
        "label": None,
        "images": [],
    },
    {
        "input_ids": [8],
        "trained": [0, 1],
        "weights": [],
        "supervised": 1,
        "loss_weight": 1.0,
        "line": 7,
        "source": 3,
        "ties": [2],
        "digest": 0,
        "label": None,
        "images": [],
    },
]


def block(rows: list[dict[str, Any]]) -> Block:
    def flat(name: str, kind: Any) -> Any:
        return np.array([value for row in rows for value in row[name]], dtype=kind)

    def offsets(name: str) -> Any:
        return np.cumsum([0, *(len(row[name]) for row in rows)], dtype=np.int32)

    def plain(name: str, kind: Any) -> Any:
        return np.array([row[name] for row in rows], dtype=kind)

    return Block(
        input_ids=flat("input_ids", np.int32),
        offsets=offsets("input_ids"),
        ranges=flat("trained", np.int32),
        range_offsets=offsets("trained"),
        weights=flat("weights", np.float32),
        weight_offsets=offsets("weights"),
        supervised=plain("supervised", np.int32),
        loss_weight=plain("loss_weight", np.float64),
        lines=plain("line", np.int64),
        ties=flat("ties", np.int64),
        tie_offsets=offsets("ties"),
        digests=plain("digest", np.int64),
        labels=[row["label"] for row in rows],
        images=[tuple(ImageFile(**image) for image in row["images"]) for row in rows],
    )


@pytest.mark.parametrize(
    "rows", [ROWS, ROWS[1:], ROWS[1:2], ROWS[::-1], []], ids=["all", "text", "one", "back", "none"]
)
def test_columns_are_what_arrow_makes_of_the_rows(rows: list[dict[str, Any]]) -> None:
    written = record_batch(block(rows), 3)
    written.validate(full=True)
    assert written.schema == SCHEMA
    assert written.to_pylist() == pa.RecordBatch.from_pylist(rows, schema=SCHEMA).to_pylist() == rows


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]], ids=["some without", "all with"])
def test_texts_lie_as_arrow_lays_them(rows: list[dict[str, Any]]) -> None:
    """To the byte: what was written before is what is written now."""

    def lies(batch: Any) -> list[bytes | None]:
        buffers = [one for name in ("label", "images") for one in batch.column(name).buffers()]
        return [None if one is None else one.to_pybytes().rstrip(b"\0") for one in buffers]

    assert lies(record_batch(block(rows), 3)) == lies(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def test_arrays_that_are_a_view_of_larger_ones_are_written_as_they_are() -> None:
    whole = block(ROWS)
    wide = np.stack([whole.lines, whole.lines + 1], axis=1)
    whole.lines = wide[:, 1]
    assert record_batch(whole, 3).column("line").to_pylist() == [2, (1 << 40) + 1, 8]


_PREPARED = """
import sys
from rankzero.__main__ import main
rows, model, cache = sys.argv[1:]
sys.argv[1:] = ["data", "prepare", f"data.train={rows}", f"model.name={model}"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
from rankzero.data.cache.dataset import TokenizedDataset
from pathlib import Path
made = next(Path(cache).rglob("*.arrow")).parent
tokens = TokenizedDataset.open(made, ["rows.jsonl"])
print(len(tokens.row(4)[0]) > 0, tokens.where(4), "pandas" in sys.modules, file=sys.stderr)
"""


def test_text_is_tokenised_and_read_without_pandas(tmp_path: Path, tiny: Path, own_cache: Path) -> None:
    from tests.support.tiny import chat_rows, write_jsonl

    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(5))
    command = [sys.executable, "-c", _PREPARED, str(rows), str(tiny), str(own_cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "True rows.jsonl:5 False", done.stderr


_LABELLED = """
import sys
from types import SimpleNamespace
from rankzero.data.cache.dataset import TokenizedDataset
from tests.unit.data.cache.test_record_batch import ROWS, block
from rankzero.data.cache.segments import record_batch
batch = record_batch(block(ROWS), 3)
part = SimpleNamespace(chunks=lambda name: [batch.column(name)])
held = SimpleNamespace(_parts=[part], _chosen=lambda codes: codes)
labels, (image, _) = list(TokenizedDataset.label_names.func(held)), batch.column("images")[0].as_py()
print(labels, image["path"], "pandas" in sys.modules)
"""


def test_labels_and_images_are_written_and_read_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", _LABELLED], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == ["['né', None, None] path é False"], done.stderr
