"""The hold-out: by group, of the asked size, from the seed alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rankzero.datasets.frame import HoldOut


def held(groups: list[str], fraction: float, seed: int = 42) -> set[str]:
    holdout = HoldOut(fraction, seed)
    for group in groups:
        holdout.count(group)
    holdout.decide()
    return {group for group in groups if holdout.holds(group)}


def test_the_share_of_the_rows() -> None:
    groups = [f"coco:{number % 700}" for number in range(2000)]
    counts = Counter(groups)
    assert abs(sum(counts[group] for group in held(groups, 0.1)) - 200) <= 3


def test_order_does_not_matter_and_the_seed_does() -> None:
    groups = [f"g{number}" for number in range(300)]
    assert held(groups, 0.2) == held(groups[::-1], 0.2) != held(groups, 0.2, seed=43)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40), st.floats(0.01, 0.9), st.integers(0, 99))
def test_both_sides_have_a_group(names: list[str], fraction: float, seed: int) -> None:
    groups = [f"group {name}" for name in names]
    assert 0 < len(held(groups, fraction, seed)) < len(set(groups)) or len(set(groups)) < 2


def test_one_group_stays_whole() -> None:
    assert held(["a", "a"], 0.5) == held([], 0.5) == set()


def test_rows_of_a_group_can_be_counted_together() -> None:
    counts = {f"g{number}": 1 + number % 5 for number in range(100)}
    together = HoldOut(0.2, 42)
    for group, rows in counts.items():
        together.count(group, rows)
    together.decide()
    one_by_one = [group for group, rows in counts.items() for _ in range(rows)]
    assert {group for group in counts if together.holds(group)} == held(one_by_one, 0.2)


def test_nothing_is_held_out_unasked() -> None:
    assert held(["a", "a"], 0) == set()
