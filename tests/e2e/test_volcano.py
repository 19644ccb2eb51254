"""The Volcano command of the third seed as it is typed there, on synthetic rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.parse import parse
from tests.unit.datasets.support import read_jsonl, write_array
from tests.unit.datasets.test_volcano import CRITIQUE, DECIDE, REVISE, row

pytestmark = pytest.mark.e2e

SEED_LINE = "--output_dir ./test_volcano_local/outputs --image_dir ./test_volcano_local/images --split train"


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [
        row("What is it?", "A cat."),
        row(CRITIQUE, "There is no dog."),
        row(REVISE, "No."),
        row(DECIDE, "B"),
        row("Define entropy.", "A measure of disorder.", image=None),
        row("What is it?", "", image=None),
        row("<image>\nWhat?", "A bus.", image="textvqa/train_images/1.jpg"),
    ]
    return write_array(tmp_path / "volcano-train.json", rows * 3)


def test_the_seeds_line(cli: Any, raw: str) -> None:
    done = cli(f"data volcano {SEED_LINE} --max_samples 10 --skip-images --input {raw}")
    assert done.code == 0, done.err
    assert "2 answer" not in done.err and "critique" in done.out
    stats = json.loads(Path("test_volcano_local/outputs/stats.json").read_text())["splits"]["train"]
    assert (stats["rows_in"], stats["rows_out"], stats["rows_dropped"]) == (10, 9, {"turn without text": 1})
    assert stats["kinds"] == {"answer": 3, "critique": 2, "decide": 1, "revise": 2, "text": 1}
    for chunk in read_chunks("test_volcano_local/outputs/volcano_train.jsonl"):
        parsed = parse(chunk, "messages")
        assert not parsed.problems and len(parsed.conversations) == 9
        assert [len(one.images) for one in parsed.conversations] == [1, 1, 1, 1, 0, 1, 1, 1, 1]


def test_with_images(cli: Any, raw: str) -> None:
    for name in ("gqa/images/1.jpg", "textvqa/train_val_images/1.jpg"):
        path = Path("store") / name
        path.parent.mkdir(parents=True)
        Image.new("L", (3, 3)).save(path)
    done = cli(f"data volcano {SEED_LINE} --input {raw} --images store --image-mode link")
    assert done.code == 0, done.err
    rows = read_jsonl(Path("test_volcano_local/outputs/volcano_train.jsonl"))
    assert len(rows) == 18 and sum("images" not in one for one in rows) == 3
    for one in rows:
        assert all((Path("test_volcano_local/images") / image).is_file() for image in one.get("images", ()))
    assert "textvqa: 1 of 1 images" in done.out and "gqa: 1 of 1 images" in done.out


def test_without_input_it_is_the_hub_s(cli: Any, raw: str) -> None:
    done = cli(f"data volcano {SEED_LINE} --skip-images")
    assert done.code == 69 and "taking kaist-ai/volcano-train from the Hub" in done.err
