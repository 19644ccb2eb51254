"""One result ahead of its use: order, how far ahead, what is raised, stopping early."""

from __future__ import annotations

import threading

import pytest

from rankzero.data.batches.loader import ahead


def test_in_order_by_another_thread() -> None:
    threads: set[int] = set()

    def square(number: int) -> int:
        threads.add(threading.get_ident())
        return number * number

    assert list(ahead(square, range(50))) == [number * number for number in range(50)]
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert list(ahead(square, [])) == []


def test_the_next_is_made_while_the_last_is_used_and_no_more() -> None:
    begun = [threading.Event() for _ in range(4)]

    def make(number: int) -> int:
        begun[number].set()
        return number

    for number in ahead(make, range(4)):
        if number < 3:
            assert begun[number + 1].wait(10), "the next one is not under way"
        assert not any(event.is_set() for event in begun[number + 2 :])


def test_an_error_comes_when_its_result_is_due_and_nothing_behind_it_is_begun() -> None:
    asked: list[int] = []

    def make(number: int) -> int:
        asked.append(number)
        if number == 2:
            raise ValueError("of number 2")
        return number

    results, got = ahead(make, range(9)), []
    with pytest.raises(ValueError, match="of number 2"):
        for number in results:
            got.append(number)
    assert got == [0, 1] and asked == [0, 1, 2]


def test_stopping_early_ends_the_thread() -> None:
    asked: list[int] = []
    before = threading.active_count()
    results = ahead(lambda number: asked.append(number) or number, range(100))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert len(asked) <= 2 and threading.active_count() == before
