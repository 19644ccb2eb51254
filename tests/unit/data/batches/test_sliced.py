"""A pass in slices: every token in one of them, slices of equal length, and keys that are those of the own row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.sliced import ContextSlice, SlicedText
from rankzero.data.batches.collators.text import MicroBatch
from rankzero.data.batches.loader import Batches
from tests.support.slices import in_slices

CPU = torch.device("cpu")


class Rows:
    """Rows of these many tokens to feed in, whose ids are all different; every third is trained, with a weight."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.array(lengths, np.int32) + 1
        ends = np.cumsum(self.lengths)
        self._ids = [
            np.arange(end - length, end, dtype=np.int32) for length, end in zip(self.lengths, ends, strict=True)
        ]
        self.supervised = np.array([self.row(i)[1][1:].sum() for i in range(len(lengths))], np.int32)
        self.loss_weights = np.ones(len(lengths))
        self.rejected_from = None

    def __len__(self) -> int:
        return len(self._ids)

    def row(self, i: int) -> tuple[Any, Any]:
        return self._ids[i], self._ids[i] % 3 == 0

    def weights(self, i: int) -> Any:
        return self._ids[i].astype(np.float32)


def nothing_to_gather(own: torch.Tensor) -> torch.Tensor:
    raise AssertionError("nobody attends here")


def cut(lengths: list[int], slices: int) -> tuple[MicroBatch, list[MicroBatch]]:
    """The pass of all rows, and its slices."""
    rows: Any = Rows(lengths)
    numbers = np.arange(len(lengths))
    parts = [SlicedText(number=n, slices=slices, gather=nothing_to_gather) for n in range(slices)]
    return PackedText()(rows, numbers, CPU), [part(rows, numbers, CPU) for part in parts]


def tokens(batch: MicroBatch) -> list[tuple[Any, ...]]:
    """Row, position, id, whether it predicts, and what with which weight, of each token that is of a row."""
    targets, weights = (
        iter(batch.targets_N.tolist()),
        iter(batch.weights_N.tolist() if batch.weights_N is not None else []),
    )
    assert batch.predicts_BT is not None and batch.predicts_N is not None
    assert batch.predicts_N.tolist() == batch.predicts_BT[0].nonzero()[:, 0].tolist()
    columns = (batch.own_BT, batch.row_of_BT, batch.position_BT, batch.inputs["input_ids"], batch.predicts_BT)
    found = []
    for own, *token, predicts in zip(*(column[0].tolist() for column in columns), strict=True):
        said = (next(targets), next(weights)) if predicts else None
        assert own or said is None
        found += [(*token, said)] if own else []
    return found


passes = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@given(lengths=passes, slices=st.integers(1, 5))
def test_every_token_is_in_one_slice_and_slices_are_equally_long(lengths: list[int], slices: int) -> None:
    whole, parts = cut(lengths, slices)
    assert sorted(token for part in parts for token in tokens(part)) == tokens(whole)
    assert len({part.inputs["input_ids"].shape for part in parts}) == 1
    computed = [part.computed for part in parts]
    assert len(set(computed)) == 1 and whole.computed <= sum(computed) < whole.computed + 2 * slices
    assert all(part.rows is not None and part.rows.tolist() == whole.rows.tolist() for part in parts)


