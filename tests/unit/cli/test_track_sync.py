"""`rankzero track sync`: what is left of a run goes to those of its trackers that can be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import RunSpec
from tests.support.cli import Cli
from tests.support.trackers import PUBLIC, SECRET, langfuse, note_start


def a_run(root: Path, **tracking: bool) -> RunDir:
    """One that is over, of two steps."""
    value = {"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}, "tracking": tracking}
    run_dir = RunDir(root / "r")
    run_dir.checkpoints.mkdir(parents=True)
    run_dir.spec.write_text(to_yaml(RunSpec.model_validate(value)))
    run_dir.metrics.write_text("".join(json.dumps({"step": n, "time": n, "loss": 1.0}) + "\n" for n in (1, 2)))
    note_start(run_dir, 1000.0, "finished")
    return run_dir


@pytest.mark.parametrize(("mood", "last"), [("well", "langfuse has everything"), ("error", "answered 500")])
def test_a_tracker_that_cannot_work_here_keeps_nothing_from_the_others(
    mood: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """It is named, and the command has not done what it was to do."""
    run_dir = a_run(tmp_path, mlflow=True, langfuse=True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with langfuse() as receiver:
        receiver.mood = mood
        for name, value in {"HOST": receiver.url, "PUBLIC_KEY": PUBLIC, "SECRET_KEY": SECRET}.items():
            monkeypatch.setenv(f"LANGFUSE_{name}", value)
        done = cli(f"track sync {run_dir.root}")
    assert done.code == 78 and "tracking.mlflow: MLFLOW_TRACKING_URI is not set" in done.err
    assert last in done.out + done.err
    assert len(receiver.named("step")) == (2 if mood == "well" else 0)
