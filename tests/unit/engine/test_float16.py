"""Training in float16: losses are scaled, gradients that overflow are computed again, and all of it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.engine import loss_scale
from rankzero.engine.checkpoint import Position
from rankzero.engine.loss_scale import after_overflow, after_step, with_loss_scale
from rankzero.engine.parallel.replicas import Replicated
from rankzero.errors import ExitCode, NonFiniteError, StoppedError
from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, small_spec, stop_in
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that computes float16: others do too, but slowly."""
    monkeypatch.setenv(CPU_FEATURES_VARIABLE, "avx512_fp16")


def half(root: Path, tiny: Path, **changes: Any) -> RunSpec:
    """Four steps, in float16."""
    few = {"model__dtype": "float16", "train__num_train_epochs": 1, "train__warmup_steps": 0}
    return small_spec(root, tiny, **{**few, "eval_rows": 0, "lora__dropout": 0.0, **changes})


def curve(spec: RunSpec) -> list[tuple[float, float]]:
    return [(row["loss"], row["grad_norm"]) for row in metrics(spec)]


def poison(monkeypatch: pytest.MonkeyPatch, *, step: int, attempts: int) -> list[float]:
    """Make the gradients of a step NaN, as often as it is tried up to `attempts`. Returns the scales that are tried."""
    reduce_gradients, tried = Replicated.reduce_gradients, []
    steps_before = {"n": 0}

    def poisoned(self: Replicated, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        tried.append(loss_scale)
        if steps_before["n"] == step - 1 and len(tried) - step < attempts:
            next(iter(self._parameters.values())).grad.fill_(float("nan"))  # type: ignore[union-attr]
        norm = reduce_gradients(self, max_grad_norm, loss_scale=loss_scale)
        steps_before["n"] += int(bool(norm.isfinite()))
        return norm

    monkeypatch.setattr(Replicated, "reduce_gradients", poisoned)
    return tried


@pytest.mark.parametrize("method", ["lora", "full", "nf4", "fp8"])
def test_it_trains_as_float32_does_within_its_precision(method: str, tmp_path: Path, tiny: Path) -> None:
    changes: dict[str, Any] = {"lora": None, "train__learning_rate": 1e-3} if method == "full" else {}
    if method in ("nf4", "fp8"):
        changes["model__quantization"] = method
    spec = half(tmp_path / "half", tiny, eval_rows=3, **changes)
    report = run_here(spec)
    assert report["environment"]["dtype"] == "float16" and report["train_loss_last"] < report["train_loss_first"]
    whole = half(tmp_path / "whole", tiny, eval_rows=3, **{**changes, "model__dtype": "float32"})
    assert report["eval_loss"] == pytest.approx(run_here(whole)["eval_loss"], rel=2e-3)
    assert {row["loss_scale"] for row in metrics(spec)} == {2.0**16} and metrics(spec)[-1]["overflows"] == 0
    assert "loss_scale" not in metrics(whole)[0]
    saved = load_file(next((run_root(spec) / "last/model").glob("*.safetensors")))
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}, "what is trained is held in float32"


def test_a_step_that_overflows_is_computed_again_and_nothing_else_changes(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a scale that is far too large, down to the one that the other run has from the beginning."""
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**40)
    large = half(tmp_path / "large", tiny)
    report = run_here(large)
    rows = metrics(large)
    assert report["overflows"] == rows[0]["overflows"] == rows[-1]["overflows"] > 0 == report["nonfinite_steps"]
    assert rows[0]["loss_scale"] == rows[-1]["loss_scale"] == 2.0 ** (40 - report["overflows"])
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", rows[-1]["loss_scale"])
    right = half(tmp_path / "right", tiny)
    assert run_here(right)["overflows"] == 0
    assert curve(right) == curve(large)
    assert (run_root(right) / "final/adapter_model.safetensors").read_bytes() == (
        run_root(large) / "final/adapter_model.safetensors"
    ).read_bytes()


def test_stopped_and_resumed_is_bit_exact_with_the_scale(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fallen before the stop, and is half way to where it rises."""
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**40)
    monkeypatch.setattr(loss_scale, "CLEAN_STEPS", 3)
    changes = {"eval_rows": 3, "lora__dropout": 0.1, "train__num_train_epochs": 2}
    whole, spec = half(tmp_path / "a", tiny, **changes), half(tmp_path / "b", tiny, **changes)
    run_here(whole)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(5))
    run_here(spec)
    assert_same_state(final_state(spec), final_state(whole))
    assert without_clock(metrics(spec)) == without_clock(metrics(whole))
    scales = [row["loss_scale"] for row in metrics(spec)]
    assert scales[2] == 2 * scales[1] and len(scales) == 8


def test_gradients_that_no_scale_makes_finite_end_the_run(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = poison(monkeypatch, step=3, attempts=100)
    with pytest.raises(NonFiniteError, match="step 3: the loss is [0-9.]+, the gradient norm nan") as stopped:
        run_here(half(tmp_path, tiny))
    assert stopped.value.exit_code == ExitCode.INTERNAL
    assert "model.dtype: float32" in stopped.value.problems[0].hint
    assert tried == [2.0**16] * 2 + [2.0**n for n in range(16, -1, -1)]


def test_such_a_step_may_be_skipped_and_the_scale_is_not_to_blame(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, step=3, attempts=17)
    spec = half(tmp_path, tiny, train__max_nonfinite_steps=1)
    report = run_here(spec)
    assert report["steps"] == 4 and report["nonfinite_steps"] == 1 and report["overflows"] == 0
    assert {row["loss_scale"] for row in metrics(spec)} == {2.0**16}


def test_other_precisions_do_not_try_again(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = poison(monkeypatch, step=2, attempts=1)
    with pytest.raises(NonFiniteError, match="step 2") as stopped:
        run_here(half(tmp_path, tiny, model__dtype="float32"))
    assert tried == [1.0, 1.0] and "float16" not in str(stopped.value)


def test_the_scale_falls_by_halves_and_rises_after_clean_steps() -> None:
    position = with_loss_scale(Position(), torch.float16)
    assert position.loss_scale == 2.0**16
    lower = after_overflow(position)
    assert lower is not None and (lower.loss_scale, lower.overflows, lower.clean_steps) == (2.0**15, 1, 0)
    for _ in range(loss_scale.CLEAN_STEPS - 1):
        lower = after_step(lower)
    assert lower.loss_scale == 2.0**15
    assert (after_step(lower).loss_scale, after_step(lower).clean_steps) == (2.0**16, 0)
    top = Position(loss_scale=loss_scale.LARGEST_SCALE, clean_steps=loss_scale.CLEAN_STEPS - 1)
    assert after_step(top).loss_scale == loss_scale.LARGEST_SCALE
    assert after_overflow(Position(loss_scale=loss_scale.SMALLEST_SCALE)) is None


def test_other_precisions_have_no_scale() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert with_loss_scale(Position(loss_scale=8.0, clean_steps=3), dtype).loss_scale is None
    assert after_step(Position()) == Position() and after_overflow(Position()) is None
    assert with_loss_scale(Position(loss_scale=8.0, clean_steps=3), torch.float16) == Position(
        loss_scale=8.0, clean_steps=3
    ), "a checkpoint's goes on"