@given(lengths=passes, slices=st.integers(1, 5))
def test_a_token_attends_to_its_row_up_to_itself(lengths: list[int], slices: int) -> None:
    """As attention takes the borders: a row's last query stands at its last key."""
    whole, parts = cut(lengths, slices)
    count = parts[0].computed * slices
    ends = np.cumsum([0, *lengths])
    seen: dict[int, tuple[int, int]] = {}
    for number, part in enumerate(parts):
        context = part.inputs["context_slice"]
        assert isinstance(context, ContextSlice)
        for chunk, place in zip(context.chunks, (number, 2 * slices - 1 - number), strict=True):
            queries, keys = chunk.query_borders.tolist(), chunk.key_borders.tolist()
            length = chunk.queries.stop - chunk.queries.start
            assert queries[0] == keys[0] == 0 and queries[-1] == length
            assert keys[-1] == chunk.keys.stop - chunk.keys.start
            assert chunk.longest_queries == max(np.diff(queries)) and chunk.longest_keys == max(np.diff(keys))
            for row in range(len(queries) - 1):
                for query in range(queries[row], queries[row + 1]):
                    last = chunk.keys.start + keys[row + 1] - (queries[row + 1] - query)
                    assert place * length + query == last
                    seen[last] = (chunk.keys.start + keys[row], last)
    begins = {token: int(ends[np.searchsorted(ends, token, side="right") - 1]) for token in range(count)}
    assert seen == {token: (begins[token], token) for token in range(count)}


def test_what_slices_collect_is_in_the_order_of_the_pass() -> None:
    rows: Any = Rows([5, 11, 3])

    def of_slice(number: int, gather: Any) -> tuple[torch.Tensor, torch.Tensor]:
        part = SlicedText(number=number, slices=3, gather=gather)(rows, np.arange(3), CPU)
        own = part.inputs["input_ids"][:, None, :, None].float().requires_grad_()
        whole = part.inputs["context_slice"].whole(own)
        (whole * (number + 1)).sum().backward()
        assert own.grad is not None
        return whole.detach(), own.grad

    packed = PackedText()(rows, np.arange(3), CPU).inputs["input_ids"][0]
    for whole, gradient in in_slices(3, of_slice):
        assert whole.shape == (1, 1, 24, 1)
        assert whole[0, 0, :19, 0].tolist() == packed.tolist() and not whole[0, 0, 19:].any()
        assert (gradient == 6).all(), "the sum of what all slices did with it"


def test_a_pass_that_only_keeps_step_is_one_in_slices_too() -> None:
    parts = [SlicedText(number=n, slices=3, gather=nothing_to_gather).idle(CPU) for n in range(3)]
    assert all(not part.computed and not len(part.rows) and not part.own_BT.any() for part in parts)
    assert {part.inputs["input_ids"].shape for part in parts} == {(1, 2)}
    assert all(not len(part.targets_N) for part in parts)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30), groups=st.integers(1, 3), slices=st.integers(1, 3)
)
def test_ranks_of_a_group_have_the_same_passes(lengths: list[int], groups: int, slices: int) -> None:
    """Of `slices` times the tokens that one device takes; and what a device takes is told, and limited, by device."""
    rows: Any = Rows(lengths)
    budget = 64
    plans = []
    for rank in range(groups * slices):
        collator = SlicedText(number=rank % slices, slices=slices, gather=nothing_to_gather)
        made = Batches(
            rows,
            collator,
            rank=rank,
            world_size=groups * slices,
            max_tokens=budget,
            pass_cost=0,
            same_passes=False,
            slices=slices,
        )
        plans.append((made, made.everything()))
    for group in range(groups):
        of_group = [
            [sorted(one.tolist()) for one in work.passes] for _, work in plans[group * slices : (group + 1) * slices]
        ]
        assert all(passes == of_group[0] for passes in of_group)
        for one in of_group[0]:
            assert int(rows.lengths[one].sum()) <= budget * slices or len(one) == 1
    every = sorted(row for _, work in plans[::slices] for one in work.passes for row in one.tolist())
    assert every == list(range(len(lengths)))
    made, work = plans[0]
    half = made.half_of_the_largest(work)
    if half is not None:
        largest = max(int(rows.lengths[one].sum()) for one in work.passes if len(one) > 1)
        assert half == largest // (2 * slices)
        made.limit_passes(half)
        assert all(int(rows.lengths[o].sum()) <= half * slices or len(o) == 1 for o in made.cut_again(work).passes)
