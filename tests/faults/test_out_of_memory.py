"""Memory that runs out in one of several ranks, and in a process that may take no more: the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ExitCode
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import metrics, run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

CHANGES = {"rows": 16, "eval__every": 3}
"""6 steps in all."""


@pytest.fixture(scope="module")
def losses(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    spec = small_spec(folder, tiny, **CHANGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(folder / "cache"))
        assert run_forked(spec, 1).codes == [0]
    return [row["loss"] for row in metrics(spec)]


def test_a_replica_makes_its_passes_again_and_all_cut_smaller_from_then_on(
    tmp_path: Path, tiny: Path, losses: list[float]
) -> None:
    """Were only one to, the ranks would count the rounds of an evaluation differently and wait for ever."""
    spec = small_spec(tmp_path, tiny, **CHANGES)
    ended = run_forked(spec, 2, Ordeal(out_of_memory_above=100))
    assert ended.codes == [0, 0], ended.said
    limit = json.loads((run_root(spec) / "pass-limit.json").read_text())["micro_batch_tokens"]
    events = [row for row in metrics(spec) if row.get("out_of_memory")]
    assert [(row["step"], row["micro_batch_tokens"]) for row in events] == [(3, limit)]  # the main rank's file
    assert f"passes have up to {limit} tokens from step 3 on" in ended.said
    assert [row["loss"] for row in metrics(spec)] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "planned", "there_is", "told"),
    [
        ("moe", 256, 150, ("router_aux_loss", "expert_load_max")),
        ("dpo", 512, 250, ("train_reward_accuracy", "train_reward_margin", "train_reward_chosen")),
    ],
)
def test_what_is_told_of_a_step_is_of_the_whole_batch_all_the_same(
    task: str, planned: int, there_is: int, told: tuple[str, ...], tmp_path: Path
) -> None:
    """What all ranks have counted together, or measured of passes that are made again, is not counted again by the one
    that begins its step again."""
    changes = {"rows": 16, "train__max_steps": 4, "train__micro_batch_tokens": planned}
    whole, cut = (task_spec(task, tmp_path / name, **changes) for name in ("whole", "cut"))
    assert run_forked(whole, 1).codes == [0]
    ended = run_forked(cut, 2, Ordeal(out_of_memory_above=there_is))
    assert ended.codes == [0, 0], ended.said
    found, wanted = metrics(cut), metrics(whole)
    assert any(row.get("out_of_memory") for row in found)
    for name in ("loss", *told):
        assert [row[name] for row in found] == pytest.approx([row[name] for row in wanted], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("together", [{"train__sharding": "fsdp"}, {"train__context_parallel": 2}])
def test_where_passes_are_collectives_the_next_start_has_smaller_ones(
    together: dict[str, Any], tmp_path: Path, tiny: Path, losses: list[float]
) -> None:
    spec = small_spec(tmp_path, tiny, **CHANGES, **together, checkpoint__every=2)
    trouble = Ordeal(out_of_memory_above=100)
    ended = run_forked(spec, 2, trouble)
    assert ended.codes == [ExitCode.SERVICE, ExitCode.INTERNAL], ended.said  # both may be tried again
    assert "out of memory" in ended.said and "it goes on in passes of up to" in ended.said
    ended = run_forked(spec, 2, trouble)
    assert ended.codes == [0, 0], ended.said
    assert "with 128 an earlier start ran out of memory" in ended.said
    assert [row["loss"] for row in metrics(spec)] == pytest.approx(losses, rel=1e-5)


def test_under_a_limit_of_the_system(tmp_path: Path, wide: Path) -> None:
    """All rows of a step at once take more than there is, half of them do not."""
    changes = {"eval_rows": 0, "lora": None, "train__global_batch_size": 256, "train__micro_batch_tokens": 8192}
    changes |= {"train__num_train_epochs": 1}
    whole, spec = (small_spec(tmp_path / name, wide, **changes) for name in "ab")
    for folder in "ab":  # rows of one length, so that all of a step are one pass
        write_jsonl(tmp_path / folder / "train.jsonl", chat_rows(1) * 256)
    assert run_forked(whole, 1).codes == [0]
    ended = run_forked(spec, 1, Ordeal(memory_in_step=(1, 150 * 2**20)))
    assert ended.codes == [0], ended.said
    assert "step 1: out of memory; made again in passes of up to" in ended.said
    assert json.loads((run_root(spec) / "pass-limit.json").read_text())["planned"] == 8192
    assert [row["loss"] for row in metrics(spec)] == pytest.approx([row["loss"] for row in metrics(whole)], rel=1e-4)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose activations are much larger than its weights."""
    return tiny_model(tmp_path_factory.mktemp("wide"), layers=4, hidden=256)
