"""A rank that hangs within a step: the others leave with 69 after the spec's time, and the same command continues."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankzero.engine.hooks import Hooks
from rankzero.errors import ExitCode
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks, run_forked
from tests.support.runs import metrics, small_spec

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

SECONDS = 300.0
GONE = 9
"""Exit code of the rank that hung, when the test lets it go."""


def test_the_others_do_not_wait_for_ever(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2, train__collective_timeout_seconds=1)
    said = tmp_path / "said"
    said.mkdir()
    codes = in_ranks(one_hangs, 2, said, os.environ["RANKZERO_CACHE"], spec.model_dump_json())
    error = (said / "said-0").read_text()
    assert codes == [ExitCode.SERVICE, GONE], error
    assert "another process is gone, or does not answer" in error
    assert "Traceback" not in error
    assert run_forked(spec).codes == [0, 0]
    assert [row["step"] for row in metrics(spec)] == list(range(1, 13))
    again = run_forked(spec)
    assert again.codes == [0, 0] and "this run is finished" in again.said


def one_hangs(directory: Path, cache: str, text: str) -> None:
    """A rank of a run; rank 1 hangs in step 4 until rank 0 has left."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache

    def hang(step: int) -> None:
        if step == 4 and os.environ["RANK"] == "1":
            deadline = time.monotonic() + SECONDS
            while not (directory / "error-0.json").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(GONE)

    worker.run(RunSpec.model_validate_json(text), RunOptions(), Hooks(step_begins=hang))
