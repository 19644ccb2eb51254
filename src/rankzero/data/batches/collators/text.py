"""Rows of a pass as tensors: padded, end to end, with a label, with images. Knows rows and torch; nothing of models.

A collator is chosen once for a run. The model sees `inputs` as keyword arguments and nothing else of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from rankzero.data.cache.joined import Rows, sequences
from rankzero.data.cache.labels import label_codes
from rankzero.data.order import Indices


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass over B sequences of T positions, which predicts N targets."""

    rows: Indices
    inputs: Mapping[str, Any]
    """Keyword arguments of the model: tensors, and numbers where it wants them; always `input_ids` of (B, T). Of one
    slice of a pass also what it attends to (collators/sliced.py)."""
    predicts_BT: torch.Tensor | None
    """Where the next token is trained: the positions whose logits are needed. None: one prediction for each row."""
    targets_N: torch.Tensor
    """Trained tokens in the order in which `predicts_BT` selects, or classes."""
    computed: int
    """Tokens that go through the model, padding included."""
    row_of_BT: torch.Tensor
    """The row that each token is of, by its number in the data set: int64, of a shape that broadcasts to (B, T)."""
    position_BT: torch.Tensor
    """The token's place in that row, from 0: the same."""
    own_BT: torch.Tensor
    """Which tokens are of the row, and neither padding nor what only keeps step with other ranks. Bool, (B, T)."""
    weights_N: torch.Tensor | None = None
    """What each target's loss is multiplied by; None where all count in full."""
    predicts_N: torch.Tensor | None = None
    """`predicts_BT` as places in the pass, row after row: a device that selects by these need not be waited for."""
    answer_N: torch.Tensor | None = None
    """Of preferences: the answer that each target is of, 2p for the better one of the pass's p-th row, 2p + 1 for the
    worse. None where rows are no preferences."""

    @property
    def sequences(self) -> int:
        """How many there are of its rows, none of which sees another."""
        return len(self.rows) if self.answer_N is None else 2 * len(self.rows)

    @property
    def losses(self) -> float | torch.Tensor:
        """What its losses are multiplied by, summed up: their number where all count in full."""
        if self.answer_N is not None:
            return len(self.rows)
        return len(self.targets_N) if self.weights_N is None else self.weights_N.sum()


class Collator(Protocol):
    """Rows of one data set to a MicroBatch."""

    packed: bool
    """Rows lie end to end: a pass costs the sum of its rows, not rows x the longest."""

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch: ...

    def idle(self, device: torch.device) -> MicroBatch:
        """The least pass that touches every weight and predicts nothing, for a rank that only keeps step."""
        ...


