"""One run that faults happen to: started, started again, and compared at the end with one that nothing happened to."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from rankzero.run_dir.atomic import verify_directory
from rankzero.run_dir.goodput import read_starts
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.faults.injector import Fault, rank_of_a_run
from tests.support.forked import in_ranks
from tests.support.runs import metrics, run_root, small_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

STEPS, EVERY = 6, 2
CHANGES: dict[str, Any] = {
    **{"rows": 16, "eval_rows": 5, "checkpoint__every": EVERY},
    "eval": {"every": 3, "prompts": ["Where does the harbour lie?", "Count."], "max_new_tokens": 4},
}
_IN_A_RUN = {
    *("run.yaml", "environment.json", "metrics.jsonl", "logs", "checkpoints", "final", "report.json", "goodput.json"),
    *("best", "last", "lease.json", ".lease.lock", "restarts.jsonl", "starts.jsonl", "saves.jsonl", "data.json"),
    *("report.html", "error.json", "eval.json", ".eval.lock", "merge.json", "samples.jsonl", "events"),
}

COUNTS: Counter[str] = Counter()
"""Over all rows: faults injected, runs that ended as if undisturbed, most steps lost, bytes changed, and noticed."""


@dataclass(frozen=True)
class Ended:
    """How a start did."""

    codes: list[int]
    said: str
    report: dict[str, Any] | None


class Scene:
    """A run in a folder of its own; `draw` decides by the seed alone."""

    def __init__(self, folder: Path, tiny: Path, seed: int, nproc: int, **changes: Any) -> None:
        self.folder, self.nproc, self.draw = folder, nproc, random.Random(seed)
        self.spec = small_spec(folder, tiny, **CHANGES, **changes)
        self.run_dir = RunDir(run_root(self.spec))
        self._starts = 0
        self.faults: set[str] = set()

    def start(self, *faults: Fault, spec: RunSpec | None = None) -> Ended:
        """The same command, with what happens to it."""
        self._starts += 1
        directory = self.folder / f"start-{self._starts}"
        directory.mkdir()
        COUNTS["injected"] += len(faults)
        self.faults |= {fault.what for fault in faults}
        listed = json.dumps([asdict(fault) for fault in faults])
        arguments = ((spec or self.spec).model_dump_json(), listed, str(directory))
        codes = in_ranks(rank_of_a_run, self.nproc, directory, os.environ["RANKZERO_CACHE"], *arguments)
        said = "".join(path.read_text() for path in sorted(directory.glob("said-*")))
        report = directory / "report.json"
        return Ended(codes, said, json.loads(report.read_text()) if report.is_file() else None)

    def saved(self) -> int:
        """The step of the newest checkpoint, every byte of which is as it was written; 0: there is none."""
        steps = self.run_dir.committed_steps()
        return int(verify_directory(self.run_dir.checkpoint(steps[0]))["step"]) if steps else 0

    def lost(self, done: int) -> None:
        """Take note of how many of the steps that were done are not saved: at most an interval of them, and another
        while a checkpoint is being written."""
        steps = done - self.saved()
        assert 0 <= steps < 2 * EVERY, steps
        COUNTS["most steps lost"] = max(COUNTS["most steps lost"], steps)

    def continues(self, whole: RunSpec) -> Ended:
        """The same command goes on to the end, which is that of the undisturbed run to the last bit."""
        ended = self.start()
        assert ended.codes == [0] * self.nproc, ended.said
        self.is_as(whole)
        return ended

    def is_as(self, whole: RunSpec) -> None:
        """Metrics, weights, optimizer, generators and position are those of the undisturbed run; nothing else lies
        about."""
        assert [row["step"] for row in metrics(self.spec)] == list(range(1, STEPS + 1))
        assert without_clock(metrics(self.spec)) == without_clock(metrics(whole))
        assert_same_state(final_state(self.spec), final_state(whole))
        assert answers(self.spec) == answers(whole)
        strays = [path.name for path in self.run_dir.root.iterdir() if path.name not in _IN_A_RUN]
        strays += [path.name for path in self.run_dir.checkpoints.iterdir() if path.name.startswith(".")]
        assert strays == [], strays
        self.all_time_is_accounted_for()
        COUNTS["ended as if undisturbed"] += 1

    def all_time_is_accounted_for(self) -> None:
        """Seconds by kind, of monotonic clocks, add up to the wall time of all starts; what was done twice is known."""
        starts, total = read_starts(self.run_dir.starts), json.loads(self.run_dir.goodput.read_text())
        if "clock" not in self.faults:  # one that jumps has no wall time
            assert total["wall_seconds"] == pytest.approx(starts[-1].updated - starts[0].begun, rel=0.01)
        rounding = 0.0005 * (len(total["seconds"]) + 1)  # each is written in thousandths
        assert sum(total["seconds"].values()) == pytest.approx(total["wall_seconds"], abs=rounding + 1e-9)
        assert (total["starts"], total["steps"]) == (len(starts), STEPS) and starts[-1].ended == "finished"
        again = sum(before.step - after.from_step for before, after in itertools.pairwise(starts))
        assert again >= 0 and (total["seconds"]["repeated"] > 0) == (again > 0)


def answers(spec: RunSpec) -> list[dict[str, Any]]:
    """What the run's prompts were answered, each once a step."""
    path = run_root(spec) / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "time")} for line in lines]
