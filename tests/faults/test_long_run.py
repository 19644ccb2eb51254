"""A long run under random faults, by the command that a user types: the right end, and nothing grows or is left behind.

`make soak-run` takes MINUTES (30) for it and prints what was done; `make test` leaves it out, other tests have each
of these faults once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_root, small_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

MINUTES = float(os.environ.get("MINUTES", "0"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.distributed,
    pytest.mark.skipif(not MINUTES, reason="make soak-run: half an hour"),
    pytest.mark.timeout(60 * 60 * 3),
]

STEPS = int(200 * MINUTES)
EVERY = 10
"""Steps between two checkpoints."""
WARM = 100
"""Steps after which a process has everything that it needs."""
MOST_GROWTH = 32 << 20
"""Bytes: what allocators keep differs that much from one moment to another."""
RIGHT = {"kill a rank": {0}, "suspend a rank": {0}, "stop": {75, 0}, "kill the command": {-signal.SIGKILL, 0}}
WEIGHTS = {"kill a rank": 10, "suspend a rank": 1, "stop": 3, "kill the command": 3}


@dataclass
class Watched:
    """One process over its life: the memory and the open files that it had first, and had at most in the end."""

    process: psutil.Process
    seen: list[tuple[int, int]] = field(default_factory=list)

    def look(self) -> None:
        try:
            self.seen.append((self.process.memory_info().rss, self.process.num_fds()))
        except psutil.Error:
            return

    def growth(self) -> tuple[int, int]:
        """Bytes and open files, from the first half of its life to the second: the least of each."""
        half = len(self.seen) // 2
        if half < 8:
            return 0, 0
        first, second = self.seen[half // 2 : half], self.seen[half:]
        return (
            min(rss for rss, _ in second) - min(rss for rss, _ in first),
            min(fds for _, fds in second) - min(fds for _, fds in first),
        )


class Command:
    """`rankzero train` in two processes, given again whenever it has ended before the run has."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.yaml = folder / "run.yaml"
        self.yaml.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.watched: list[Watched] = []
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "rankzero", "train", str(self.yaml), "--nproc-per-node", "2"]
        env = {**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen([*words, "--max-restarts", "1000"], env=env, stdout=said, stderr=said)
        self.watched.append(Watched(psutil.Process(self.process.pid)))

    def ranks(self) -> list[psutil.Process]:
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in children if "rankzero.engine.worker" in child.cmdline()]
        except psutil.Error:
            return []

    def steps(self) -> int:
        path = run_root(self.spec) / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-4000:]


def spec_in(folder: Path, tiny: Path) -> RunSpec:
    folder.mkdir()
    changes = {"train__max_steps": STEPS, "train__learning_rate": 0.001, "checkpoint__every": EVERY, "eval__every": 50}
    return small_spec(folder, tiny, **changes)


def test_the_right_end_and_nothing_left(tmp_path: Path, tiny: Path) -> None:
    draw, done = random.Random(1), Counter[str]()
    cut = Command(spec_in(tmp_path / "cut", tiny), tmp_path / "cut")
    suffered, target, seen_ranks = "", 25, set[int]()
    while True:
        time.sleep(0.2)
        cut.watched[-1].look()
        ranks = cut.ranks()
        seen_ranks |= {rank.pid for rank in ranks}
        code = cut.process.poll()
        if code is not None:
            assert code in RIGHT.get(suffered, {0}), cut.said()
            if code == 0:
                break
            cut.start()
        elif cut.steps() >= target and len(ranks) == 2:
            suffered = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            done[suffered] += 1
            if suffered == "stop":
                cut.process.terminate()
            elif suffered == "kill the command":
                cut.process.kill()
            else:
                number = signal.SIGKILL if suffered == "kill a rank" else signal.SIGSTOP
                draw.choice(ranks).send_signal(number)
            target = cut.steps() + draw.randrange(15, 80)
    left = [pid for pid in seen_ranks if psutil.pid_exists(pid) and "rankzero" in str(psutil.Process(pid).cmdline())]
    assert left == [], "orphans"
    growths = [watched.growth() for watched in cut.watched]
    assert max(rss for rss, _ in growths) < MOST_GROWTH and max(fds for _, fds in growths) <= 0, growths

    whole = Command(spec_in(tmp_path / "whole", tiny), tmp_path / "whole")
    ranks: dict[int, Watched] = {}
    while whole.process.poll() is None:
        time.sleep(0.2)
        for rank in whole.ranks() if whole.steps() > WARM else ():
            ranks.setdefault(rank.pid, Watched(rank)).look()
    assert whole.process.returncode == 0, whole.said()
    growths = [watched.growth() for watched in ranks.values()]
    assert len(growths) == 2
    assert max(rss for rss, _ in growths) < MOST_GROWTH and max(fds for _, fds in growths) <= 0, growths

    assert without_clock(metrics(cut.spec)) == without_clock(metrics(whole.spec))
    assert_same_state(final_state(cut.spec), final_state(whole.spec))
    root, wanted = run_root(cut.spec), run_root(whole.spec)
    strays = {path.name for path in root.iterdir()} - {path.name for path in wanted.iterdir()}
    assert strays <= {"restarts.jsonl"}, strays
    assert {path.name for path in (root / "checkpoints").iterdir()} == {
        path.name for path in (wanted / "checkpoints").iterdir()
    }
    assert not list(cut.temporary.iterdir()), "temporary files"
    starts = json.loads((root / "goodput.json").read_text())["starts"]
    print(f"\n{STEPS} steps in {starts} starts: {dict(done)}")
