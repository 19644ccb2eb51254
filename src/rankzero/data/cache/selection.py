"""Which rows of a data set take part: samples, weights, duplicates, and a hold-out by group. Pure: arrays in and out.

Everything follows from the seed and from the rows' places alone, so that a resumed run selects what it selected before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankzero.data.order import Indices, permutation
from rankzero.spec.data_paths import RowSlice

_HELD_OUT, _SAMPLED, _WEIGHTED = -1, -2, -1_000_000
"""Streams of random numbers that no epoch uses; the last two count down by source."""


def sample(n_rows: int, count: int, *, seed: int, source: int) -> Indices:
    """`count` of `n_rows` rows without repetition, in file order. Raises ValueError where there are not as many."""
    if count > n_rows:
        raise ValueError(f"{count} of {n_rows} rows")
    return np.sort(permutation(n_rows, seed=seed, stream=_SAMPLED - source)[:count])


def chosen(n_rows: int, rows: RowSlice | None, count: int | None, *, seed: int, source: int) -> Indices:
    """Of these rows, or of all, `count` drawn ones, or all; in file order. Raises ValueError where there are not as
    many."""
    first, last = (0, n_rows) if rows is None else rows.bounds(n_rows)
    if count is None:
        return np.arange(first, last, dtype=np.int64)
    return first + sample(last - first, count, seed=seed, source=source)


def mix(sources: npt.NDArray[np.int64], weights: Sequence[float], *, seed: int) -> Indices:
    """Rows of an epoch: every row of source s `weights[s]` times, the fraction that is left over at random.

    `sources[i]` is the source of row i. In file order, repeats beside each other.
    """
    times = np.zeros(len(sources), dtype=np.int64)
    for source, weight in enumerate(weights):
        rows = np.flatnonzero(sources == source)
        times[rows] = int(weight)
        more = round((weight - int(weight)) * len(rows))
        times[rows[permutation(len(rows), seed=seed, stream=_WEIGHTED - source)[:more]]] += 1
    return np.repeat(np.arange(len(sources), dtype=np.int64), times)


def first_occurrences(digests: npt.NDArray[np.int64]) -> Indices:
    """The first row of each digest, in file order."""
    return np.sort(np.unique(digests, return_index=True)[1]).astype(np.int64)


def components(offsets: npt.NDArray[np.int64], ties: npt.NDArray[np.int64]) -> Indices:
    """A number for each row, equal where rows have a tie in common, or where other rows link them. Row i has
    `ties[offsets[i]:offsets[i + 1]]`, one at least."""
    counts = np.diff(offsets)
    if len(ties) == len(counts):
        return ties
    row_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    names, tie_of = np.unique(ties, return_inverse=True)
    found = np.arange(len(counts), dtype=np.int64)
    while True:
        lowest = np.full(len(names), len(counts), dtype=np.int64)
        np.minimum.at(lowest, tie_of, found[row_of])
        lower = found.copy()
        np.minimum.at(lower, found[row_of], lowest[tie_of])
        while not np.array_equal(lower, further := lower[lower]):  # a long chain of rows takes few rounds
            lower = further
        if np.array_equal(lower, found):
            return found
        found = lower


def held_out_by_group(groups: npt.NDArray[np.int64], *, seed: int, fraction: float) -> tuple[Indices, Indices]:
    """(train rows, eval rows), each in file order; all rows of a group on one side, at least one group on either.

    Groups are drawn in random order until the eval side has its share of the rows, and the last one is left out where
    that comes closer. Raises ValueError where there is only one group.
    """
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    by_place = np.argsort(np.argsort(first))  # groups are numbered by their first row, not by their hash
    group_of = by_place[group_of]
    sizes = np.bincount(group_of)
    if len(sizes) < 2:
        raise ValueError("one group cannot be split")
    order = permutation(len(sizes), seed=seed, stream=_HELD_OUT)
    filled = np.cumsum(sizes[order])
    wanted = max(1, round(len(groups) * fraction))
    count = int(np.searchsorted(filled, wanted)) + 1
    if count > 1 and filled[min(count, len(filled)) - 1] - wanted > wanted - filled[count - 2]:
        count -= 1
    count = min(count, len(sizes) - 1)
    held_out = np.zeros(len(sizes), dtype=bool)
    held_out[order[:count]] = True
    on_eval = held_out[group_of]
    return np.flatnonzero(~on_eval).astype(np.int64), np.flatnonzero(on_eval).astype(np.int64)
