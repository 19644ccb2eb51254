"""Node commands under a platform that replaces what leaves, killed at random: no hang, and every exit code is right.

`make soak` draws SOAK kills (200) and prints how many there were of each kind; `make test-slow` draws two.
tests/distributed/test_node_command.py has each kind by itself.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Literal, get_args

import psutil
import pytest

from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import is_finished
from rankzero.spec.run_spec import RunSpec
from tests.support.nodes import Pods
from tests.support.runs import metrics, run_here, run_root, small_spec

pytestmark = [pytest.mark.faults, pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("SOAK", "2"))
KILLS_OF_A_RUN = min(4, KILLS)
RUNS = KILLS // KILLS_OF_A_RUN
HANGS_AFTER_SECONDS = 600.0
"""Without anything having happened. A start takes seconds, and a node looks after 30 s whether the run is over."""
STEPS = 32

Kind = Literal["pod killed", "pod stopped", "process killed", "second pod"]
"""SIGKILL to the command; SIGTERM to it; SIGKILL to one of its processes; another pod of its index is started."""
Moment = Literal["start-up", "any step", "last second"]
RIGHT: dict[Kind | None, set[int]] = {
    None: {0},
    "pod killed": {-signal.SIGKILL, 0},
    "pod stopped": {75, 0},
    "process killed": {70, 0},
    "second pod": {75, 0},
}
"""Exit codes of a pod by what was done to it. 0: it had nothing left to do by then."""

drawn: Counter[str] = Counter()
left_with: Counter[str] = Counter()


@dataclass
class Pod:
    """One pod, and what was done to it."""

    node: int
    process: Popen[str]
    suffered: Kind | None = None


@dataclass
class Platform:
    """Starts a pod for every node, and another one where a pod has left without being done."""

    run: Pods
    pods: list[Pod] = field(default_factory=list)
    doubled: set[int] = field(default_factory=set)
    """Nodes that have had two pods at a time."""

    def start(self, node: int) -> None:
        self.pods.append(Pod(node, self.run.start(node)))

    def alive(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.process.poll() is None]

    def replace(self) -> bool:
        """Start what is missing; whether all nodes are done."""
        newest = {pod.node: pod for pod in self.pods}
        for node, pod in newest.items():
            if pod.process.poll() not in (None, 0):
                self.start(node)
        return all(pod.process.poll() == 0 for pod in self.pods if pod is newest[pod.node]) and not self.alive()

    def suffer(self, pod: Pod, kind: Kind) -> None:
        """Do that to a pod."""
        if kind == "process killed":
            workers = [
                child for child in psutil.Process(pod.process.pid).children() if "engine.worker" in str(child.cmdline())
            ]
            if not workers:  # there are none between two starts
                return
            workers[0].kill()
        elif kind == "second pod":
            self.start(pod.node)
            self.doubled.add(pod.node)
        else:
            pod.process.send_signal(signal.SIGKILL if kind == "pod killed" else signal.SIGTERM)
        pod.suffered = kind


def steps_done(spec: RunSpec) -> int:
    path = run_root(spec) / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until_moment(moment: Moment, draw: random.Random, platform: Platform) -> None:
    """Wait for it, while the platform goes on; or for the end of the run."""
    spec = platform.run.spec
    if moment == "last second":
        signs = [
            lambda: steps_done(spec) >= STEPS,
            lambda: (run_root(spec) / "final").exists(),
            lambda: is_finished(RunDir(run_root(spec)), spec),
            lambda: any(pod.process.poll() == 0 for pod in platform.pods),
        ]
        here = draw.choice(signs)
    elif moment == "any step":
        step = min(STEPS - 1, steps_done(spec) + draw.randrange(1, 9))

        def here() -> bool:
            return steps_done(spec) >= step
    else:
        pods = len(platform.pods)

        def here() -> bool:
            return len(platform.pods) > pods or steps_done(spec) > 0

    deadline = time.monotonic() + HANGS_AFTER_SECONDS
    while not here() and not platform.replace():
        assert time.monotonic() < deadline, all_that_is_known(platform)
        time.sleep(0.01)
    time.sleep(draw.choice((0.0, draw.uniform(0.0, 0.1), draw.uniform(0.0, 1.0))))


def all_that_is_known(platform: Platform) -> str:
    pods = [f"node {pod.node}: {pod.suffered or 'left alone'}, {pod.process.poll()}" for pod in platform.pods]
    return "\n".join([*pods, *(platform.run.log(node) for node in range(platform.run.settings.num_nodes))])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[list[float]]:
    """Losses of the same run left alone; at the end, what was drawn is printed."""
    spec = soaked(tmp_path_factory.mktemp("whole"), tiny)
    run_here(spec)
    yield [line["loss"] for line in metrics(spec)]
    print(f"\n{sum(drawn.values())} kills in {RUNS} runs")
    for title, counts in (("by kind and moment", drawn), ("how pods left", left_with)):
        print(title, *(f"  {count:4d}  {what}" for what, count in sorted(counts.items())), sep="\n")


def soaked(folder: Path, model: Path) -> RunSpec:
    return small_spec(folder, model, train__num_train_epochs=8, checkpoint__every=5, eval__every=16, lora__dropout=0.0)


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_that_is_killed_at_random_ends_as_if_it_had_not_been(
    seed: int, tmp_path: Path, tiny: Path, whole: list[float]
) -> None:
    draw = random.Random(seed)
    spec = soaked(tmp_path, tiny)
    nodes = 2 + seed % 3
    run = Pods(tmp_path, spec, num_nodes=nodes, rendezvous_seconds=HANGS_AFTER_SECONDS)
    platform = Platform(run)
    try:
        for node in draw.sample(range(nodes), nodes):
            platform.start(node)
        moments: list[Moment] = ["start-up", *draw.choices(["any step", "start-up"], [3, 1], k=2), "last second"]
        for moment in moments[-KILLS_OF_A_RUN:]:
            until_moment(moment, draw, platform)
            alive = [pod for pod in platform.alive() if pod.suffered is None]
            if not alive:
                drawn[f"too late, {moment}"] += 1
                continue
            pod = draw.choice(alive)
            kinds = [kind for kind in get_args(Kind) if pod.node or kind != "second pod"]
            kind: Kind = draw.choice(kinds)  # two pods of node 0 have one port here, and an address each on a cluster
            platform.suffer(pod, kind)
            drawn[f"{kind if pod.suffered else 'no process to kill'}, {moment}, {nodes} nodes"] += 1
        deadline = time.monotonic() + HANGS_AFTER_SECONDS
        while not platform.replace():
            assert time.monotonic() < deadline, all_that_is_known(platform)
            time.sleep(0.02)
    finally:
        run.end()
    for pod in platform.pods:
        left_with[f"{pod.suffered or 'left alone'}: {pod.process.returncode}"] += 1
        # Of two pods a node 0 that is new itself cannot tell which came later: the one that joins it last stays.
        either = RIGHT["second pod"] if pod.node in platform.doubled else set()
        assert pod.process.returncode in RIGHT[pod.suffered] | either, all_that_is_known(platform)
    lines = metrics(spec)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in lines] == pytest.approx(whole, abs=1e-4)
    assert is_finished(RunDir(run_root(spec)), run.spec)
    left = [child for child in psutil.Process().children(recursive=True) if "rankzero.engine.worker" in child.cmdline()]
    assert not left
