"""Samples, weights, duplicates and hold-outs by group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.cache.selection import chosen, components, first_occurrences, held_out_by_group, mix, sample
from rankzero.data.order import permutation
from rankzero.spec.data_paths import RowSlice

SEEDS = st.integers(0, 2**63 - 1)


@given(st.integers(1, 300), st.data(), SEEDS)
def test_a_sample_has_no_repetition_and_keeps_the_order(n: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, n))
    rows = sample(n, count, seed=seed, source=0)
    assert len(set(rows.tolist())) == count
    assert list(rows) == sorted(rows)
    assert np.array_equal(rows, sample(n, count, seed=seed, source=0))


def test_sources_are_sampled_apart() -> None:
    assert not np.array_equal(sample(1000, 10, seed=1, source=0), sample(1000, 10, seed=1, source=1))
    assert not np.array_equal(sample(1000, 10, seed=1, source=0), sample(1000, 10, seed=2, source=0))


def test_a_sample_of_some_rows_is_among_them() -> None:
    rows = chosen(1000, RowSlice(-10, None, True), 7, seed=1, source=0)
    assert len(set(rows)) == 7 and min(rows) >= 900 and list(rows) == sorted(rows)
    assert chosen(10, RowSlice(2, 5), None, seed=1, source=0).tolist() == [2, 3, 4]
    assert np.array_equal(chosen(50, None, 5, seed=3, source=2), sample(50, 5, seed=3, source=2))
    with pytest.raises(ValueError, match="11 of 10"):
        chosen(100, RowSlice(0, 10), 11, seed=1, source=0)


def test_a_sample_larger_than_the_source() -> None:
    with pytest.raises(ValueError, match="6 of 5"):
        sample(5, 6, seed=0, source=0)


def test_weights() -> None:
    sources = np.array([0] * 100 + [1] * 40 + [2] * 10)
    rows = mix(sources, [0.25, 2.5, 1], seed=3)
    times = np.bincount(rows, minlength=150)
    assert times[:100].sum() == 25
    assert set(times[:100]) == {0, 1}
    assert times[100:140].sum() == 100
    assert set(times[100:140]) == {2, 3}
    assert set(times[140:]) == {1}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_the_first_of_equals_stays(digests: list[int]) -> None:
    kept = first_occurrences(np.array(digests, dtype=np.int64))
    assert [digests[row] for row in kept] == list(dict.fromkeys(digests))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=200), SEEDS, st.floats(0.001, 0.999))
def test_a_group_is_on_one_side(values: list[int], seed: int, fraction: float) -> None:
    groups = np.array([value % 7 if value % 2 else value for value in values], dtype=np.int64)
    if len(set(groups.tolist())) < 2:
        with pytest.raises(ValueError, match="one group"):
            held_out_by_group(groups, seed=seed, fraction=fraction)
        return
    train, held = held_out_by_group(groups, seed=seed, fraction=fraction)
    assert sorted([*train, *held]) == list(range(len(groups)))
    assert len(train) > 0
    assert len(held) > 0
    assert not set(groups[train].tolist()) & set(groups[held].tolist())


@given(st.integers(2, 300), SEEDS, st.floats(0.001, 0.999))
def test_rows_of_their_own_are_split_by_a_permutation(n: int, seed: int, fraction: float) -> None:
    groups = np.random.default_rng(0).permutation(np.arange(n, dtype=np.int64) * 7919)
    train, held = held_out_by_group(groups, seed=seed, fraction=fraction)
    expected = min(max(1, round(n * fraction)), n - 1)
    assert set(held.tolist()) == set(permutation(n, seed=seed, stream=-1)[:expected].tolist())
    assert sorted([*train, *held]) == list(range(n))


@pytest.mark.parametrize(("n", "fraction", "expected"), [(100, 0.1, 10), (10, 0.01, 1), (2, 0.99, 1), (1000, 0.02, 20)])
def test_a_held_out_fraction(n: int, fraction: float, expected: int) -> None:
    _, held = held_out_by_group(np.arange(n, dtype=np.int64), seed=3, fraction=fraction)
    assert len(held) == expected


def test_large_groups_come_close_to_the_share() -> None:
    groups = np.repeat(np.arange(100, dtype=np.int64), 50)
    _, held = held_out_by_group(groups, seed=5, fraction=0.1)
    assert len(held) == 500


@given(st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=4), max_size=20))
def test_rows_are_together_that_share_a_tie_or_are_linked_by_others(rows: list[set[int]]) -> None:
    together: list[tuple[set[int], set[int]]] = []
    for row, ties in enumerate(rows):
        touched = [part for part in together if part[1] & ties]
        together = [part for part in together if not part[1] & ties]
        together.append(({row}.union(*(part[0] for part in touched)), ties.union(*(part[1] for part in touched))))
    offsets = np.cumsum([0, *map(len, rows)])
    found = components(offsets, np.array([tie - 6 for ties in rows for tie in ties], dtype=np.int64))
    parts = [set(np.flatnonzero(found == number).tolist()) for number in set(found.tolist())]
    assert sorted(map(sorted, parts)) == sorted(sorted(part[0]) for part in together)


def test_a_long_chain_of_rows_is_one_group() -> None:
    order = np.random.default_rng(0).permutation(200_000)
    ties = np.stack([order, order + 1], axis=1).ravel()
    assert set(components(np.arange(0, 400_002, 2), ties).tolist()) == {0}
