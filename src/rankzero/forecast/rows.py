"""What a run's rows come to: how many, how long, and in how many passes a step's are computed. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankzero.data.batches.plan import by_length, divide_among_ranks, micro_batches, packed_batches
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.joined import longest_sequences, sizes_in_passes
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.order import Indices, permutation
from rankzero.spec.run_spec import RunSpec

_STEPS_LOOKED_AT = 16
"""Of the first epoch: more would change the mean of their passes little."""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The rows to train on. None where nobody has counted: of a stream, or where they are not tokenised yet."""

    rows: int | None
    tokens: int | None
    trained_tokens: int | None
    longest: int
    """Tokens of a pass of the longest row that will be trained on; the most that a row may have where it is not
    known."""
    trained_share: float
    """Of the row with the most trained tokens for its length: how many positions of a pass may need logits."""
    eval_rows: int | None


def facts_of_rows(
    train: TokenizedDataset | Stream | None, held_out: TokenizedDataset | None, max_length: int
) -> RowFacts:
    """`max_length`: of a row, in all its sequences. `train` is None where rows are not tokenised yet."""
    eval_rows = None if held_out is None else len(held_out)
    if not isinstance(train, TokenizedDataset):
        return RowFacts(None, None, None, max_length, 1.0, eval_rows)
    return RowFacts(
        rows=len(train),
        tokens=int(train.lengths.sum(dtype=np.int64)),
        trained_tokens=int(train.supervised.sum(dtype=np.int64)),
        longest=min(max_length, int(sizes_in_passes(train, packed=False).max())),
        trained_share=float((train.supervised / train.lengths).max()),
        eval_rows=eval_rows,
    )


def passes_a_step(
    train: TokenizedDataset | Stream | None,
    spec: RunSpec,
    *,
    groups: int,
    max_tokens: int,
    pass_cost: int,
    packed: bool,
    borders: Sequence[int] = (),
    at_once: int = 1,
) -> float | None:
    """Of the process that has the most, on average over the first steps; None where rows are not known yet. Rows are
    divided among this many processes, or groups of processes that share their passes. Those that are longer than one of
    the ascending `borders` share none with those that are not."""
    if not isinstance(train, TokenizedDataset):
        return None
    lengths, size = sizes_in_passes(train, packed=packed), spec.train.global_batch_size
    longest = longest_sequences(train)
    order = permutation(len(train), seed=spec.train.seed, stream=0)

    def cut(rows: Indices) -> list[Indices]:
        if packed:
            return packed_batches(rows, lengths, max_tokens=max_tokens, at_once=at_once)
        return micro_batches(rows, lengths, max_tokens=max_tokens, pass_cost=pass_cost)

    counts = []
    for first in range(0, len(order), size)[:_STEPS_LOOKED_AT]:
        shares = divide_among_ranks(order[first : first + size], lengths, groups)
        counts.append(max(sum(len(cut(part)) for part in by_length(share, longest, borders)) for share in shares))
    return sum(counts) / len(counts)
