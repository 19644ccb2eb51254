"""The quickstart's answers, without its model: what was asked is kept beside the run, and is on its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.engine import quickstart
from rankzero.report.run import Sample, read_run
from rankzero.spec.run_spec import RunSpec
from tests.support.run_directory import BEGUN, run_directory


def test_what_it_answers_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_directory(tmp_path / "runs/quickstart")
    value = {"name": "quickstart", "model": {"name": "m"}, "data": {"train": "rows.jsonl"}, "lora": {}}
    spec = RunSpec.model_validate({**value, "output_dir": str(tmp_path / "runs")})
    replies = iter(["old", "new"])

    def answers(_model: object, questions: tuple[str, ...], **_settings: Any) -> list[str]:
        reply = next(replies)
        return [f"{reply} {number}" for number, _ in enumerate(questions)]

    monkeypatch.setattr(quickstart, "ask", answers)
    monkeypatch.setattr(quickstart, "find_result", lambda *_target: None)
    result = quickstart.quickstart(spec, lambda _spec: {"final_step": 60})
    asked = list(enumerate(quickstart.QUESTIONS))
    assert result.answers == [(question, f"old {number}", f"new {number}") for number, question in asked]
    kept = [Sample(0, question, f"old {number}") for number, question in asked]
    kept += [Sample(60, question, f"new {number}") for number, question in asked]
    assert list(read_run(root, BEGUN).samples) == kept
