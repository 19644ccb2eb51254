"""Runs and sweeps that an earlier version left behind: every command goes on with them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.version_before import PLACE, unpack, unpack_as_it_is

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What it left, where commands are typed."""
    monkeypatch.chdir(unpack(tmp_path))
    return tmp_path


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_stopped_run_is_continued_by_the_same_command(left: Path, cli: Cli) -> None:
    before = metrics(left / "runs" / "stopped")
    done = cli("train run.yaml")
    assert done.code == 0, done.err
    warned = [line for line in done.err.splitlines() if "WARNING" in line]
    unsaid = [line for line in warned if PLACE not in line]
    assert "bit-exactly" in done.err and " not bit-exactly" in done.err
    assert all("data" in line and "taken for the same" in line for line in unsaid), "that it lay elsewhere, and no more"
    steps = [row["step"] for row in metrics(left / "runs" / "stopped") if "loss" in row]
    assert steps == [1, 2, 3, 4], "none is trained again"
    assert metrics(left / "runs" / "stopped")[: len(before)] == before
    # Its twin was never stopped. Another CPU sums in another order.
    ends = [metrics(left / "runs" / name)[-1]["eval_loss"] for name in ("stopped", "done")]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)


def test_a_stopped_run_whose_rows_changed_as_well_is_refused(left: Path, cli: Cli) -> None:
    rows = (left / "rows.jsonl").read_text()
    (left / "rows.jsonl").write_text(rows.replace("It is 3.", "It is three, which is one and two."))
    done = cli("train run.yaml")
    assert done.code == 78 and "the training data" in done.err and "--allow-change data" in done.err


def test_a_finished_run_is_not_trained_again(left: Path, cli: Cli) -> None:
    weights = (left / "runs/done/final/adapter_model.safetensors").stat().st_mtime_ns
    done = cli("train run.yaml name=done")
    assert done.code == 0, done.err
    assert (left / "runs/done/final/adapter_model.safetensors").stat().st_mtime_ns == weights


COMMANDS = [
    "status done",
    "status stopped",
    "list",
    "logs done",
    "compare done stopped",
    "report done stopped --compare --output page.html",
    'generate runs/done "What is 1 plus 2?" --max-new-tokens 2',
    'generate runs/stopped/checkpoints/step-3/model "What is 1 plus 2?" --max-new-tokens 2',
    "eval runs/done --data rows.jsonl --max-new-tokens 2",
    "merge runs/done --output merged",
    "merge runs/stopped/checkpoints/step-3/model --output merged",
    "export runs/done --output plain",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_knows_it(command: str, left: Path, cli: Cli) -> None:
    done = cli(command)
    assert done.code == 0, done.err
    assert "WARNING" not in done.err and "warning:" not in done.err


MOVED = [
    "status stopped --json",
    "compare done stopped",
    'generate runs/done "What is 1 plus 2?" --max-new-tokens 2',
    'generate runs/done "What is 1 plus 2?" --max-new-tokens 2 --base',
    'generate sweeps/search/trials/trial-000 "What is 1 plus 2?" --max-new-tokens 2',
    "serve runs/stopped/checkpoints/step-3/model --print --engine transformers",
    "eval runs/done --data rows.jsonl --max-new-tokens 2",
    "merge runs/stopped/checkpoints/step-3/model --output merged",
    "report done",
]


@pytest.mark.parametrize("command", MOVED)
def test_a_command_does_the_same_where_all_of_it_was_moved_to(
    command: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the base: it lies as it lay from the run."""
    said = []
    for place in (unpack(tmp_path / "here"), unpack_as_it_is(tmp_path / "moved")):
        monkeypatch.chdir(place)
        done = cli(command)
        assert done.code == 0 and "WARNING" not in done.err, done.err
        said.append(done.out.replace(str(place), "").replace(PLACE, ""))
    if command.startswith("serve"):  # a merge is known by where the adapter's files are
        said = [re.sub(r"/served/\w+", "", text) for text in said]
    assert said[0] == said[1]


def test_a_sweep_goes_on_after_its_trials(left: Path, cli: Cli) -> None:
    weights = (left / "sweeps/search/trials/trial-000/final/adapter_model.safetensors").stat().st_mtime_ns
    done = cli("sweep sweep.yaml trials=2")
    assert done.code == 0, done.err
    assert sorted(os.listdir(left / "sweeps/search/trials")) == ["trial-000", "trial-001"]
    assert (left / "sweeps/search/trials/trial-000/final/adapter_model.safetensors").stat().st_mtime_ns == weights


def test_a_sweep_goes_on_where_its_directory_was_moved_to(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained: its trial is over."""
    place = unpack(tmp_path / "first")
    for name, unsure in (("second", True), ("third", False)):
        place = place.rename(tmp_path / name)
        monkeypatch.chdir(place)
        done = cli("sweep sweep.yaml")
        assert done.code == 0, done.err
        assert ("which is gone" in done.err) == unsure, "the version before noted no content"
