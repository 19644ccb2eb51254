"""What a change of the rows of a step means is counted: where a run goes on follows from the step alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine.hooks import Hooks
from rankzero.errors import StoppedError
from rankzero.spec.run_spec import TrainSpec
from rankzero.spec.schedule import make_schedule, rows_taken
from tests.support.runs import log, run_here, small_spec, stop_in


@pytest.mark.parametrize(
    ("size", "now", "stopped_at", "said"),
    [
        (8, 16, 3, "8 rows left out, and no step is left"),
        (4, 8, 2, "8 rows left out"),
        (8, 4, 2, "8 rows trained once more"),
    ],
)
def test_steps_of_another_size(size: int, now: int, stopped_at: int, said: str, tmp_path: Path, tiny: Path) -> None:
    """One epoch of 32 rows, counted as they pass."""
    trained: Counter[int] = Counter()

    def spec_of(size: int) -> Any:
        changes = {"train__num_train_epochs": 1, "train__global_batch_size": size}
        return small_spec(tmp_path, tiny, rows=32, eval_rows=0, **changes)

    def count(_step: int, batch: Any, _loss: Any) -> None:
        trained.update(batch.rows.tolist())

    stop = stop_in(stopped_at).step_begins
    with pytest.raises(StoppedError):
        run_here(spec_of(size), hooks=Hooks(step_begins=stop, pass_done=count))
    run_here(spec_of(now), hooks=Hooks(pass_done=count), allow_changes=("train.global_batch_size",))
    wrong = 32 - len(trained) + sum(trained.values()) - len(trained)
    [told] = re.findall(r"with the new settings: (.*);", log(spec_of(now)))
    assert told == said and wrong == 8


def test_other_data_of_another_number_of_rows(tmp_path: Path, tiny: Path) -> None:
    """Two epochs, stopped behind the first: one of the new data has more rows."""
    changes = {"train__num_train_epochs": 2, "eval_rows": 0}
    with pytest.raises(StoppedError):
        run_here(small_spec(tmp_path, tiny, rows=16, **changes), hooks=stop_in(2))
    more = small_spec(tmp_path, tiny, rows=24, **changes)
    with pytest.raises(StoppedError):
        run_here(more, hooks=stop_in(5), allow_changes=("data",))
    assert "[DATA]" not in log(more), "as many rows of the first epoch, whichever they are"
    less = small_spec(tmp_path, tiny, rows=8, **changes)
    run_here(less, allow_changes=("data",))
    assert "step 5 has had 40 rows, and is behind 16 rows with the new settings: no step is left;" in log(less)


@pytest.mark.parametrize(("n_rows", "size", "epochs"), [(30, 8, 3), (32, 8, 2.5), (5, 8, 2), (7, 1, 1)])
def test_an_undisturbed_run_has_taken_these_rows(n_rows: int, size: int, epochs: float) -> None:
    train = TrainSpec(num_train_epochs=epochs, global_batch_size=size)
    schedule, taken = make_schedule(n_rows, train), 0
    for step in range(schedule.total_steps):
        assert rows_taken(step, n_rows, train) == taken
        within = schedule.position(step)[1] * size
        taken += min(size, n_rows - within)
    assert rows_taken(schedule.total_steps + 9, n_rows, train) == taken
