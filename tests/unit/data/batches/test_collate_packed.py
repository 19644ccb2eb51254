"""Rows end to end: nothing lost, nothing added, and every way of saying where they begin agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText

CPU = torch.device("cpu")


class Rows:
    """A data set of these lengths; the ids tell row and place, and about half of the tokens are trained."""

    rejected_from = None

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def row(self, i: int) -> tuple[Any, Any]:
        at = np.arange(self._lengths[i], dtype=np.int32)
        return at + 1000 * i, (at > 0) & ((at + i) % 2 == 0)

    def weights(self, i: int) -> Any:
        """Of every third row each trained token has a weight that tells which token it is."""
        ids, mask = self.row(i)
        return np.where(mask, ids / 2, 0).astype(np.float32) if i % 3 == 1 else None


lengths = st.lists(st.integers(2, 30), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_every_token_but_the_last_of_a_row_is_fed_in_once_and_in_order(sizes: list[int]) -> None:
    rows = np.arange(len(sizes))[::-1].copy()
    batch = PackedText()(Rows(sizes), rows, CPU)  # type: ignore[arg-type]
    wanted = [1000 * row + place for row in rows for place in range(sizes[row] - 1)]
    assert batch.inputs["input_ids"].tolist() == [wanted]
    assert batch.inputs["position_ids"].tolist() == [[place % 1000 for place in wanted]]
    assert batch.computed == len(wanted)
    assert batch.rows is rows


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_borders_are_where_positions_start_again(sizes: list[int]) -> None:
    batch = PackedText()(Rows(sizes), np.arange(len(sizes)), CPU)  # type: ignore[arg-type]
    positions = batch.inputs["position_ids"][0]
    starts = [*(positions == 0).nonzero().flatten().tolist(), len(positions)]
    for side in "qk":
        borders = batch.inputs[f"cu_seq_lens_{side}"]
        assert borders.tolist() == starts
        assert borders.dtype == torch.int32
        assert batch.inputs[f"max_length_{side}"] == max(sizes) - 1
        assert type(batch.inputs[f"max_length_{side}"]) is int


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_the_same_tokens_are_trained_as_with_padding(sizes: list[int]) -> None:
    rows = np.arange(len(sizes))
    packed, padded = (collate(Rows(sizes), rows, CPU) for collate in (PackedText(), PaddedText()))  # type: ignore[arg-type]
    assert packed.targets_N.tolist() == padded.targets_N.tolist()
    assert packed.predicts_BT is not None and padded.predicts_BT is not None
    seen = [batch.inputs["input_ids"][batch.predicts_BT].tolist() for batch in (packed, padded)]
    assert seen[0] == seen[1] == [target - 1 for target in packed.targets_N.tolist()]
    if len(sizes) < 2:  # no row has weights
        assert packed.weights_N is None and padded.weights_N is None
        return
    wanted = [target / 2 if target // 1000 % 3 == 1 else 1.0 for target in packed.targets_N.tolist()]
    for batch in (packed, padded):
        assert batch.weights_N is not None and batch.weights_N.tolist() == wanted


def test_nothing_says_that_padding_is_masked_or_a_cache_is_used() -> None:
    """Either would make transformers take the pass for one long row."""
    batch = PackedText()(Rows([4, 3]), np.arange(2), CPU)  # type: ignore[arg-type]
    assert set(batch.inputs) == {
        *("input_ids", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    }


def test_an_idle_pass_predicts_nothing_and_looks_like_any_other() -> None:
    idle = PackedText().idle(CPU)
    other = PackedText()(Rows([3]), np.arange(1), CPU)  # type: ignore[arg-type]
    assert idle.computed == 0 and len(idle.rows) == 0 and len(idle.targets_N) == 0
    assert idle.predicts_BT is not None and not idle.predicts_BT.any()
    assert {name: type(value) for name, value in idle.inputs.items()} == {
        name: type(value) for name, value in other.inputs.items()
    }
    assert idle.inputs["cu_seq_lens_q"].tolist() == other.inputs["cu_seq_lens_q"].tolist() == [0, 2]
