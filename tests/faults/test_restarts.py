"""Groups that die, hang or are suspended under the product's own launcher: ended, started again, equal at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankzero.launch import hang, local, processes
from rankzero.run_dir.view import view_run
from rankzero.spec.run_options import RunOptions
from tests.faults.injector import Fault, write_faults
from tests.support.forked import fork_workers, run_forked
from tests.support.runs import metrics, run_root, small_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = [pytest.mark.faults, pytest.mark.distributed]


def test_a_run_that_dies_is_suspended_and_hangs_ends_as_if_undisturbed(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One rank is killed, the other one suspended, and the first then holds the interpreter's lock for ever."""
    monkeypatch.setattr(processes, "SUSPENDED_SECONDS", 1.0)
    monkeypatch.setattr(hang, "FLOOR_SECONDS", 6.0)
    monkeypatch.setattr(local, "PAUSE_SECONDS", (0.0,))
    monkeypatch.setattr(processes, "TRAINS", "tests.faults.injector")
    changes = {"eval_rows": 0, "checkpoint__every": 2}
    whole, spec = (small_spec(tmp_path / name, tiny, **changes) for name in ("whole", "cut"))
    env = write_faults(
        tmp_path / "faults",
        Fault("SIGKILL", rank=0, step=4),
        Fault("SIGSTOP", rank=0, step=8),
        Fault("holds the interpreter", rank=1, step=11),
    )
    fork_workers(monkeypatch)
    options, pause, over = RunOptions(log_level="WARNING"), local._Local.pause, list[bool]()

    def looked_at_in(again: local._Local, seconds: float) -> bool:
        over.append(view_run(run_root(spec)).is_over)
        return pause(again, seconds)

    monkeypatch.setattr(local._Local, "pause", looked_at_in)
    report = json.loads(local.run_processes(spec, options, 2, {**os.environ, **env}, max_restarts=5))
    assert report["steps"] == 12
    said, root = capfd.readouterr().err, run_root(spec)
    assert over == [False] * 3 and view_run(root).is_over, "who watches waits for the next start"
    lines = [json.loads(line) for line in (root / "restarts.jsonl").read_text().splitlines()]
    assert len(lines) == 3, said
    for line, newest in zip(lines, (2, 6, 10), strict=True):  # or the one before, while that was still being written
        assert line["from_step"] in (newest, newest - 2 or None), said
    assert "process 0 was killed by SIGKILL" in lines[0]["what"] and lines[0]["where"].startswith("rank 0 on ")
    assert lines[1]["what"].startswith("rank 0 on ") and "was suspended (SIGSTOP)" in lines[1]["what"]
    assert "the others wait for rank 1 on" in lines[2]["what"] and "holds_the_interpreter" in lines[2]["what"]
    assert [line["exit_code"] for line in lines] == [70, 69, 69]
    stacks = {rank: (root / f"logs/hang-step-11/rank-{rank}.txt").read_text() for rank in (0, 1)}
    assert "wait_for_sum" in stacks[0] and "holds_the_interpreter" in stacks[1]
    assert run_forked(whole).codes == [0, 0]
    assert without_clock(metrics(spec)) == without_clock(metrics(whole))
    assert_same_state(final_state(spec), final_state(whole))
