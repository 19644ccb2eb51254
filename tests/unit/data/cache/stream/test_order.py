"""The order of a stream: every row once an epoch, the same from whatever window it goes on, other in every epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.cache.stream.order import OPEN_SHARDS, Cursor, Draw, Piece, Reading, epoch_order, shuffled

Windows = list[tuple[Cursor, list[tuple[int, int]]]]


def windows(sizes: list[int], weights: list[float], cursor: Cursor, count: int, *, rows: int, seed: int = 3) -> Windows:
    """The first windows from a cursor on; a row is (shard, place in it)."""

    def read(shard: int, skip: int) -> Iterator[tuple[int, int]]:
        return iter([(shard, place) for place in range(skip, sizes[shard])])

    def order_of(epoch: int) -> list[Piece]:
        return epoch_order(weights, seed=seed, epoch=epoch)

    found: Windows = []
    for begins, shard, drawn in Draw(order_of, read, seed=seed, window_rows=rows).parts(cursor):
        if not found or found[-1][0] != begins:
            if len(found) == count:
                break
            found.append((begins, []))
        part = list(drawn)
        assert all(row[0] == shard for row in part)
        found[-1][1].extend(part)
    return found


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 15), st.integers(0, 2**31))
def test_an_epoch_has_every_row_once(sizes: list[int], rows: int, seed: int) -> None:
    weights = [1.0] * len(sizes)
    found = windows(sizes, weights, Cursor(), 3 * sum(sizes) + 3 * len(sizes), rows=rows, seed=seed)
    for epoch in (0, 1):
        seen = Counter(row for begins, part in found if begins.epoch == epoch for row in part)
        assert seen == {(shard, place): 1 for shard, size in enumerate(sizes) for place in range(size)}
    assert [begins.window for begins, _ in found] == list(range(len(found)))
    assert all(len(part) <= rows and len(begins.open) <= OPEN_SHARDS for begins, part in found)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 15), st.data())
def test_it_goes_on_from_any_window_as_if_never_stopped(sizes: list[int], rows: int, data: st.DataObject) -> None:
    weights = [data.draw(st.sampled_from([0.5, 1.0, 1.5, 2.0])) for _ in sizes]
    whole = windows(sizes, weights, Cursor(), 9, rows=rows)
    at = data.draw(st.integers(0, len(whole) - 1))
    saved = Cursor.from_json(whole[at][0].as_json())
    assert windows(sizes, weights, saved, len(whole) - at, rows=rows) == whole[at:]


def test_weights_repeat_rows_and_leave_a_random_share_out() -> None:
    sizes, weights = [200, 200, 200], [1.0, 2.0, 0.25]
    found = windows(sizes, weights, Cursor(), 200, rows=60)
    of_epoch = [Counter(row for begins, part in found if begins.epoch == epoch for row in part) for epoch in (0, 1)]
    for seen in of_epoch:
        assert {seen[0, place] for place in range(200)} == {1} and {seen[1, place] for place in range(200)} == {2}
        assert 30 < sum(seen[2, place] for place in range(200)) < 70
    assert of_epoch[0] == of_epoch[1]  # the same half of them, as where they are not streamed
    assert [part for begins, part in found if not begins.epoch] != [part for begins, part in found if begins.epoch == 1]


def test_shards_are_read_side_by_side_in_equal_parts() -> None:
    begins, part = windows([100] * 9, [1.0] * 9, Cursor(), 1, rows=10)[0]
    assert sorted(Counter(shard for shard, _ in part).values()) == [2, 2, 3, 3] and begins.open[0].rows == 0


def test_a_window_is_shuffled_by_seed_and_number() -> None:
    orders = [tuple(shuffled(50, window, seed=seed)) for window, seed in ((0, 1), (1, 1), (0, 2))]
    assert len(set(orders)) == 3 and all(sorted(order) == list(range(50)) for order in orders)
    assert tuple(shuffled(50, 0, seed=1)) == orders[0]


def test_the_order_is_the_one_that_saved_runs_go_on_with() -> None:
    """A change here makes every run that is under way go on with other rows: raise OPEN_SHARDS or CODE_VERSION then."""
    assert [piece.shard for piece in epoch_order([1.0] * 6, seed=42, epoch=0)] == PINNED[0]
    assert shuffled(6, 0, seed=42).tolist() == PINNED[1]
    assert [row for _, part in windows([3, 9, 4], [1.0] * 3, Cursor(), 2, rows=6, seed=42) for row in part] == PINNED[2]


PINNED: list[list[object]] = [
    [3, 1, 2, 0, 4, 5],
    [0, 3, 5, 2, 1, 4],
    [(1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (1, 2), (1, 3), (2, 2), (2, 3), (0, 2)],
]


def test_a_stream_without_rows_ends() -> None:
    assert windows([0, 0], [1.0, 1.0], Cursor(), 5, rows=4) == windows([0, 0], [1.0, 1.0], Cursor(), 9, rows=4)


@pytest.mark.parametrize("begins", [Cursor(), Cursor(2, 0, 1, (Reading(0, 12),))])
def test_a_stream_of_which_the_weights_leave_no_row_ends(begins: Cursor) -> None:
    found = windows([20], [1e-9], begins, 99, rows=4)
    assert len(found) < 20 and not any(part for _, part in found)


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_has_an_order_of_its_own(epoch: int) -> None:
    before, now = (epoch_order([1.0] * 20, seed=7, epoch=e) for e in (epoch - 1, epoch))
    assert before != now and sorted(p.shard for p in now) == list(range(20))
