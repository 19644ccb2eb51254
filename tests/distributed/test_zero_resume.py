"""A run under DeepSpeed's ZeRO is continued to the last bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.errors import ExitCode
from tests.support.forked import Ordeal, run_forked, suffer
from tests.support.runs import metrics, run_here, run_root
from tests.support.weights import with_lost_rows
from tests.support.zero import LOSS_TOLERANCE, NEEDS_DEEPSPEED, weights, zero_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = [pytest.mark.distributed, pytest.mark.faults, *NEEDS_DEEPSPEED]

STOPPED = [ExitCode.STOPPED] * 2


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("adapters", {"train__sharding": "zero2", "lora__dropout": 0.1}),
        ("full", {"train__sharding": "zero3", "train__offload": "optimizer"}),
    ],
    ids=["adapters-zero2", "full-zero3"],
)
def test_interrupted_three_times_it_ends_with_the_same_bits(
    method: str, changes: dict[str, Any], tmp_path: Path, tiny: Path
) -> None:
    whole, cut = (zero_spec(tmp_path / n, tiny, method, checkpoint__every=3, **changes) for n in ("whole", "cut"))
    assert run_forked(whole).codes == [0, 0]
    assert run_forked(cut, ordeal=Ordeal(stop_in_step=1)).codes == STOPPED
    killed = run_forked(cut, ordeal=Ordeal(kill_in_save_of=3))
    assert killed.codes[0] == -signal.SIGKILL
    assert killed.codes[1] > 0, "rank 1 saw that its peer was gone"
    assert list((run_root(cut) / "checkpoints").glob(".tmp-step-3-*")), "killed while it was being written"
    assert run_forked(cut, ordeal=Ordeal(stop_in_step=5)).codes == STOPPED
    last = run_forked(cut)
    assert last.codes == [0, 0] and "continuing from step 5 bit-exactly" in last.said
    assert_same_state(final_state(cut), final_state(whole))
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))
    assert torch.equal(weights(cut), weights(whole))


@pytest.mark.parametrize(("method", "sharding"), [("adapters", "zero2"), ("full", "zero3")])
def test_a_step_that_is_not_finite_is_skipped_whole(method: str, sharding: str, tmp_path: Path, tiny: Path) -> None:
    changes = {"train__max_nonfinite_steps": 1, "train__micro_batch_tokens": 64}
    expected = zero_spec(tmp_path / "replica", tiny, method, **changes)
    ordeal = Ordeal(nan_in_step=2)
    with pytest.MonkeyPatch.context() as patch:
        run_here(expected, hooks=suffer(ordeal, patch))
    spec = zero_spec(tmp_path / "zero", tiny, method, **changes, train__sharding=sharding)
    outcome = run_forked(spec, ordeal=ordeal)
    assert outcome.codes == [0, 0] and "step 2: the loss is nan" in outcome.said
    found, wanted = ([row["loss"] for row in metrics(s)] for s in (spec, expected))
    assert found[1] is None and wanted[1] is None, "JSON has no NaN"
    assert found[2:] == pytest.approx(wanted[2:], rel=LOSS_TOLERANCE)
    assert torch.allclose(weights(spec), weights(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_weights_that_were_lost_before_are_no_reason_to_end(sharding: str, tmp_path: Path, tiny: Path) -> None:
    """The rank whose part of them DeepSpeed keeps may be another than the one that saves those rows."""
    base = with_lost_rows(tiny, tmp_path / "base")
    spec = zero_spec(tmp_path, base, "full", train__sharding=sharding, train__max_steps=2, eval__every=100)
    outcome = run_forked(spec)
    assert outcome.codes == [0, 0], outcome.said
    assert "[MODEL] model.embed_tokens.weight: NaN or Inf before this start's first step" in outcome.said
