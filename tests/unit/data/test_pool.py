"""Ordered work: order, bounds, errors, what a worker is like."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import rankzero.data.pool
from rankzero.data.pool import SMALL_BYTES, ordered_map, worker_count
from rankzero.errors import DataError, RankzeroError


def make_slow(factor: int) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        time.sleep(0.01 * (number % 3))
        return number * factor, os.getpid()

    return work


def make_failing() -> Callable[[int], int]:
    def work(number: int) -> int:
        if number == 3:
            raise DataError("bad", where="f:3")
        return number

    return work


def make_dying() -> Callable[[int], int]:
    return lambda number: os.kill(os.getpid(), signal.SIGKILL) or number


def make_nothing() -> Callable[[int], int]:
    raise DataError("no worker can be made")


def make_environment() -> Callable[[str], str | None]:
    return os.environ.get


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    results = list(ordered_map(partial(make_slow, 10), iter(range(20)), workers))
    assert [result for result, _ in results] == [number * 10 for number in range(20)]
    pids = {pid for _, pid in results}
    assert (pids == {os.getpid()}) if workers == 1 else (os.getpid() not in pids)


def test_tasks_are_drawn_as_results_are_taken() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    results = ordered_map(partial(make_slow, 1), tasks(), 2)
    for _ in range(5):
        next(results)
    assert len(drawn) <= 5 + 2 + 2
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_back_whole(workers: int) -> None:
    with pytest.raises(DataError) as caught:
        list(ordered_map(make_failing, range(9), workers))
    assert caught.value.problems[0].where == "f:3"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_cannot_be_made_says_why(workers: int) -> None:
    with pytest.raises(DataError, match="no worker can be made"):
        list(ordered_map(make_nothing, range(9), workers))


def test_a_killed_worker_is_said_to_be_one() -> None:
    with pytest.raises(RankzeroError, match="worker process was killed") as caught:
        list(ordered_map(make_dying, range(4), 2))
    assert "memory" in caught.value.problems[0].hint


def test_workers_do_not_start_threads_of_their_own() -> None:
    assert list(ordered_map(make_environment, ["TOKENIZERS_PARALLELISM"], 2)) == ["false"]


def test_workers_do_not_import_what_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "random", "selectors", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert list(ordered_map(make_environment, ["HOME"], 2)) == [os.environ["HOME"]]
    assert "PYTHONSAFEPATH" not in os.environ


def test_small_inputs_take_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankzero.data.pool, "usable_cores", lambda: 64)
    assert worker_count(SMALL_BYTES - 1, 8) == 1
    assert worker_count(SMALL_BYTES, 8) == 8
    assert worker_count(SMALL_BYTES, 0) == 1
    assert worker_count(SMALL_BYTES) == 16
    monkeypatch.undo()
    assert 1 <= worker_count(SMALL_BYTES) <= (os.cpu_count() or 1)
