"""Classes, images, four bits and experts: three interruptions later a run is where it would have been, bit for bit.

The first is a stop, the second a SIGKILL in the middle of a save, the third a stop again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankzero.errors import StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, run_root, stop_in
from tests.support.tasks import TASKS, task_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.faults

KILLED_IN_SAVE = """
import os, signal, sys
from pathlib import Path
from rankzero.engine.worker import run
from rankzero.run_dir import atomic
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

def kill(path):  # the files are written, and one is hashed: the manifest is not there yet
    if path.parent.name.startswith(".tmp-step-5"):
        os.kill(os.getpid(), signal.SIGKILL)
    return hashed(path)

hashed, atomic.file_sha256 = atomic.file_sha256, kill
run(RunSpec.model_validate_json(Path(sys.argv[1]).read_text()), RunOptions(log_level="WARNING"))
"""


def stop_in_step(spec: RunSpec, step: int) -> None:
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(step))
    assert len(metrics(spec)) == step


def kill_in_save(spec: RunSpec, path: Path) -> None:
    path.write_text(spec.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN_SAVE, str(path)], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((run_root(spec) / "checkpoints").glob(".tmp-step-5-*")), "killed while it was being written"
    assert not (run_root(spec) / "checkpoints/step-5").exists()


@pytest.mark.parametrize("task", TASKS)
def test_three_interruptions(task: str, tmp_path: Path) -> None:
    whole = task_spec(task, tmp_path / "whole")
    assert run_here(whole)["steps"] == 12
    spec = task_spec(task, tmp_path / "cut")
    stop_in_step(spec, 2)
    kill_in_save(spec, tmp_path / "spec.json")
    stop_in_step(spec, 7)
    assert run_here(spec)["steps"] == 12
    assert_same_state(final_state(spec), final_state(whole))
    assert without_clock(metrics(spec)) == without_clock(metrics(whole))
    results = {path.name: path.read_bytes() for path in (run_root(whole) / "final").glob("*.safetensors")}
    assert results == {path.name: path.read_bytes() for path in (run_root(spec) / "final").glob("*.safetensors")}
    assert results
