"""What collators ask of rows, and rows of several data sets as one. Knows nothing of where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rankzero.data.cache.dataset import Indices, Int32, RowLabels, TokenizedDataset


class Rows(Protocol):
    """Tokenised rows by number; TokenizedDataset says what each of these is."""

    def __len__(self) -> int: ...
    @property
    def lengths(self) -> Int32: ...
    @property
    def supervised(self) -> Int32: ...
    @property
    def loss_weights(self) -> npt.NDArray[np.float64]: ...
    @property
    def rejected_from(self) -> Int32 | None: ...
    @property
    def label_names(self) -> RowLabels: ...
    def row(self, i: int) -> tuple[Int32, npt.NDArray[np.bool_]]: ...
    def weights(self, i: int) -> npt.NDArray[np.float32] | None: ...
    def images(self, i: int) -> tuple[str, ...]: ...
    def where(self, i: int) -> str: ...


def sequences(dataset: Rows, row: int) -> list[tuple[Int32, npt.NDArray[np.bool_]]]:
    """The sequences of a row, none of which sees another: token ids, and which of them are trained. Of a preference
    that with the better answer, then that with the worse."""
    ids, trained = dataset.row(row)
    if dataset.rejected_from is None:
        return [(ids, trained)]
    at = int(dataset.rejected_from[row])
    return [(ids[:at], trained[:at]), (ids[at:], trained[at:])]


def longest_sequences(dataset: Rows) -> Int32:
    """Tokens of the longest sequence of each row. By it rows are kept apart whose positions are computed in different
    ways: of a preference with an answer on either side, both are computed as the longer one is."""
    begins = dataset.rejected_from
    return dataset.lengths if begins is None else np.maximum(begins, dataset.lengths - begins)


def sizes_in_passes(dataset: Rows, *, packed: bool) -> Int32:
    """Of each row: so many tokens a pass of it alone has. Where sequences are padded to the longest, a pass of several
    rows has the largest of these, times their number."""
    begins = dataset.rejected_from
    return dataset.lengths if packed or begins is None else 2 * longest_sequences(dataset)


class JoinedRows:
    """Chosen rows of one or more data sets, in this order."""

    def __init__(self, parts: Sequence[tuple[TokenizedDataset, Indices]]) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *(len(rows) for _, rows in self._parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> Int32:
        return self._joined("lengths")

    @cached_property
    def supervised(self) -> Int32:
        return self._joined("supervised")

    @cached_property
    def loss_weights(self) -> npt.NDArray[np.float64]:
        return self._joined("loss_weights")

    @cached_property
    def rejected_from(self) -> Int32 | None:
        found = [(dataset.rejected_from, rows) for dataset, rows in self._parts]
        begins = [begins[rows] for begins, rows in found if begins is not None]
        return np.concatenate(begins) if begins else None

    @cached_property
    def label_names(self) -> RowLabels:
        return RowLabels.of(dataset.label_names[int(row)] for dataset, rows in self._parts for row in rows)

    def row(self, i: int) -> tuple[Int32, npt.NDArray[np.bool_]]:
        dataset, row = self._locate(i)
        return dataset.row(row)

    def weights(self, i: int) -> npt.NDArray[np.float32] | None:
        dataset, row = self._locate(i)
        return dataset.weights(row)

    def images(self, i: int) -> tuple[str, ...]:
        dataset, row = self._locate(i)
        return dataset.images(row)

    def where(self, i: int) -> str:
        dataset, row = self._locate(i)
        return dataset.where(row)

    def _joined(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(dataset, name)[rows] for dataset, rows in self._parts])

    def _locate(self, i: int) -> tuple[TokenizedDataset, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        part = int(np.searchsorted(self._starts, i, side="right")) - 1
        dataset, rows = self._parts[part]
        return dataset, int(rows[i - int(self._starts[part])])
