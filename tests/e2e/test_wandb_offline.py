"""Runs that W&B keeps offline, read from its own files. `make test-trackers` installs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import StoppedError
from rankzero.track.wandb import problems
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in
from tests.support.wandb_file import history, records, summary

pytestmark = pytest.mark.trackers
pytest.importorskip("wandb", reason="`make test-trackers` installs W&B")

KEY = "canary" + "0" * 34


def test_a_run_stopped_and_continued(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of each start has the run so far: every step once, settings, answers, how it ended. Where cores are
    busy a start may have one before it, of a sender that did not come to its end."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    asked = {"every": 4, "prompts": ["Who?", "What?"], "max_new_tokens": 3}
    spec = small_spec(tmp_path, tiny, tracking__wandb=True, eval=asked)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    tracking = run_root(spec) / "tracking"
    first = max(tracking.glob("wandb/offline-run-*/*.wandb"))
    run_here(spec, log_level="INFO")
    second = max(tracking.glob("wandb/offline-run-*/*.wandb"))
    key = json.loads((tracking / "wandb.json").read_text())["key"]
    assert first.name == second.name == f"run-{key}.wandb"
    assert [row["_step"] for row in history(first) if "train/loss" in row] == list(range(1, 7))
    rows = history(second)
    losses = [(row["_step"], row["_timestamp"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(row["step"], pytest.approx(row["time"], abs=1e-3), row["loss"]) for row in metrics(spec)]
    evaluated = [(row["_step"], row["eval/eval_loss"]) for row in rows if "eval/eval_loss" in row]
    assert evaluated == [(row["step"], row["eval_loss"]) for row in metrics(spec) if "eval_loss" in row]
    answers = [json.loads(line) for line in (run_root(spec) / "samples.jsonl").read_text().splitlines()]
    assert [answer for row in rows if "samples/path" in row for answer in table(second, row)] == answers
    [about] = [record.run for record in records(second) if record.WhichOneof("record_type") == "run"]
    settings = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert (about.project, about.display_name, settings["lora.r"]) == ("rankzero", "small", 4)
    assert summary(second)["final_step"] == json.loads((run_root(spec) / "report.json").read_text())["final_step"]
    ends = [record.exit.exit_code for record in records(second) if record.WhichOneof("record_type") == "exit"]
    assert ends == [0]
    assert f"wandb sync {second.parent}" in log(spec)
    written = "".join(path.read_text(errors="replace") for path in tracking.rglob("*") if path.is_file())
    assert KEY not in written


def table(file: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    found = json.loads((file.parent / "files" / row["samples/path"]).read_text())
    return [dict(zip(found["columns"], values, strict=True)) for values in found["data"]]


def test_what_is_missing_is_said_before_the_run(tmp_path: Path) -> None:
    home = {"NETRC": str(tmp_path / "none")}
    assert [problem.what for problem in problems(home)] == ["WANDB_API_KEY is not set"]
    assert problems({**home, "WANDB_MODE": "offline"}) == problems({**home, "WANDB_API_KEY": "k"}) == []
    assert "disabled" in problems({**home, "WANDB_MODE": "disabled"})[0].what
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k")
    assert problems({"NETRC": str(tmp_path / "netrc")}) == []
