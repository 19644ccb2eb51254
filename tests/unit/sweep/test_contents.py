"""A sweep whose directory, model or rows lie elsewhere is the same sweep; one with other rows or weights is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.sweeps import run_sweep
from rankzero.errors import ConfigError, DataError, StorageError
from rankzero.run_dir.atomic import file_sha256
from rankzero.spec.sweep_load import Sweep
from rankzero.sweep import run as loop
from rankzero.sweep.place import SweepDir
from tests.support.sweeps import Formula, sweep_of
from tests.support.tiny import chat_rows, write_jsonl
from tests.support.unreadable import stale
from tests.support.version_before import unpack

DATA: dict[str, dict[str, Any]] = {
    "held out": {"train": "rows.jsonl", "eval": {"fraction": 0.2}},
    "several": {"train": [{"path": "rows.jsonl"}, {"path": "parts/*.jsonl", "weight": 2}], "eval": "eval.jsonl#5"},
    "images": {"train": [{"path": "rows.jsonl", "image_root": "images"}], "eval": "eval.jsonl"},
    "streamed": {"train": "rows.jsonl", "eval": "eval.jsonl", "streaming": True},
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(loop, "POLL_SECONDS", 0.0)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Where a sweep is begun: with a model, and rows."""
    place = tmp_path / "first"
    place.mkdir()
    shutil.copytree(unpack(tmp_path / "archive") / "base", place / "base")
    for name in ("rows.jsonl", "eval.jsonl", "parts/a.jsonl", "parts/b.jsonl"):
        write_jsonl(place / name, chat_rows(10))
    (place / "images").mkdir()
    (place / "images" / "a.png").write_bytes(b"a")
    return place


def sweep_in(place: Path, data: dict[str, Any], trials: int = 1) -> Sweep:
    run = {"model": {"name": "./base"}, "data": data, "lora": {"r": 8}, "train": {"max_steps": 4}, "eval": {"every": 2}}
    return sweep_of(place, run, trials=trials)


def goes_on(place: Path, data: dict[str, Any], trials: int) -> list[str]:
    """What is said of it before its trials."""
    said: list[str] = []
    result = run_sweep(sweep_in(place, data, trials), say=said.append, trainer=lambda _: Formula())
    assert [trial.state for trial in result.trials] == ["complete"] * trials
    return [line for line in said if "[TRIAL" not in line]


def problems(place: Path, data: dict[str, Any]) -> dict[str, str]:
    """Why it does not go on, by what it is about."""
    with pytest.raises(ConfigError) as refused:
        run_sweep(sweep_in(place, data, 9), say=lambda _: None, trainer=lambda _: Formula())
    assert all("another name" in problem.hint for problem in refused.value.problems)
    return {problem.where.partition(": ")[2]: problem.what for problem in refused.value.problems}