def padded_places(
    rows: Indices, lengths: Sequence[int], input_ids: torch.Tensor, begins: Indices | None = None
) -> dict[str, torch.Tensor]:
    """`row_of_BT`, `position_BT` and `own_BT` where each sequence is one of `input_ids`, shape (B, T), and begins with
    as many tokens of its own as `lengths` says; an idle pass has row 0 and no lengths. `begins`: where in their rows
    sequences begin; None: all at 0."""
    device = input_ids.device
    numbers = rows if len(rows) else np.zeros(len(input_ids), np.int64)
    positions = np.arange(input_ids.shape[1], dtype=np.int64)[None]
    in_rows = positions if begins is None else positions + begins[:, None]
    own = np.array(lengths if len(rows) else [0] * len(input_ids))
    return {
        "row_of_BT": to_device(numbers[:, None], device),
        "position_BT": to_device(in_rows, device),
        "own_BT": to_device(positions < own[:, None], device),
    }


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows as rectangles: what is fed in, and the tokens that are predicted."""

    input_ids_BT: npt.NDArray[np.int64]
    predicts_BT: npt.NDArray[np.bool_]
    targets_N: npt.NDArray[np.int64]


def pad_right(rows: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]], *, pad_id: int = 0) -> Padded:
    """Pad rows of (ids, which of them are trained) to the longest, without their last tokens."""
    width = max(len(ids) for ids, _ in rows) - 1
    input_ids_BT, predicts_BT = np.full((len(rows), width), pad_id, np.int64), np.zeros((len(rows), width), np.bool_)
    targets: list[npt.NDArray[np.int32]] = []
    for i, (ids, mask) in enumerate(rows):
        input_ids_BT[i, : len(ids) - 1] = ids[:-1]
        predicts_BT[i, : len(ids) - 1] = mask[1:]
        targets.append(ids[1:][mask[1:]])
    return Padded(input_ids_BT, predicts_BT, np.concatenate(targets).astype(np.int64))


_Trained = npt.NDArray[np.bool_]


def in_sequences(
    dataset: Rows, rows: Indices
) -> tuple[list[tuple[npt.NDArray[np.int32], _Trained]], Indices, Indices | None]:
    """The sequences of these rows, one after the other; the row of each; and where in its row each begins, None where
    rows are one sequence each."""
    found = [sequences(dataset, int(row)) for row in rows]
    if dataset.rejected_from is None:
        return [one for (one,) in found], rows, None
    begins = np.stack([np.zeros(len(rows), np.int64), dataset.rejected_from[rows].astype(np.int64)], axis=1)
    return [one for both in found for one in both], np.repeat(rows, 2), begins.reshape(-1)


def answers_of(dataset: Rows, masks: Sequence[_Trained], device: torch.device) -> torch.Tensor | None:
    """`MicroBatch.answer_N` of sequences of which these tokens are trained."""
    if dataset.rejected_from is None:
        return None
    counts = [int(mask[1:].sum()) for mask in masks]
    return to_device(np.repeat(np.arange(len(masks), dtype=np.int64), counts), device)


def target_weights(
    dataset: Rows, rows: Indices, masks: Sequence[npt.NDArray[np.bool_]], device: torch.device
) -> torch.Tensor | None:
    """What each target of these rows counts, in the order in which `pad_right` and packing have them. `masks`: which
    tokens of each row are trained."""
    of_rows = [dataset.weights(int(row)) for row in rows]
    if all(weights is None for weights in of_rows):
        return None
    counted = [
        np.ones(mask[1:].sum(), np.float32) if weights is None else weights[1:][mask[1:]]
        for weights, mask in zip(of_rows, masks, strict=True)
    ]
    return to_device(np.concatenate(counted), device)


class PaddedText:
    """Rows padded on the right to the longest. The last token of a row is only ever a target, so it is not fed in.

    Nothing real attends to what stands on the right of a causal model: no attention mask is needed, and which id the
    padding has does not matter.
    """

    packed = False

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch:
        tokens, row_of, begins = in_sequences(dataset, rows)
        padded = pad_right(tokens)
        input_ids = to_device(padded.input_ids_BT, device)
        return MicroBatch(
            rows=rows,
            inputs={"input_ids": input_ids},
            predicts_BT=to_device(padded.predicts_BT, device),
            targets_N=to_device(padded.targets_N, device),
            predicts_N=to_device(np.flatnonzero(padded.predicts_BT), device),
            computed=padded.input_ids_BT.size,
            weights_N=target_weights(dataset, rows, [mask for _, mask in tokens], device),
            answer_N=answers_of(dataset, [mask for _, mask in tokens], device),
            **padded_places(row_of, [len(ids) - 1 for ids, _ in tokens], input_ids, begins),
        )

    def idle(self, device: torch.device) -> MicroBatch:
        return idle_text(device)


class LabelledText:
    """Texts padded on the right to the longest, each with its class. The attention mask says what is padding: an
    encoder attends to both sides."""

    packed = False

    def __init__(self, labels: tuple[str, ...], *, pad_id: int) -> None:
        self._labels, self._pad_id = labels, pad_id
        self._codes: WeakKeyDictionary[Rows, npt.NDArray[np.int32]] = WeakKeyDictionary()

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch:
        if dataset not in self._codes:
            self._codes[dataset] = label_codes(dataset, self._labels)
        tokens = [dataset.row(int(row))[0] for row in rows]
        width = max(map(len, tokens))
        input_ids = np.full((len(rows), width), self._pad_id, np.int64)
        attention_mask = np.zeros((len(rows), width), np.int64)
        for i, ids in enumerate(tokens):
            input_ids[i, : len(ids)] = ids
            attention_mask[i, : len(ids)] = 1
        return self._batch(rows, input_ids, attention_mask, self._codes[dataset][rows], device)

    def idle(self, device: torch.device) -> MicroBatch:
        """One text of one token, and no class: its logits stand for nothing."""
        nothing, one = np.empty(0, np.int64), np.ones((1, 1), np.int64)
        idle = self._batch(nothing, one * self._pad_id, one, nothing, device)
        return replace(idle, computed=0)

    @staticmethod
    def _batch(
        rows: Indices,
        input_ids: npt.NDArray[np.int64],
        attention_mask: npt.NDArray[np.int64],
        classes: npt.NDArray[np.integer],
        device: torch.device,
    ) -> MicroBatch:
        ids = to_device(input_ids, device)
        return MicroBatch(
            rows=rows,
            inputs={"input_ids": ids, "attention_mask": to_device(attention_mask, device)},
            predicts_BT=None,
            targets_N=to_device(classes.astype(np.int64), device),
            computed=input_ids.size,
            **padded_places(rows, attention_mask.sum(axis=1).tolist(), ids),
        )


def idle_text(device: torch.device) -> MicroBatch:
    """One token that predicts nothing."""
    nothing = np.empty(0, dtype=np.int64)
    input_ids = to_device(np.zeros((1, 2), np.int64), device)
    return MicroBatch(
        rows=nothing,
        inputs={"input_ids": input_ids},
        predicts_BT=to_device(np.zeros((1, 2), np.bool_), device),
        targets_N=to_device(nothing, device),
        predicts_N=to_device(nothing, device),
        computed=0,
        **padded_places(nothing, (), input_ids),
    )


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting for it, where the device allows that."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
