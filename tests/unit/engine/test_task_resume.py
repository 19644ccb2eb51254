"""Classes, images, four bits and experts: three interruptions later a run is where it would have been, bit for bit.

The first is a stop, the second a SIGKILL in the middle of a save, the third a stop again.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankzero.errors import StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import metrics, run_here, run_root, stop_in
from tests.support.tasks import TASKS, task_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.faults


def stop_in_step(spec: RunSpec, step: int) -> None:
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(step))
    assert len(metrics(spec)) == step


def kill_in_save(spec: RunSpec) -> None:
    """In a process of its own, when the files are written and one is hashed: the manifest is not there yet."""
    killed = run_forked(spec, 1, Ordeal(kill_in_save_of=5))
    assert killed.codes == [-signal.SIGKILL], killed.said
    assert list((run_root(spec) / "checkpoints").glob(".tmp-step-5-*")), "killed while it was being written"
    assert not (run_root(spec) / "checkpoints/step-5").exists()


@pytest.mark.parametrize("task", TASKS)
def test_three_interruptions(task: str, tmp_path: Path) -> None:
    whole = task_spec(task, tmp_path / "whole")
    assert run_here(whole)["steps"] == 12
    spec = task_spec(task, tmp_path / "cut")
    stop_in_step(spec, 2)
    kill_in_save(spec)
    stop_in_step(spec, 7)
    assert run_here(spec)["steps"] == 12
    assert_same_state(final_state(spec), final_state(whole))
    assert without_clock(metrics(spec)) == without_clock(metrics(whole))
    results = {path.name: path.read_bytes() for path in (run_root(whole) / "final").glob("*.safetensors")}
    assert results == {path.name: path.read_bytes() for path in (run_root(spec) / "final").glob("*.safetensors")}
    assert results
