"""One result ahead of its use: order, how far ahead, what is raised, stopping early."""

from __future__ import annotations

import gc
import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rankzero.data.batches.ahead import Ahead
from rankzero.data.batches.loader import Batches, Epochs
from tests.unit.data.batches.test_plan import Even


def ahead(make: Callable[[int], int]) -> Ahead[int, int]:
    return Ahead(make, same=operator.eq)


def test_in_order_by_another_thread() -> None:
    threads: set[int] = set()

    def square(number: int) -> int:
        threads.add(threading.get_ident())
        return number * number

    assert list(ahead(square).each(range(50))) == [number * number for number in range(50)]
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert list(ahead(square).each([])) == []


def test_the_next_is_made_while_the_last_is_used_and_no_more() -> None:
    begun = [threading.Event() for _ in range(4)]

    def make(number: int) -> int:
        begun[number].set()
        return number

    for number in ahead(make).each(range(4)):
        if number < 3:
            assert begun[number + 1].wait(300), "the next one is not under way"
        assert not any(event.is_set() for event in begun[number + 2 :])


def test_an_error_comes_when_its_result_is_due_and_nothing_behind_it_is_begun() -> None:
    asked: list[int] = []

    def make(number: int) -> int:
        asked.append(number)
        if number == 2:
            raise ValueError("of number 2")
        return number

    results, got = ahead(make).each(range(9)), []
    with pytest.raises(ValueError, match="of number 2"):
        for number in results:
            got.append(number)
    assert got == [0, 1] and asked == [0, 1, 2]


def test_stopping_early_drops_what_is_under_way() -> None:
    asked: list[int] = []
    made = ahead(lambda number: asked.append(number) or number)
    results = made.each(range(100))
    assert next(results) == 0
    results.close()
    assert asked == [0, 1]
    assert list(made.each([1])) == [1] and asked == [0, 1, 1]


def test_what_is_expected_next_is_made_once_while_the_last_is_used() -> None:
    begun: dict[int, threading.Event] = {number: threading.Event() for number in range(9)}
    asked: list[int] = []

    def make(number: int) -> int:
        asked.append(number)
        begun[number].set()
        return number

    made = ahead(make)
    for number in made.each([0, 1], lambda: 2):
        assert begun[number + 1].wait(300)
    assert list(made.each([2, 3], lambda: 8)) == [2, 3]
    assert begun[8].wait(300) and asked == [0, 1, 2, 3, 8]
    assert list(made.each([4])) == [4], "what came otherwise than expected is made when it is asked for"


def test_an_error_in_what_is_expected_is_raised_when_it_is_due() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise ValueError("of number 2")
        return number

    made = ahead(make)
    assert list(made.each([0, 1], lambda: 2)) == [0, 1]
    assert list(made.each([5], lambda: 2)) == [5], "it did not come"
    with pytest.raises(ValueError, match="of number 2"):
        list(made.each([2]))


class Noting:
    """A collator that notes what it is asked for."""

    packed = False

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.came = threading.Condition()

    def __call__(self, _dataset: object, rows: np.ndarray, _device: torch.device) -> list[int]:
        with self.came:
            self.asked.append(rows.tolist())
            self.came.notify_all()
        return rows.tolist()

    def wait_for(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.asked) >= count, 10)


def test_the_first_pass_of_the_next_step_is_made_ahead() -> None:
    noting, cpu = Noting(), torch.device("cpu")
    batches = Batches(Even(8), noting, rank=0, world_size=1, max_tokens=6, pass_cost=0, same_passes=False)  # type: ignore[arg-type]
    steps = Epochs(batches, seed=1, size=4, steps_per_epoch=2, total_steps=3)
    made = []
    for done in range(3):  # the third one is of another epoch
        work = steps.step(done)
        assert len(work.passes) == 2
        made += list(steps.collated(work.passes, cpu))
        noting.wait_for(min(2 * done + 3, 6))
    assert noting.asked == made and len(made) == 6, "each once, and none behind the last step"
    assert sorted(sum(made[:4], [])) == list(range(8))


def test_a_pass_that_was_expected_is_cut_smaller_where_the_limit_falls() -> None:
    noting, cpu = Noting(), torch.device("cpu")
    batches = Batches(Even(8), noting, rank=0, world_size=1, max_tokens=6, pass_cost=0, same_passes=False)  # type: ignore[arg-type]
    steps = Epochs(batches, seed=1, size=4, steps_per_epoch=2, total_steps=2)
    list(steps.collated(steps.step(0).passes, cpu))
    noting.wait_for(3)
    steps.limit_passes(3)
    work = steps.step(1)
    made = list(steps.collated(work.passes, cpu))
    assert [len(rows) for rows in made] == [1] * 4 and sorted(sum(made, [])) == sorted(work.rows.tolist())


def test_whoever_lets_go_of_batches_lets_go_of_their_rows_and_their_thread() -> None:
    """Each step of a stream has its own: they are not to wait for the collector."""

    class Watched(Noting):
        def __call__(self, *asked: Any) -> list[int]:
            threads.add(threading.current_thread())
            return super().__call__(*asked)

    threads: set[threading.Thread] = set()
    rows = Even(8)
    watched = weakref.ref(rows)
    batches = Batches(rows, Watched(), rank=0, world_size=1, max_tokens=6, pass_cost=0, same_passes=False)  # type: ignore[arg-type]
    del rows
    gc.disable()
    try:
        assert len(list(batches.collated(batches.everything().passes, torch.device("cpu")))) == 4
        del batches
        assert watched() is None
        for thread in threads:
            thread.join()
    finally:
        gc.enable()
