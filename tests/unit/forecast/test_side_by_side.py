"""Which runs compute several passes at a time, and what that takes."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.forecast.forecast import MemoryOutlook, Place, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.machine import threads_of_a_process
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import lora, make_spec
from tests.support.memory_table import facts_of_shape

GB = 10**9
ROW = 400


def looked_at(
    spec: RunSpec | None = None, *, threads: int = 2, row: int = ROW, limit: int = 64 * GB, free: int = 0, **place: Any
) -> MemoryOutlook:
    facts = facts_of_shape("Llama 3.2 1B", "full" if spec is not None and spec.lora is None else "LoRA")
    kept: dict[str, Any] = {"kind": "cpu", "world_size": 1} | place
    where = Place(name="cpu", limit=limit, free=free, threads=threads, **kept)
    spec = (spec or lora()).model_copy(update={"data": (spec or lora()).data.model_copy(update={"max_length": row})})
    return outlook(spec, facts, facts_of_rows(None, None, row), where)


@pytest.mark.parametrize(
    ("threads", "at_once", "tokens"), [(1, 1, 1024), (2, 2, 512), (3, 3, 341), (5, 1, 1024), (16, 2, 512)]
)
def test_threads_are_divided_and_so_is_what_one_pass_would_be(threads: int, at_once: int, tokens: int) -> None:
    found = looked_at(threads=threads)
    assert (found.plan.passes_at_once, found.plan.micro_batch_tokens) == (at_once, tokens)
    assert (found.need.passes_at_once, found.need.tokens) == (at_once, tokens)


def test_each_process_of_several_divides_its_own() -> None:
    assert looked_at(world_size=2).plan.passes_at_once == 2
    assert looked_at(world_size=2, threads=1).plan.passes_at_once == 1


def test_long_rows_at_once_take_their_memory_or_are_one_by_one() -> None:
    one, two = looked_at(threads=1, row=4096), looked_at(row=4096)
    assert two.plan.passes_at_once == 2
    activations = one.need.parts["activations"]
    assert two.need.parts["activations"] == pytest.approx(2 * activations)
    assert two.plan.expected_bytes >= one.plan.expected_bytes + activations
    lacking = looked_at(row=4096, free=round(one.need.bytes + activations / 2))
    assert lacking.plan == one.plan, "a run that fits into what is free as it was is not refused"
    short = looked_at(row=4096, limit=round((one.need.bytes + activations / 2) / 0.85))
    assert short.plan.passes_at_once == 1 and short.plan.micro_batch_tokens == one.plan.micro_batch_tokens


def test_all_weights_have_gradients_of_each_pass_or_go_one_by_one() -> None:
    whole = make_spec()
    one, two = looked_at(whole, threads=1), looked_at(whole)
    assert two.plan.passes_at_once == 2
    assert two.need.parts["gradients"] == one.need.parts["gradients"] + 3 * one.need.facts.trained_bytes
    short = looked_at(whole, limit=round((one.need.bytes + one.need.facts.trained_bytes) / 0.85))
    assert short.plan == one.plan
    assert looked_at(whole, world_size=2).plan.passes_at_once == 1, "gradients are added up beside the last pass"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(lora("nf4"), id="packed weights"),
        pytest.param(lora(sharding="fsdp"), id="spread weights"),
        pytest.param(lora(torch_compile=True), id="compiled blocks"),
        pytest.param(make_spec(lora={"r": 16}, model={"name": "m", "trust_remote_code": True}), id="own code"),
        pytest.param(make_spec(task="dpo", lora={"r": 16}), id="pairs, which are measured"),
    ],
)
def test_others_compute_one_by_one(spec: RunSpec) -> None:
    assert looked_at(spec, world_size=2).plan.passes_at_once == 1


def test_a_pass_that_was_simulated_is_there_as_often_and_each_has_gradients_of_its_own() -> None:
    one, two = looked_at(threads=1, row=4096).need, looked_at(row=4096).need
    assert two.parts["gradients"] == one.parts["gradients"] + 3 * one.facts.trained_bytes
    found = 5 * GB
    assert two.with_pass(found).parts["activations"] == pytest.approx(2 * one.with_pass(found).parts["activations"])


def test_a_gpu_computes_one_by_one() -> None:
    assert looked_at(kind="cuda").plan.passes_at_once == 1


def test_a_small_pass_is_not_worth_a_thread() -> None:
    assert looked_at(lora(micro_batch_tokens=2)).plan.passes_at_once == 1
    asked = looked_at(lora(micro_batch_tokens=256))
    assert (asked.plan.passes_at_once, asked.plan.micro_batch_tokens) == (2, 256)


def test_a_process_has_its_share_of_the_cores_or_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.machine.usable_cores", lambda: 5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_of_a_process(count) for count in (1, 2, 8)] == [5, 2, 1]
    for told, threads in (("3", 3), ("4,2", 4), (" 1 ", 1), ("0", 1), ("many", 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert threads_of_a_process(2) == threads
