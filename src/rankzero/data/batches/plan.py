"""Which rows make a step, who computes them, and in which forward passes. Pure: arrays in, arrays out, no torch.

The global batch is the unit. Its rows are a function of (seed, epoch, step) alone. It is then divided among ranks by
length, and each rank's share into micro-batches; both only move work around and never change a step's loss.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankzero.data.order import Indices


def divide_among_ranks(rows: Indices, lengths: npt.NDArray[np.int32], world_size: int) -> list[Indices]:
    """Give every rank about the same number of tokens: the longest row goes to the least loaded rank (Graham's LPT).

    `lengths` is indexed by row. A rank may get nothing where there are fewer rows than ranks.
    """
    if world_size == 1:
        return [rows]
    order = rows[np.argsort(-lengths[rows], kind="stable")]
    shares: list[list[int]] = [[] for _ in range(world_size)]
    load = [(0, rank) for rank in range(world_size)]
    for row in order:
        tokens, rank = heapq.heappop(load)
        shares[rank].append(int(row))
        heapq.heappush(load, (tokens + int(lengths[row]), rank))
    return [np.array(share, dtype=np.int64) for share in shares]


def by_length(rows: Indices, lengths: npt.NDArray[np.int32], borders: Sequence[int]) -> list[Indices]:
    """Rows that may share a pass, the longest first: those longer than one of the ascending `borders`, and those that
    are not, are never in one."""
    if not len(borders):
        return [rows]
    beyond = np.searchsorted(np.array(borders), lengths[rows])
    return [rows[beyond == number] for number in np.unique(beyond)[::-1]]


def micro_batches(
    rows: Indices, lengths: npt.NDArray[np.int32], *, max_tokens: int, pass_cost: int = 0
) -> list[Indices]:
    """Cut rows, longest first, into forward passes of at most `max_tokens` tokens, padding counted.

    Among all cuts of the length-sorted rows the one with the least cost is taken, cost = tokens computed (padding
    included) + `pass_cost` tokens a pass (what starting one costs, in tokens). A row longer than `max_tokens` makes a
    pass alone. Dynamic programming over cut positions: O(rows · rows per pass).
    """
    if not len(rows):
        return []
    order = rows[np.argsort(-lengths[rows], kind="stable")]
    sizes = lengths[order].astype(np.int64)
    best = np.zeros(len(order) + 1, dtype=np.int64)  # best[i]: least cost of the first i rows
    cut = np.zeros(len(order) + 1, dtype=np.int64)
    first = 0  # earliest start whose pass still fits; it only moves right as `end` does
    for end in range(1, len(order) + 1):
        while first < end - 1 and sizes[first] * (end - first) > max_tokens:
            first += 1
        starts = np.arange(first, end)
        cost = best[first:end] + sizes[first:end] * (end - starts) + pass_cost  # a pass's first row is its longest
        choice = int(cost.argmin())
        best[end], cut[end] = cost[choice], first + choice
    passes = []
    end = len(order)
    while end:
        passes.append(order[cut[end] : end])
        end = int(cut[end])
    return passes[::-1]


def packed_batches(
    rows: Indices, lengths: npt.NDArray[np.int32], *, max_tokens: int, at_once: int = 1
) -> list[Indices]:
    """Cut rows into few passes of at most `max_tokens` tokens, without padding, all of about the same size.

    Passes as full as possible would take the most memory and leave a small one at the end, for which a GPU waits while
    the host starts its kernels. So rows are divided as among ranks, into as few passes as their tokens need, into one
    more, or into as many as come of putting each row, longest first, into the fullest that has room (best-fit
    decreasing); where each of these has a pass that is too long, they are filled so. A row longer than `max_tokens`
    makes a pass alone. Of `at_once` passes that are computed at the same time none has to wait for another's end: where
    rows allow it, that number divides theirs.
    """
    order = rows[np.argsort(-lengths[rows], kind="stable")]
    longer = int((lengths[order] > max_tokens).sum())
    alone, others = [order[place : place + 1] for place in range(longer)], order[longer:]
    if not len(others):
        return alone

    def in_rounds(count: int) -> int:
        """So many passes, or a few more that fill the last round."""
        return min(len(others), -(-(longer + count) // at_once) * at_once - longer)

    # As few as their tokens, and those of which no two fit together, leave room for.
    fewest = max(-(-int(lengths[others].sum()) // max_tokens), int((2 * lengths[others] > max_tokens).sum()))
    if (even := _even(others, lengths, in_rounds(fewest), max_tokens)) is not None:
        return alone + even
    filled = _best_fit(others, lengths, max_tokens)
    most = in_rounds(len(filled))
    for count in (in_rounds(fewest + 1), most):
        if count <= most and (even := _even(others, lengths, count, max_tokens)) is not None:
            return alone + even
    return alone + filled


def _even(rows: Indices, lengths: npt.NDArray[np.int32], count: int, max_tokens: int) -> list[Indices] | None:
    """So many passes of about the same size; None where one would be too long."""
    passes = divide_among_ranks(rows, lengths, count)
    return passes if all(int(lengths[part].sum()) <= max_tokens for part in passes) else None


def _best_fit(order: Indices, lengths: npt.NDArray[np.int32], max_tokens: int) -> list[Indices]:
    """Rows that lie longest first, each into the fullest pass that has room."""
    passes: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # what is left in each pass, and which one it is: the least first
    for row in order:
        size = int(lengths[row])
        place = bisect_left(rooms, (size, -1))
        room, number = rooms.pop(place) if place < len(rooms) else (max_tokens, len(passes))
        if number == len(passes):
            passes.append([])
        passes[number].append(int(row))
        insort(rooms, (room - size, number))
    return [np.array(share, dtype=np.int64) for share in passes]
