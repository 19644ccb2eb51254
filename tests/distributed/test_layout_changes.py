"""One run that is stopped again and again and goes on in another layout each time: every change of layout there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.errors import ExitCode
from rankzero.spec.run_spec import RunSpec
from tests.faults.scene import COUNTS
from tests.support import vision_families
from tests.support.forked import Ordeal, run_forked
from tests.support.images import picture_rows
from tests.support.runs import run_here, run_root, small_spec
from tests.support.seeds import SEEDS
from tests.support.tiny import write_jsonl
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


@pytest.mark.usefixtures("bfloat16_computed")
@pytest.mark.parametrize(
    "layouts",
    [
        ("ddp", "fsdp"),
        ("fsdp", "ddp"),
        pytest.param(("ddp", "zero2"), marks=NEEDS_DEEPSPEED),
        pytest.param(("zero3", "ddp"), marks=NEEDS_DEEPSPEED),
    ],
    ids="-".join,
)
def test_a_tower_that_is_not_trained_stays_as_it_was(layouts: tuple[str, str], tmp_path: Path) -> None:
    """Its files are float32, and it is computed with in bfloat16."""
    vision_families.save("smolvlm", tmp_path / "model")
    rows = str(write_jsonl(tmp_path / "seen.jsonl", picture_rows(tmp_path, 16)))
    spec = small_spec(
        tmp_path,
        tmp_path / "model",
        eval_rows=0,
        lora=None,
        model__dtype="bfloat16",
        data__train=rows,
        train__max_steps=4,
        train__sharding=layouts[0],
    )
    assert run_forked(spec, 2, Ordeal(stop_in_step=2)).codes == [ExitCode.STOPPED] * 2
    after = spec.model_copy(update={"train": spec.train.model_copy(update={"sharding": layouts[1]})})
    outcome = run_forked(after, 2)
    assert outcome.codes == [ExitCode.DONE] * 2, outcome.said
    result, base = (load_file(path / "model.safetensors") for path in (run_root(spec) / "final", tmp_path / "model"))
    tower = [name for name in base if "vision_model" in name]
    assert tower and all(torch.equal(result[name], base[name]) for name in tower)
    assert any(not torch.equal(result[name], base[name]) for name in base)
