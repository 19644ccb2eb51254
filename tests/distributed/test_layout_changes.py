"""One run that is stopped again and again and goes on in another layout each time: every change of layout there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ExitCode
from rankzero.spec.run_spec import RunSpec
from tests.faults.scene import COUNTS
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import run_here, small_spec
from tests.support.seeds import SEEDS
from tests.support.zero import NEEDS_DEEPSPEED, assert_same_curve

pytestmark = [pytest.mark.distributed, pytest.mark.faults]

Layout = tuple[str, int]
"""How it is sharded, and over how many processes."""

REPLICAS: tuple[Layout, ...] = (("ddp", 1), ("ddp", 2), ("ddp", 3), ("ddp", 4))
SHARDED: tuple[Layout, ...] = (("fsdp", 2), ("fsdp", 3))
ZERO: tuple[Layout, ...] = (("zero2", 2), ("zero2", 3), ("zero3", 2), ("zero3", 3))
METHODS: dict[str, dict[str, Any]] = {
    "adapters": {"lora__dropout": 0.1},
    "full": {"lora": None, "train__weight_decay": 0.1},
}


def tour(layouts: Sequence[Layout]) -> list[Layout]:
    """A closed walk that goes from each layout to each other one exactly once (Hierholzer's algorithm)."""
    ahead = {layout: [other for other in layouts if other != layout] for layout in layouts}
    walk, trail = [], [layouts[0]]
    while trail:
        if ahead[trail[-1]]:
            trail.append(ahead[trail[-1]].pop())
        else:
            walk.append(trail.pop())
    return walk


@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_tour_has_every_change_once(count: int) -> None:
    layouts = [("ddp", processes) for processes in range(1, count + 1)]
    walk = tour(layouts)
    changes = list(zip(walk, walk[1:], strict=False))
    assert len(changes) == count * (count - 1) == len(set(changes))
    assert all(before != after for before, after in changes)


def endure(layouts: Sequence[Layout], method: str, tiny: Path, tmp_path: Path) -> None:
    """A step in each layout of their tour; then compare with the run that one process made undisturbed."""
    walk = tour(layouts)

    def spec(name: str, sharding: str) -> RunSpec:
        changes: dict[str, Any] = {"train__max_steps": len(walk), "train__learning_rate": 0.001, **METHODS[method]}
        changes |= {"train__micro_batch_tokens": 64, "train__sharding": sharding, "checkpoint__every": 1000}
        return small_spec(tmp_path / name, tiny, rows=30, eval_rows=5, **changes)

    for step, (sharding, processes) in enumerate(walk, 1):
        last = step == len(walk)
        outcome = run_forked(spec("cut", sharding), processes, Ordeal() if last else Ordeal(stop_in_step=step))
        expected = ExitCode.DONE if last else ExitCode.STOPPED
        assert outcome.codes == [expected] * processes, f"step {step}, {walk[step - 2 : step]}: {outcome.said}"
    whole = spec("whole", "ddp")
    run_here(whole)
    assert_same_curve(spec("cut", "ddp"), whole)
    COUNTS["injected"] += len(walk) - 1
    COUNTS["changes of layout"] += len(walk) - 1


@pytest.mark.parametrize("method", METHODS)
def test_replicas_and_fsdp(method: str, tiny: Path, tmp_path: Path) -> None:
    few = (REPLICAS[0], REPLICAS[2], SHARDED[0])
    endure(few if SEEDS == 1 else REPLICAS + SHARDED, method, tiny, tmp_path)


@pytest.mark.parametrize("method", [pytest.param(method, marks=NEEDS_DEEPSPEED) for method in METHODS])
def test_zero_with_the_others(method: str, tiny: Path, tmp_path: Path) -> None:
    few = (REPLICAS[0], ZERO[0], ZERO[2])
    endure(few if SEEDS == 1 else (REPLICAS[0], REPLICAS[2], SHARDED[0], *ZERO), method, tiny, tmp_path)
