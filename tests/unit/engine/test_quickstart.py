"""The quickstart's answers, without its model: those that its run has kept, before the first step and of its result."""

from __future__ import annotations

import json
from pathlib import Path

from rankzero.engine.quickstart import quickstart
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec


def test_answers_are_those_of_the_first_step_and_of_the_result(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs/quickstart")
    value = {"name": "quickstart", "model": {"name": "m"}, "data": {"train": "rows.jsonl"}, "lora": {}}
    spec = RunSpec.model_validate({**value, "output_dir": str(tmp_path / "runs")})

    def train(_spec: RunSpec) -> dict[str, int]:
        run_dir.root.mkdir(parents=True)
        rows = [
            {"step": step, "prompt": prompt, "text": f"{prompt}\u2028at {step}"}
            for step in (0, 20, 40, 60)
            for prompt in "ab"
        ]
        run_dir.samples.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return {"final_step": 40}  # the best, not the last

    found = quickstart(spec, train)
    assert found.answers == [("a", "a\u2028at 0", "a\u2028at 40"), ("b", "b\u2028at 0", "b\u2028at 40")]
    assert found.run_dir == run_dir.root
