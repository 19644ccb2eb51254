"""Steps, epochs, warm-up, and what is due when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.spec.run_spec import TrainSpec
from rankzero.spec.schedule import is_due, make_schedule


@pytest.mark.parametrize(
    ("n_rows", "train", "per_epoch", "total", "warmup"),
    [
        (100, {"global_batch_size": 10, "warmup_steps": 0}, 10, 10, 0),
        (101, {"global_batch_size": 10, "warmup_steps": 0}, 11, 11, 0),
        (1, {"global_batch_size": 16, "warmup_steps": 0}, 1, 1, 0),
        (100, {"global_batch_size": 10, "num_train_epochs": 2.5, "warmup_steps": 0}, 10, 25, 0),
        (100, {"global_batch_size": 10, "num_train_epochs": 0.01, "warmup_steps": 0}, 10, 1, 0),
        (
            300,
            {"global_batch_size": 10, "num_train_epochs": 0.1, "warmup_steps": 0},
            30,
            3,
            0,
        ),  # not 3.0000000000000004
        (1, {"num_train_epochs": 1e-15, "warmup_steps": 0}, 1, 1, 0),
        (100, {"global_batch_size": 10, "max_steps": 7, "num_train_epochs": 9, "warmup_steps": 0}, 10, 7, 0),
        (1000, {"global_batch_size": 10, "warmup_steps": 0.03}, 100, 100, 3),
        (100, {"global_batch_size": 10, "warmup_steps": 0.03}, 10, 10, 0),
        (1, {"warmup_steps": 0.03}, 1, 1, 0),
        (300, {"global_batch_size": 10, "warmup_steps": 0.1}, 30, 30, 3),
        (100, {"global_batch_size": 10, "warmup_steps": 5}, 10, 10, 5),
        (100, {"global_batch_size": 10, "warmup_steps": 50}, 10, 10, 10),
    ],
)
def test_lengths(n_rows: int, train: dict[str, Any], per_epoch: int, total: int, warmup: int) -> None:
    schedule = make_schedule(n_rows, TrainSpec.model_validate(train))
    assert (schedule.steps_per_epoch, schedule.total_steps, schedule.warmup_steps) == (per_epoch, total, warmup)


def test_position() -> None:
    schedule = make_schedule(25, TrainSpec(global_batch_size=10, num_train_epochs=3))
    assert [schedule.position(step) for step in range(5)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@given(st.integers(1, 10_000), st.integers(1, 500), st.floats(0.001, 50))
def test_every_row_once_an_epoch(n_rows: int, size: int, epochs: float) -> None:
    schedule = make_schedule(n_rows, TrainSpec(global_batch_size=size, num_train_epochs=epochs))
    assert (schedule.steps_per_epoch - 1) * size < n_rows <= schedule.steps_per_epoch * size
    assert schedule.total_steps >= 1
    assert 0 <= schedule.warmup_steps <= schedule.total_steps
    epoch, step = schedule.position(schedule.total_steps - 1)
    assert epoch < epochs + 1
    assert step < schedule.steps_per_epoch


@pytest.mark.parametrize(
    ("train", "shares"),
    [
        ({"warmup_steps": 2, "max_steps": 6}, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        ({"warmup_steps": 0, "max_steps": 4}, [1, 3 / 4, 2 / 4, 1 / 4]),
        ({"warmup_steps": 1, "max_steps": 3}, [1, 1, 1 / 2]),
        ({"warmup_steps": 3, "max_steps": 5, "lr_scheduler_type": "constant"}, [1 / 3, 2 / 3, 1, 1, 1]),
        ({"warmup_steps": 1, "max_steps": 4, "lr_scheduler_type": "cosine"}, [1, 1, 3 / 4, 1 / 4]),
        ({"warmup_steps": 0.03, "max_steps": 1}, [1]),
        ({"warmup_steps": 3, "num_train_epochs": 3}, [1 / 3, 2 / 3, 1]),
    ],
)
def test_learning_rates(train: dict[str, Any], shares: list[float]) -> None:
    schedule = make_schedule(10, TrainSpec(**train))
    assert [schedule.learning_rate(step, 8.0) / 8 for step in range(schedule.total_steps)] == pytest.approx(shares)


@given(st.integers(1, 300), st.floats(0, 0.999), st.sampled_from(["linear", "cosine", "constant"]))
def test_no_step_is_without_a_learning_rate(steps: int, warmup: float, shape: Any) -> None:
    schedule = make_schedule(10, TrainSpec(max_steps=steps, warmup_steps=warmup, lr_scheduler_type=shape))
    rates = [schedule.learning_rate(step, 1.0) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1
    assert schedule.learning_rate(steps, 1.0) == (1 if shape == "constant" else 0)


@pytest.mark.parametrize(
    ("every", "due"),
    [("epoch", [3, 6, 8]), (1, [1, 2, 3, 4, 5, 6, 7, 8]), (2, [2, 4, 6, 8]), (5, [5, 8]), (100, [8])],
)
def test_is_due(every: Any, due: list[int]) -> None:
    schedule = make_schedule(30, TrainSpec(global_batch_size=10, max_steps=8))
    assert [step for step in range(1, 9) if is_due(every, step, schedule)] == due
