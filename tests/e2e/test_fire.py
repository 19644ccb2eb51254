"""The FIRE commands of the third seed as they are typed there, on synthetic trajectories."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.parse import parse
from tests.unit.datasets.support import fire_row, many_fire_rows, read_jsonl, trajectory, write_array

pytestmark = pytest.mark.e2e

SEED_LINE = "--output_dir ./test_outputs --image_dir ./test_images --max_samples 10 --splits train --skip-images"


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data set's file names, and this the working directory."""
    for name in ("MAX_SAMPLES", "MAX_HISTORY_ROUNDS", "FIRE_INPUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "raw"
    folder.mkdir()
    write_array(folder / "FIRE-train-100K.json", many_fire_rows(40))
    write_array(folder / "FIRE-test.json", many_fire_rows(12, seed=5))
    return folder


def loads_as_messages(path: Path) -> int:
    """Every row goes through the adapter, with one image; returns how many there are."""
    rows = 0
    for chunk in read_chunks(str(path)):
        parsed = parse(chunk, "messages")
        assert not parsed.problems
        assert all(len(row.images) == 1 and row.group and row.id for row in parsed.conversations)
        rows += len(parsed.conversations)
    return rows


def test_the_seeds_line(cli: Any, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli(f"data fire {SEED_LINE}")
    assert done.err.startswith("no --input: taking PengxiangLi/FIRE from the Hub\n") and done.code == 69
    assert "the network is not to be used" in done.err and "--input FILE, a folder or a URL" in done.err
    done = cli(f"data fire {SEED_LINE} --input raw")
    assert done.code == 0, done.err
    stats = json.loads(Path("test_outputs/stats.json").read_text())["splits"]
    assert list(stats) == ["train"] and stats["train"]["rows_in"] == 10
    written = Path("test_outputs/fire_bc_train.jsonl")
    assert loads_as_messages(written) == stats["train"]["rows_out"] == stats["train"]["steps_in"]
    assert f"{stats['train']['rows_out']} training rows" in done.out and "image_root: test_images" in done.out
    assert not Path("test_images").exists() and sorted(path.name for path in written.parent.iterdir()) == [
        "fire_bc_train.jsonl",
        "stats.json",
    ]
    monkeypatch.setenv("FIRE_INPUT", "raw")
    before = written.read_bytes()
    assert cli(f"data fire {SEED_LINE.replace('_dir', '-dir').replace('max_s', 'max-s')}").code == 0
    assert written.read_bytes() == before


def test_the_jobs_variables_are_defaults_of_the_flags(cli: Any, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_array(raw / "FIRE-test.json", [fire_row("a", "gqa/images/1.jpg", trajectory(9))] * 5)
    monkeypatch.setenv("MAX_SAMPLES", "3")
    monkeypatch.setenv("MAX_HISTORY_ROUNDS", "2")
    line = "data fire --output_dir out --image_dir img --splits test --skip-images --input raw"
    assert cli(line).code == 0
    rows = read_jsonl(Path("out/fire_bc_test.jsonl"))
    assert len(rows) == 27
    assert [f"Attempt {n}:" in rows[8]["messages"][0]["content"] for n in (6, 7, 8)] == [False, True, True]
    assert cli(f"{line} --max_samples 1 --max-history-rounds 8").code == 0
    rows = read_jsonl(Path("out/fire_bc_test.jsonl"))
    assert len(rows) == 9 and "Attempt 1:" in rows[8]["messages"][0]["content"]
    monkeypatch.setenv("MAX_SAMPLES", "0")
    assert cli(line).code == 0 and len(read_jsonl(Path("out/fire_bc_test.jsonl"))) == 45


def test_both_splits_with_images_from_an_archive(cli: Any, raw: Path, tmp_path: Path) -> None:
    with tarfile.open("images.tar", "w") as archive:
        for number in range(20):  # the others are missing
            buffer = io.BytesIO()
            Image.new("RGB", (6, 6), (number, 0, 0)).save(buffer, format="JPEG")
            for name in (f"coco/val2017/{number:012d}.jpg", f"gqa/images/{number}.jpg"):
                info = tarfile.TarInfo(name)
                info.size = len(buffer.getvalue())
                archive.addfile(info, io.BytesIO(buffer.getvalue()))
    done = cli(
        "data fire --output_dir out --image_dir img --input raw --images images.tar --eval-fraction 0.3 --workers 1"
    )
    assert done.code == 0, done.err
    stats = json.loads(Path("out/stats.json").read_text())
    assert list(stats["splits"]) == ["train", "test"]
    assert stats["splits"]["train"]["rows_dropped"] == {} and stats["splits"]["train"]["rows_in"] == 40
    assert {"coco", "gqa"} == set(stats["splits"]["train"]["images"]["sources"])
    names = ("fire_bc_train.jsonl", "fire_bc_eval.jsonl", "fire_bc_test.jsonl")
    assert all(loads_as_messages(Path("out") / name) for name in names)
    for row in (row for name in names for row in read_jsonl(Path("out") / name)):
        assert Image.open(Path("img") / row["images"][0]).size == (6, 6)
    groups = [{row["conversation_id"] for row in read_jsonl(Path("out") / name)} for name in names]
    pictures = [
        {(Path("img") / row["images"][0]).read_bytes() for row in read_jsonl(Path("out") / name)} for name in names
    ]
    assert not groups[0] & groups[1] and not pictures[0] & pictures[1], "also of coco and gqa, which have the same"
    shared = len((pictures[0] | pictures[1]) & pictures[2])
    assert stats["images_in_several_splits"] == shared and f"images that are in several splits: {shared}" in done.out
    assert "under two names" not in done.out
    done = cli("data fire --output_dir out --image_dir img --input raw --skip-images --eval-fraction 0.3")
    assert done.code == 0 and "one picture under two names may be on both sides" in done.out


def test_policies_and_the_multi_turn_shape(cli: Any, raw: Path) -> None:
    line = "data fire --output_dir out --image_dir img --input raw --splits train --skip-images"
    assert cli(f"{line} --shape multi-turn --skip-first --min-score 3").code == 0
    rows = read_jsonl(Path("out/fire_bc_train.jsonl"))
    stats = json.loads(Path("out/stats.json").read_text())
    train = stats["splits"]["train"]
    assert sum(turn.get("loss", False) for row in rows for turn in row["messages"]) == train["steps_out"]
    assert train["steps_dropped"].keys() == {"first attempt", "score below the minimum", "no score"}
    assert loads_as_messages(Path("out/fire_bc_train.jsonl")) == len(rows)
    assert stats["choices"]["shape"] == "multi-turn" and stats["choices"]["min_score"] == 3
    assert cli(f"{line} --final-only").code == 0
    assert len(read_jsonl(Path("out/fire_bc_train.jsonl"))) == 40


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ("--input raw --skip-images --images x", 2, "contradict"),
        ("--input raw --images raw --image-mode none", 2, "copy or link"),
        ("--input raw/none.json", 65, "no such file"),
        ("--input raw --splits ../x", 2, "cannot be a split"),
        ("--input raw --splits dev", 65, "no file of split dev"),
        ("--input raw --splits train", 65, "image missing"),
        ("--input raw --max_samples -1", 2, "max_samples"),
    ],
)
def test_faults_of_the_command_line(more: str, code: int, words: str, cli: Any, raw: Path) -> None:
    done = cli(f"data fire --output_dir out --image_dir img {more}")
    assert done.code == code and words in done.err
