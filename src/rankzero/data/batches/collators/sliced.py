"""A pass of rows end to end, cut into as many slices as ranks share it, and what attention has to know of a slice.

With N slices the pass is 2N chunks of equal length, and slice i is chunks i and 2N - 1 - i: an early one, which attends
to little, and a late one, which attends to much, so that causal attention is as much work in each (Llama Team, "The
Llama 3 Herd of Models", 2024, section 3.3.2). Up to 2N - 1 tokens of padding behind the last row are a row of their
own. Knows rows and torch; nothing of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, to_device
from rankzero.data.cache.joined import Rows
from rankzero.data.order import Indices

CPU = torch.device("cpu")

Gather = Callable[[torch.Tensor], torch.Tensor]
"""From what one slice has to what all have, stacked in the order of slices: (…) to (N, …). Every slice calls it, with
equal shapes; its backward pass gives each the sum of the gradients of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive tokens of a pass, and the keys that they attend to: all of their own rows up to themselves."""

    queries: slice
    """Its tokens, in the slice."""
    keys: slice
    """Tokens of the pass, from the beginning of its first row to its last token."""
    query_borders: torch.Tensor
    """Where rows begin among its tokens, and where the last one ends: int32, (rows + 1)."""
    key_borders: torch.Tensor
    """The same among its keys."""
    longest_queries: int
    longest_keys: int


@dataclass(frozen=True, slots=True, eq=False)
class ContextSlice:
    """One of the slices of a pass."""

    chunks: tuple[Chunk, Chunk]
    gather: Gather

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """What each token of the slice has, (1, heads, S, …), of all tokens of the pass in their order: (1, heads, NS,
        …). A collective."""
        early, late = self.gather(own).chunk(2, dim=3)
        return torch.cat([*early, *late.flip(0)], dim=2)


class SlicedText:
    """One slice of what PackedText makes of rows. Slices of a pass have equally many tokens, and may have no target."""

    packed = True

    def __init__(self, *, number: int, slices: int, gather: Gather) -> None:
        """`number` of these `slices`, from 0."""
        self._pass = PackedText()
        self._number, self._slices, self._gather = number, slices, gather

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch:
        return self._slice(self._pass(dataset, rows, CPU), device)

    def idle(self, device: torch.device) -> MicroBatch:
        return self._slice(self._pass.idle(CPU), device)

    def _slice(self, whole: MicroBatch, device: torch.device) -> MicroBatch:
        borders, padding = self._padded(whole.inputs["cu_seq_lens_q"].numpy())
        length = int(borders[-1]) // (2 * self._slices)
        starts = (self._number * length, (2 * self._slices - 1 - self._number) * length)
        own = np.concatenate([np.arange(start, start + length) for start in starts])

        def mine(values_1T: torch.Tensor, pad: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            found: npt.NDArray[np.generic] = np.concatenate([values_1T.numpy()[0], pad])[own]
            return found

        nothing = np.zeros(padding, np.int64)
        if whole.predicts_BT is None:
            raise ValueError("rows end to end have a target for each token or none")
        predicts_T = np.concatenate([whole.predicts_BT.numpy()[0], nothing.astype(np.bool_)])
        predicts_S = predicts_T[own]
        targets_N = (np.cumsum(predicts_T) - 1)[own][predicts_S]
        positions_1S = to_device(mine(whole.position_BT, np.arange(padding))[None], device)
        chunks = [
            _chunk(borders, start, slice(number * length, (number + 1) * length), device)
            for number, start in enumerate(starts)
        ]
        return MicroBatch(
            rows=whole.rows,
            inputs={
                "input_ids": to_device(mine(whole.inputs["input_ids"], nothing)[None], device),
                "position_ids": positions_1S,
                "context_slice": ContextSlice((chunks[0], chunks[1]), self._gather),
            },
            predicts_BT=to_device(predicts_S[None], device),
            targets_N=to_device(whole.targets_N.numpy()[targets_N], device),
            predicts_N=to_device(np.flatnonzero(predicts_S), device),
            computed=len(own) if whole.computed else 0,
            row_of_BT=to_device(mine(whole.row_of_BT, nothing)[None], device),
            position_BT=positions_1S,
            own_BT=to_device(mine(whole.own_BT, nothing.astype(np.bool_))[None], device),
            weights_N=None if whole.weights_N is None else to_device(whole.weights_N.numpy()[targets_N], device),
        )

    def _padded(self, borders: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], int]:
        """Borders of rows with those of the padding, and how much of that there is."""
        padding = int(-borders[-1] % (2 * self._slices))
        return (np.append(borders, borders[-1] + np.int32(padding)) if padding else borders), padding


def _chunk(borders: npt.NDArray[np.int32], start: int, own: slice, device: torch.device) -> Chunk:
    """The tokens from `start` of a pass with these borders, as many as `own` says."""
    end = start + own.stop - own.start
    first = int(np.searchsorted(borders, start, side="right")) - 1
    rows = borders[first : int(np.searchsorted(borders, end, side="left")) + 1]
    queries, keys = np.clip(rows, start, end) - start, np.minimum(rows, end) - rows[0]
    return Chunk(
        queries=own,
        keys=slice(int(rows[0]), end),
        query_borders=to_device(queries.astype(np.int32), device),
        key_borders=to_device(keys.astype(np.int32), device),
        longest_queries=int(np.diff(queries).max()),
        longest_keys=int(np.diff(keys).max()),
    )
