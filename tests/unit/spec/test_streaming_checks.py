"""What a streaming spec cannot ask for, all at once and each at its field."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.spec.checks import check
from rankzero.spec.diff import compare
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import is_due, make_schedule

GOOD: dict[str, Any] = {
    "model": {"name": "m"},
    "data": {"train": "s3://b/rows", "streaming": True},
    "train": {"max_steps": 100},
}


def spec_of(**changes: dict[str, Any] | str) -> RunSpec:
    value = {**GOOD}
    for section, change in changes.items():
        value[section] = {**GOOD.get(section, {}), **change} if isinstance(change, dict) else change
    return RunSpec.model_validate(value)


def test_a_stream_with_its_number_of_steps_is_fine() -> None:
    assert check(spec_of()) == []
    assert check(spec_of(data={"eval": "eval.jsonl"}, eval={"every": 10}, checkpoint={"every": 20})) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"train": {"max_steps": None}}, ["train.max_steps"]),
        ({"data": {"deduplicate": True}}, ["data.deduplicate"]),
        ({"data": {"eval": {"fraction": 0.1}}}, ["data.eval"]),
        ({"data": {"eval": "eval.jsonl"}}, ["eval.every"]),
        ({"checkpoint": {"every": "epoch"}}, ["checkpoint.every"]),
        ({"task": "classify"}, ["data.labels"]),
        ({"data": {"train": [{"path": "a"}, {"path": "b", "sample": 5}]}}, ["data.train[1].sample"]),
        (
            {
                "train": {"max_steps": None},
                "data": {"deduplicate": True, "eval": "e"},
                "checkpoint": {"every": "epoch"},
            },
            ["train.max_steps", "data.deduplicate", "eval.every", "checkpoint.every"],
        ),
    ],
)
def test_what_needs_all_rows_is_refused(changes: dict[str, Any], where: list[str]) -> None:
    problems = check(spec_of(**changes))
    assert [problem.where for problem in problems] == where
    assert all(problem.hint for problem in problems)
    data = {**changes.get("data", {}), "streaming": False}
    assert check(spec_of(**{**changes, "data": data})) == []


def test_the_run_is_one_stretch_and_the_disk_it_takes_is_free_to_change() -> None:
    spec = spec_of()
    schedule = make_schedule(None, spec.train)
    assert (schedule.total_steps, schedule.position(37)) == (100, (0, 37))
    assert is_due("epoch", 100, schedule) and not is_due("epoch", 50, schedule)
    with pytest.raises(ValueError, match="no length of its own"):
        make_schedule(None, spec_of(train={"max_steps": None}).train)
    (room,) = compare(spec, spec_of(data={"streaming_cache_gb": 1}))
    (window,) = compare(spec, spec_of(data={"shuffle_buffer_size": 7}))
    assert room.harmless and not window.harmless
