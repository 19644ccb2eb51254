"""From a tokenised data set to tensors: the step's rows, this rank's passes, and their padding. The data side's only
torch file; knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rankzero.data.batching import Indices, divide_among_ranks, micro_batches, permutation
from rankzero.data.dataset import TokenizedDataset


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. B rows padded on the right to T tokens, of which N are predicted."""

    rows: Indices
    input_ids_BT: torch.Tensor
    predicts_BT: torch.Tensor
    """True where the next token is trained: the positions whose logits are needed."""
    targets_N: torch.Tensor
    """The trained tokens, in the order in which `predicts_BT` selects."""


@dataclass(frozen=True, slots=True)
class Work:
    """This rank's part of a step (or of an evaluation), and the totals over all ranks."""

    passes: list[Indices]
    rows: Indices
    tokens: int
    supervised: int


class Batches:
    """Plans and collates. Every rank holds the whole plan, so totals need no communication."""

    def __init__(
        self, dataset: TokenizedDataset, *, rank: int, world_size: int, max_tokens: int, pass_cost: int
    ) -> None:
        self.dataset = dataset
        self._rank, self._world_size = rank, world_size
        self._max_tokens, self._pass_cost = max_tokens, pass_cost
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)

    def step(self, *, seed: int, epoch: int, step_in_epoch: int, size: int) -> Work:
        """The global batch of a step, a function of (seed, epoch, step) alone, and this rank's passes through it."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self.dataset), seed=seed, stream=epoch)
        return self._divide(self._order[step_in_epoch * size : (step_in_epoch + 1) * size])

    def everything(self) -> Work:
        """All rows once, for an evaluation."""
        return self._divide(np.arange(len(self.dataset), dtype=np.int64))

    def _divide(self, rows: Indices) -> Work:
        lengths = self.dataset.lengths
        mine = divide_among_ranks(rows, lengths, self._world_size)[self._rank]
        return Work(
            passes=micro_batches(mine, lengths, max_tokens=self._max_tokens, pass_cost=self._pass_cost),
            rows=rows,
            tokens=int(lengths[rows].sum()),
            supervised=int(self.dataset.supervised[rows].sum()),
        )

    def collate(self, rows: Indices, device: torch.device) -> MicroBatch:
        """Rows as padded tensors. The last token of a row is only ever a target, so it is not fed in.

        Padding stands on the right of a causal model, where nothing real attends to it: no attention mask is needed,
        and which id it has does not matter.
        """
        tokens = [self.dataset.row(int(row)) for row in rows]
        width = max(len(ids) for ids, _ in tokens) - 1
        input_ids, predicts = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.bool_)
        targets: list[npt.NDArray[np.int32]] = []
        for i, (ids, mask) in enumerate(tokens):
            input_ids[i, : len(ids) - 1] = ids[:-1]
            predicts[i, : len(ids) - 1] = mask[1:]
            targets.append(ids[1:][mask[1:]])
        return MicroBatch(
            rows=rows,
            input_ids_BT=_to(input_ids, device),
            predicts_BT=_to(predicts, device),
            targets_N=_to(np.concatenate(targets).astype(np.int64), device),
        )


def _to(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting for it, where the device allows that."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
