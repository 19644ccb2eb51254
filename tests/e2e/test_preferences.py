"""What docs/preferences.md says of other ways to begin: a base in 4 bits, and a fine-tune that was merged before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tasks import task_spec

pytestmark = pytest.mark.e2e
FEW: dict[str, Any] = {"rows": 8, "dropout": 0.0, "train__max_steps": 4, "eval__on_start": True}


def learns(spec: RunSpec) -> None:
    """From a model that prefers neither answer of any pair."""
    report, first = run_here(spec), metrics(spec)[0]
    assert first["step"] == 0 and first["eval_loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert report["eval_loss"] < first["eval_loss"] and metrics(spec)[-1]["train_reward_margin"] > 0


def test_a_base_in_4_bits(tmp_path: Path, one_thread: None) -> None:
    learns(task_spec("dpo", tmp_path, model__quantization="nf4", **FEW))


def test_after_a_fine_tune(tmp_path: Path, cli: Any, one_thread: None) -> None:
    """The reference is the merged model: before the first step nothing is preferred to it."""
    pairs = task_spec("dpo", tmp_path, name="preferred", model__name=str(tmp_path / "merged"), **FEW)
    tuned = small_spec(tmp_path, tmp_path / "model", name="tuned", eval_rows=0, train__max_steps=4)
    run_here(tuned)
    done = cli(f"merge {run_root(tuned)} -o {tmp_path / 'merged'}")
    assert done.code == 0, done.err
    learns(pairs)
