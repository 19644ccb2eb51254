"""What a run tells its hooks, in which order, and what becomes of an error in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankzero.data.batches.loader import MicroBatch
from rankzero.engine.hooks import Hooks
from rankzero.run_dir.paths import RunDir
from tests.support.runs import metrics, run_here, run_root, small_spec


def test_hooks_hear_of_each_step_its_passes_and_every_checkpoint(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__num_train_epochs=1, checkpoint__every=2)
    heard: list[tuple[str, int]] = []
    losses: dict[int, float] = {}
    told: list[object] = []

    def passed(step: int, batch: MicroBatch, loss: torch.Tensor) -> None:
        heard.append(("pass", step))
        assert len(batch.targets_N) and not loss.requires_grad
        losses[step] = losses.get(step, 0.0) + loss.item()

    def saved(step: int) -> None:
        heard.append(("saved", step))
        assert step in RunDir(run_root(spec)).committed_steps()

    def ends(step: int, facts: dict[str, object]) -> None:
        heard.append(("ends", step))
        told.append({"step": step, **facts})

    hooks = Hooks(
        step_begins=lambda step: heard.append(("begins", step)), pass_done=passed, step_ends=ends, saved=saved
    )
    assert run_here(spec, hooks=hooks)["steps"] == 4
    assert [what for what in dict.fromkeys(heard) if what[0] != "saved"] == [
        (event, step) for step in (1, 2, 3, 4) for event in ("begins", "pass", "ends")
    ]
    assert [what for what in heard if what[0] == "saved"] == [("saved", 2), ("saved", 4)]
    assert all(heard.index(("saved", step)) > heard.index(("ends", step)) for step in (2, 4))
    assert told == metrics(spec)
    rows = {row["step"]: row for row in metrics(spec)}
    assert {step: loss / rows[step]["supervised_tokens"] for step, loss in losses.items()} == pytest.approx(
        {step: row["loss"] for step, row in rows.items()}
    )


def test_an_error_in_a_hook_ends_the_run(tmp_path: Path, tiny: Path) -> None:
    def broken(step: int) -> None:
        raise LookupError(f"in step {step}")

    with pytest.raises(LookupError, match="in step 1"):
        run_here(small_spec(tmp_path, tiny, eval_rows=0), hooks=Hooks(step_begins=broken))
