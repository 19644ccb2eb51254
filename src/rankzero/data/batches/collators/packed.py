"""Rows of a pass end to end, without padding. Knows rows and torch; nothing of the attention that keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from rankzero.data.batches.collators.text import MicroBatch, answers_of, in_sequences, target_weights, to_device
from rankzero.data.cache.joined import Rows
from rankzero.data.order import Indices

Positions = Callable[[Sequence[npt.NDArray[np.int32]], Mapping[str, torch.Tensor]], npt.NDArray[np.int64]]
"""Of these rows' tokens, of which image tokens have the inputs of these images: where each stands, by as many axes as
the model has, one row after the other: (axes, tokens)."""


class PackedText:
    """Rows one after the other as a single sequence of T tokens. The last token of a row is only ever a target.

    The model is told where rows begin twice: by positions that start at 0 again, and by `cu_seq_lens_*`, under the
    names that transformers gives to flash attention. There is no attention mask, and the model must not use a cache:
    either would make transformers take the pass for one long row.
    """

    packed = True

    def __init__(self, positions: Positions | None = None) -> None:
        """`positions`: of a model that sees images, by which it numbers tokens of text, too."""
        self._positions = positions

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch:
        tokens, row_of, begins = in_sequences(dataset, rows)
        batch = end_to_end(
            row_of,
            [ids[:-1] for ids, _ in tokens],
            predicts=np.concatenate([mask[1:] for _, mask in tokens]),
            targets=np.concatenate([ids[1:][mask[1:]] for ids, mask in tokens]),
            device=device,
            begins=begins,
        )
        masks = [mask for _, mask in tokens]
        weights_N, answer_N = target_weights(dataset, rows, masks, device), answers_of(dataset, masks, device)
        batch = replace(batch, rows=rows, weights_N=weights_N, answer_N=answer_N)
        if self._positions is None:
            return batch
        return with_positions(batch, [ids[:-1] for ids, _ in tokens], self._positions, {})

    def idle(self, device: torch.device) -> MicroBatch:
        """One row of two tokens that predicts nothing."""
        nothing = np.empty(0, np.int64)
        ids = [np.zeros(2, np.int32)]
        idle = end_to_end(nothing, ids, predicts=np.zeros(2, np.bool_), targets=nothing, device=device)
        return idle if self._positions is None else with_positions(idle, ids, self._positions, {})


def with_positions(
    batch: MicroBatch,
    ids: Sequence[npt.NDArray[np.int32]],
    positions: Positions,
    images: Mapping[str, torch.Tensor],
) -> MicroBatch:
    """The pass of these sequences with places in the row, by which a mask keeps rows apart, and behind them those that
    the model itself goes by. Of text alone too: given the former alone, Qwen2-VL takes a pass for one row."""
    places = np.concatenate([np.arange(len(row), dtype=np.int64) for row in ids])
    by_axes = np.concatenate([places[None], positions(ids, images)])
    position_ids = to_device(by_axes[:, None], batch.targets_N.device)
    return replace(batch, inputs={**batch.inputs, "position_ids": position_ids})


def end_to_end(
    rows: Indices,
    ids: Sequence[npt.NDArray[np.int32]],
    *,
    predicts: npt.NDArray[np.bool_],
    targets: npt.NDArray[np.integer],
    device: torch.device,
    begins: Indices | None = None,
    own: Sequence[int] | None = None,
) -> MicroBatch:
    """One pass of these sequences. `rows`: that of each; none in an idle pass. `begins`: where in its row each begins;
    None: all at 0. `own`: how many of its first tokens are of the row; None: all.
    """
    lengths = [len(row) for row in ids]
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    borders = to_device(np.cumsum([0, *lengths], dtype=np.int32), device)
    longest = max(lengths)
    input_ids = np.concatenate(ids).astype(np.int64)
    row_of = np.repeat(rows if len(rows) else np.zeros(1, np.int64), lengths)
    of_rows = np.full(input_ids.size, len(rows) > 0)
    if own is not None:
        of_rows &= positions < np.repeat(own, lengths)
    position_ids = to_device(positions[None], device)
    in_rows = position_ids if begins is None else to_device((positions + np.repeat(begins, lengths))[None], device)
    return MicroBatch(
        rows=rows,
        inputs={
            "input_ids": to_device(input_ids[None], device),
            "position_ids": position_ids,
            "cu_seq_lens_q": borders,
            "cu_seq_lens_k": borders,
            "max_length_q": longest,
            "max_length_k": longest,
        },
        predicts_BT=to_device(predicts[None], device),
        targets_N=to_device(targets.astype(np.int64), device),
        predicts_N=to_device(np.flatnonzero(predicts), device),
        computed=input_ids.size if len(rows) else 0,
        row_of_BT=to_device(row_of[None], device),
        position_BT=in_rows,
        own_BT=to_device(of_rows[None], device),
    )