def change(file: Path) -> None:
    """A line more, or another last byte where there are no lines."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if file.suffix == ".safetensors" else content + b"\n")


@pytest.mark.parametrize("data", DATA.values(), ids=list(DATA))
def test_what_lies_elsewhere_is_the_same(first: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    assert goes_on(first, data, 1) == []
    copied = shutil.copytree(first, tmp_path / "copied")
    assert goes_on(copied, data, 2) == [], "beside what it was copied from"
    moved = first.rename(tmp_path / "moved")
    assert goes_on(moved, data, 3) == []


CHANGED = [
    ("held out", "base/model.safetensors", "model"),
    ("held out", "base/tokenizer.json", "tokenizer"),
    ("several", "rows.jsonl", "data"),
    ("several", "parts/b.jsonl", "data"),
    ("several", "eval.jsonl", "data.eval"),
    ("held out", "rows.jsonl", "data.eval"),
    ("streamed", "rows.jsonl", "data"),
]


@pytest.mark.parametrize(("data", "file", "identity"), CHANGED)
def test_what_changed_is_refused_where_it_is_and_elsewhere(
    first: Path, tmp_path: Path, data: str, file: str, identity: str
) -> None:
    goes_on(first, DATA[data], 1)
    change(first / file)
    found = problems(first, DATA[data])
    assert list(found) == [identity] and found[identity].endswith("scores would not compare")
    assert problems(first.rename(tmp_path / "moved"), DATA[data])


def test_a_stream_is_known_by_names_and_sizes(first: Path, tmp_path: Path) -> None:
    """Times are not what copies keep."""
    goes_on(first, DATA["streamed"], 1)
    os.utime(first / "rows.jsonl", ns=(0, 0))
    assert goes_on(first, DATA["streamed"], 2) == []
    copied = shutil.copytree(first, tmp_path / "copied", copy_function=shutil.copyfile)
    assert goes_on(copied, DATA["streamed"], 3) == []


def test_a_sweep_may_write_below_where_its_images_are(first: Path) -> None:
    data = {"train": [{"path": "rows.jsonl", "image_root": "."}], "eval": "eval.jsonl"}
    assert goes_on(first, data, 1) == [] and goes_on(first, data, 2) == []


def test_another_directory_of_images_is_refused_where_the_rows_are_the_same(first: Path, tmp_path: Path) -> None:
    """Trials on other images would be compared with those that were scored."""
    goes_on(first, DATA["images"], 1)
    (first / "sharper").mkdir()
    other = {**DATA["images"], "train": [{"path": "rows.jsonl", "image_root": "sharper"}]}
    assert problems(first, other)
    assert goes_on(first.rename(tmp_path / "moved"), DATA["images"], 2) == []


def test_what_changed_before_anything_was_scored_is_no_difference(first: Path) -> None:
    data = DATA["several"]
    run_sweep(sweep_in(first, data, 1), say=lambda _: None, trainer=lambda _: Formula())
    setting = SweepDir(sweep_in(first, data).directory)
    setting.record.unlink()
    change(first / "rows.jsonl")
    assert goes_on(first, data, 1) == []
    assert problems(first, {**data, "train": [{"path": "rows.jsonl"}]}), "other sources are another sweep all the same"


def test_each_file_is_read_once_in_a_start_and_many_bytes_are_said(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counting(path: Path) -> str:
        read.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr("rankzero.data.read.hashing.file_sha256", counting)
    assert goes_on(first, DATA["held out"], 1) == [] and read.count("rows.jsonl") == 1
    monkeypatch.setattr("rankzero.sweep.contents._SAID_BYTES", 1)
    (said,) = goes_on(first, DATA["held out"], 2)
    assert said.startswith("[STEP] read the sweep's files to know them: more than ") and read.count("rows.jsonl") == 2


def test_a_finished_sweep_is_asked_without_its_files(first: Path) -> None:
    data = DATA["several"]
    goes_on(first, data, 2)
    for name in ("rows.jsonl", "eval.jsonl", "base/model.safetensors"):
        (first / name).unlink()
    assert goes_on(first, data, 2) == []
    with pytest.raises(DataError, match="no such file"):
        run_sweep(sweep_in(first, data, 3), say=lambda _: None, trainer=lambda _: Formula())


def test_files_that_cannot_be_read_begin_no_sweep(first: Path) -> None:
    data = DATA["several"]
    with pytest.raises(DataError, match="no such file"):
        run_sweep(sweep_in(first, {**data, "eval": "evil.jsonl"}), say=print, trainer=lambda _: Formula())
    assert goes_on(first, data, 1) == []


def test_a_sweep_of_a_version_that_noted_no_content_is_known_by_its_names(first: Path, tmp_path: Path) -> None:
    data = DATA["several"]
    goes_on(first, data, 1)
    file = SweepDir(sweep_in(first, data).directory).setting
    record = json.loads(file.read_text())
    del record["contents"]
    file.write_text(json.dumps(record))
    copied = shutil.copytree(first, tmp_path / "copied")
    assert set(problems(copied, data)) == {"run: model.name", "run: data.train", "run: data.eval"}
    moved = first.rename(tmp_path / "moved")
    said = goes_on(moved, data, 2)
    assert len(said) == 3 and all("is gone" in line and "taken for the same" in line for line in said)
    assert goes_on(moved, data, 3) == [] and json.loads((moved / "sweeps/sweep/sweep.json").read_text())["contents"]


def test_a_sweep_that_is_renamed_goes_on_with_its_trials(first: Path) -> None:
    sweep = sweep_in(first, DATA["held out"], 2)
    before = run_sweep(sweep, say=lambda _: None, trainer=lambda _: Formula())
    sweep.directory.rename(sweep.directory.parent / "other")
    run = {"model": {"name": "./base"}, "data": DATA["held out"], "lora": {"r": 8}, "train": {"max_steps": 4}}
    renamed = sweep_of(first, {**run, "eval": {"every": 2}}, trials=3, name="other")
    place = Formula()
    after = run_sweep(renamed, say=lambda _: None, trainer=lambda _: place)
    assert after.trials[:2] == before.trials and place.started == ["trial-002"]


@pytest.mark.parametrize("name", ["eval.jsonl", "rows.jsonl", "base"])
def test_files_that_cannot_be_read_now_are_not_other_files(
    name: str, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep would end for good, since its scores would not compare."""
    data = DATA["several"]
    goes_on(first, data, 1)
    with monkeypatch.context() as patch:
        stale(patch, first / name)
        with pytest.raises(StorageError, match="cannot be read at the moment"):
            goes_on(first, data, 2)
    assert goes_on(first, data, 2) == []
