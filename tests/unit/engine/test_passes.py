"""A pass that runs out of memory: the step is made again in smaller ones, with the same result, and that is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.data.batches.loader import MicroBatch
from rankzero.engine.device import Device
from rankzero.engine.distributed import LONGEST_WAIT, World
from rankzero.engine.passes import remembered
from rankzero.engine.setup import pass_memory
from rankzero.engine.step import Stepper
from rankzero.errors import ConfigError, StoppedError
from rankzero.model.memory import MemoryPlan
from rankzero.model.out_of_memory import is_out_of_memory
from rankzero.run_dir.atomic import write_json
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import fail_above
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in
from tests.support.tiny import chat_rows, write_jsonl
from tests.support.unreadable import stale


def too_much() -> None:
    """Torch's own words for more memory than there is."""
    torch.empty(1 << 58, dtype=torch.uint8)


def fail_in_evaluations(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have passes of more tokens fail where nothing is trained."""
    loss_sum = Stepper.loss_sum

    def counted(self: Any, batch: MicroBatch, *more: Any) -> torch.Tensor:
        if not torch.is_grad_enabled() and batch.computed > tokens:
            too_much()
        return loss_sum(self, batch, *more)

    monkeypatch.setattr(Stepper, "loss_sum", counted)


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    spec = small_spec(tmp_path_factory.mktemp("whole"), tiny)
    run_here(spec)
    return metrics(spec)


def assert_same_losses(found: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    """But for rounding: the same rows, the same dropout."""
    assert [row["step"] for row in found] == [row["step"] for row in whole]
    for name in ("loss", "grad_norm", "eval_loss"):
        values = [row[name] for row in found if name in row]
        assert values == pytest.approx([row[name] for row in whole if name in row], rel=1e-5), name


def test_what_torch_says_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        too_much()
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match")) and not is_out_of_memory(OSError())


def test_the_step_is_made_again_in_smaller_passes_and_later_starts_begin_with_them(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: list[dict[str, Any]]
) -> None:
    spec = small_spec(tmp_path, tiny)
    fail_above(100, monkeypatch)
    with pytest.raises(StoppedError):
        run_here(spec, log_level="INFO", hooks=stop_in(6))
    kept = json.loads((run_root(spec) / "pass-limit.json").read_text())
    limit = kept["micro_batch_tokens"]
    assert limit <= 64 and (kept["planned"], kept["ran_out_in"]) == (128, "step 3")
    events = [row for row in metrics(spec) if "out_of_memory" in row]
    assert [(row["step"], row["micro_batch_tokens"]) for row in events] == [(3, limit)]
    assert f"step 3: out of memory; made again in passes of up to {limit} tokens" in log(spec)

    run_here(spec, log_level="INFO")  # a pass that is too large would be an event again
    assert f"passes of up to {limit} tokens: with 128 an earlier start ran out of memory" in log(spec)
    assert "continuing from step 6 bit-exactly" in log(spec)
    assert_same_losses(metrics(spec), undisturbed)


def test_another_plan_is_not_bound_by_what_was_found_out(tmp_path: Path) -> None:
    run_dir, setting = RunDir(tmp_path), {"device": "a", "processes": 2}
    plan = MemoryPlan(micro_batch_tokens=128, pass_cost_tokens=8, gradient_checkpointing=False, expected_bytes=1)
    assert remembered(run_dir, plan, setting) == plan
    found = {"micro_batch_tokens": 32, "planned": 128, "ran_out_in": "step 3", "setting": setting}
    write_json(run_dir.pass_limit, found)
    assert remembered(run_dir, plan, setting) == replace(plan, micro_batch_tokens=32)
    assert remembered(run_dir, plan, {**setting, "processes": 4}) == plan
    other = replace(plan, micro_batch_tokens=100)
    assert remembered(run_dir, other, setting) == other
    for damaged in ("", "[]", '{"planned": 128}', "\x80\x04"):
        run_dir.pass_limit.write_text(damaged)
        assert remembered(run_dir, plan, setting) == plan


def test_a_limit_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = MemoryPlan(micro_batch_tokens=128, pass_cost_tokens=8, gradient_checkpointing=False, expected_bytes=1)
    assert remembered(RunDir(tmp_path), plan, {}) == plan and not caplog.messages
    stale(monkeypatch, RunDir(tmp_path).pass_limit)
    assert remembered(RunDir(tmp_path), plan, {}) == plan
    assert "ran out of memory before cannot be read" in caplog.text and "Stale file handle" in caplog.text


def test_where_no_pass_can_be_smaller_it_is_an_error_with_ways_out(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny)
    fail_above(3, monkeypatch)
    with pytest.raises(ConfigError, match="out of memory") as caught:
        run_here(spec)
    hint = caught.value.problems[0].hint
    assert hint.startswith("set train.gradient_checkpointing: true, then ") and "data.max_length lower" in hint


def test_an_evaluation_is_made_again_in_smaller_passes(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: list[dict[str, Any]]
) -> None:
    spec = small_spec(tmp_path, tiny)
    fail_in_evaluations(100, monkeypatch)
    run_here(spec, log_level="INFO")
    assert "the evaluation after step 4: out of memory" in log(spec)
    assert json.loads((run_root(spec) / "pass-limit.json").read_text())["micro_batch_tokens"] <= 64
    assert_same_losses(metrics(spec), undisturbed)


def test_an_evaluation_before_the_first_window_of_a_stream_is_too(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the stream was taken yet; later windows are cut as small."""
    rows = str(write_jsonl(tmp_path / "shards/rows.jsonl", chat_rows(30)))
    streamed = {"data__train": rows, "data__streaming": True, "data__max_length": 256, "train__max_steps": 2}
    spec = small_spec(tmp_path, tiny, eval__on_start=True, **streamed)
    fail_in_evaluations(100, monkeypatch)
    run_here(spec, log_level="INFO")
    assert "the evaluation after step 0: out of memory" in log(spec)
    assert json.loads((run_root(spec) / "pass-limit.json").read_text())["micro_batch_tokens"] <= 64


def test_ranks_wait_longer_for_what_is_done_for_the_first_time(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation, the first answers and the first step of a start may compile."""
    given: list[float] = []

    @contextmanager
    def noted(seconds: float) -> Iterator[None]:
        given.append(seconds)
        yield

    monkeypatch.setattr("rankzero.engine.train.time_limit", noted)
    asked = {"eval__on_start": True, "eval__every": 1, "eval__prompts": ["hello"], "eval__max_new_tokens": 1}
    changes = {"train__max_steps": 2, "train__collective_timeout_seconds": 77}
    run_here(small_spec(tmp_path, tiny, **asked, **changes))
    assert given == [LONGEST_WAIT.total_seconds()] * 3 + [77] * 5


@pytest.mark.parametrize("field", ["context_parallel", "expert_parallel"])
def test_a_rank_that_meets_others_within_passes_cannot_make_them_again_alone(field: str, tmp_path: Path) -> None:
    """And what was found out of passes holds for as many processes together."""
    plan = MemoryPlan(128, 32, gradient_checkpointing=False, expected_bytes=0)
    sections = {"model": {"name": "m"}, "data": {"train": "t"}}
    found = []
    for size in (1, 2):
        spec = RunSpec.model_validate({**sections, "train": {field: size}})
        found.append(pass_memory(spec, RunDir(tmp_path), World(world_size=4), Device("cpu"), "ddp", plan))
    assert [memory.alone for memory in found] == [True, False]
    assert found[1].setting == found[0].setting | {field: 2}


def test_a_copy_on_each_node_may_be_divided_among_all(tmp_path: Path) -> None:
    """And what was found out of passes holds for as many processes a node."""
    plan = MemoryPlan(128, 32, gradient_checkpointing=False, expected_bytes=0)
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}})
    fsdp, four, two = (
        pass_memory(spec, RunDir(tmp_path), World(0, 0, 8, local), Device("cpu"), sharding, plan)
        for sharding, local in (("fsdp", 4), ("hsdp", 4), ("hsdp", 2))
    )
    assert "train.sharding: fsdp" in four.ways and "train.sharding: fsdp" not in fsdp.ways
    assert four.setting != two.setting and not four.alone
