"""`rankzero data …` on rows with labels and on rows with images: the run spec says what they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankzero.model.vision import Vision
from tests.support import architectures
from tests.support.cli import Cli
from tests.support.pictures import draw, qwen_vl_files, vision_of
from tests.support.tiny import write_jsonl
from tests.support.vision_families import save
from tests.unit.data.support import user_assistant


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Cli:
    return Cli(capfd, monkeypatch)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architectures.save("distilbert", tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl_files(tmp_path_factory.mktemp("seeing"))


def run_file(directory: Path, rows: list[dict[str, Any]], model: Path, **values: Any) -> Path:
    train = write_jsonl(directory / "rows.jsonl", rows)
    spec = {"model": {"name": str(model)}, "data": {"train": str(train), **values.pop("data", {})}, **values}
    (directory / "run.yaml").write_text(json.dumps(spec))
    return directory / "run.yaml"


def of_json(cli: Cli, line: str) -> dict[str, Any]:
    done = cli(line)
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def test_labelled_rows(cli: Cli, classifier: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a dull film", "label": 0}, {"text": "a warm story", "label": 1}] * 2
    file = run_file(tmp_path, [*rows, {"text": "rain " * 90, "label": 1}], classifier, task="classify")
    found = of_json(cli, f"data check {file} data.max_length=64 --json")
    assert found["passed"] and found["labels"] == {"1": 3, "0": 2}
    assert found["tokens"]["truncated"] == 1 and found["tokens"]["trained_tokens"] == 0
    assert "trained" not in cli(f"data stats {file}").out
    prepared = of_json(cli, f"data prepare {file} data.max_length=64 --json")
    assert prepared["train"]["rows"] == prepared["train"]["supervised_tokens"] == 5
    assert "trained" not in cli(f"data prepare {file} data.max_length=64").out


def test_minus_one_is_a_class_where_it_is_named(cli: Cli, classifier: Path, tmp_path: Path) -> None:
    rows = [{"text": "a dull film", "label": label} for label in (-1, 0, 1, None)]
    file = run_file(tmp_path, rows, classifier, task="classify", data={"labels": ["-1", "0", "1"]})
    found = of_json(cli, f"data check {file} --json")
    assert found["labels"] == {"-1": 1, "0": 1, "1": 1} and found["dropped"] == {"unlabelled": 1}
    shown = cli(f"data show {file}")
    assert shown.code == 0 and "rows.jsonl:1" in shown.out
    without = of_json(cli, f"data check {file} data.labels=null --json")
    assert without["labels"] == {"0": 1, "1": 1} and without["dropped"] == {"unlabelled": 2}


def test_rows_without_a_label_are_bad_for_a_classifier(cli: Cli, classifier: Path, tmp_path: Path) -> None:
    rows = [{"text": "a dull film", "label": 0}, user_assistant("q", "a"), {"text": "b", "label": 1}]
    done = cli(f"data check {run_file(tmp_path, rows, classifier, task='classify')}")
    assert done.code == 65 and "rows.jsonl:2: the row has no label" in done.err


@pytest.fixture
def pictured(tmp_path: Path) -> list[dict[str, Any]]:
    draw(tmp_path, [(64, 64), (300, 200)])
    return [
        {**user_assistant("<image>what?", "seven"), "images": ["0.png"]},
        {**user_assistant("<image> or <image>?", "blue", "again", "red"), "images": ["0.png", "1.png"]},
        user_assistant("q", "a"),
    ]


def test_rows_with_images(cli: Cli, seeing: Path, tmp_path: Path, pictured: list[dict[str, Any]]) -> None:
    file = run_file(tmp_path, pictured, seeing)
    found = of_json(cli, f"data check {file} --json")
    vision: Vision = vision_of(seeing)
    of_images = 2 * vision.tokens(Image.open(tmp_path / "0.png")) + vision.tokens(Image.open(tmp_path / "1.png"))
    assert found["passed"] and found["serving"]["answers"] == 4 and not found["serving"]["rows_by_cause"]
    fewer = of_json(cli, f"data check {file} data.image_max_tokens=6 --json")
    assert found["tokens"]["tokens"] - fewer["tokens"]["tokens"] == of_images - (4 + 4 + 6)
    cut = of_json(cli, f"data check {file} data.max_length=50 --json")
    assert cut["tokens"]["dropped"] == {"image_cut_off": 1}


def test_what_a_processor_writes_around_an_image_is_no_other_prompt(
    cli: Cli, tmp_path: Path, pictured: list[dict[str, Any]]
) -> None:
    """In use as in training the processor writes it, into what the template prints."""
    model = save("gemma3", tmp_path / "gemma3")
    found = of_json(cli, f"data check {run_file(tmp_path, pictured, model)} --json")
    assert found["passed"] and found["serving"]["answers"] == 4 and not found["serving"]["rows_by_cause"]
    done = cli(f"data show {tmp_path / 'rows.jsonl'} --model {model} --row 1")
    assert done.code == 0 and "│<image_soft_token> × 4│<end_of_image>│" in done.out


def test_an_image_is_shown_as_one_piece(cli: Cli, seeing: Path, tmp_path: Path, pictured: list[dict[str, Any]]) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", pictured)
    done = cli(f"data show {file} --model {seeing} --row 2")
    assert done.code == 0 and "│<|image_pad|> × 4│" in done.out and "│<|image_pad|> × 54│" in done.out


def test_a_missing_image_is_bad_in_check_and_in_a_language_model_all_are(
    cli: Cli, seeing: Path, classifier: Path, tmp_path: Path, pictured: list[dict[str, Any]]
) -> None:
    (tmp_path / "1.png").unlink()
    done = cli(f"data check {run_file(tmp_path, pictured, seeing)}")
    assert done.code == 65 and "rows.jsonl:2: image '1.png': no such image" in done.err
    (tmp_path / "text").mkdir()
    model = architectures.save("qwen3", tmp_path / "text")
    done = cli(f"data check {run_file(tmp_path, pictured, model)}")
    assert done.code == 65 and done.err.count("a language model sees none") == 2
