"""Files one by one, of a sampled source only the rows drawn: what `convert` reads. Knows nothing of rows' shapes.

Training reads by way of `job`, which also joins messages of trees; here they are joined by whoever reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rankzero.data.cache.selection import chosen
from rankzero.data.read.locate import LocatedSource
from rankzero.data.read.sources import count_rows, read_chunks
from rankzero.data.rows.chunks import Chunk, select
from rankzero.data.rows.trees import is_spread
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec


class SampledFiles:
    """Every file of some sources as a source of its own. Raises DataError for a sample that cannot be drawn."""

    def __init__(self, located: Sequence[LocatedSource], seed: int) -> None:
        self.files: list[SourceSpec] = []
        self._keep: list[npt.NDArray[np.int64] | None] = []
        for index, source in enumerate(located):
            self.files += [source.source.model_copy(update={"path": path, "sample": None}) for path in source.files]
            self._keep += [None] * len(source.files) if source.is_whole else _drawn(source, index, seed)

    def read(self, source: SourceSpec, index: int) -> Iterator[Chunk]:
        """The chunks of one file, which is `files[index]`."""
        chunks, keep = read_chunks(source.path, index), self._keep[index]
        if keep is None:
            return chunks
        return (
            Chunk(index, chunk.first_line, chunk.data, chunk.numbers, chunk.problems) for chunk in select(chunks, keep)
        )


def _drawn(source: LocatedSource, index: int, seed: int) -> list[npt.NDArray[np.int64] | None]:
    """Of each file the ordinals of its rows in the sample, which is one of all files together."""
    first = next((chunk for file in source.files for chunk in read_chunks(file)), None)
    if first is not None and is_spread(first):
        hint = "convert all of them, then sample the result"
        what = "a part of the messages would tear their trees apart"
        raise DataError(what, where=source.source.path, hint=hint)
    counts = [count_rows(file) for file in source.files]
    try:
        rows = chosen(sum(counts), source.rows, source.sample, seed=seed, source=index)
    except ValueError as error:
        raise DataError(source.too_few(sum(counts))) from error
    ends = np.cumsum([0, *counts])
    return [rows[(rows >= low) & (rows < high)] - low for low, high in zip(ends[:-1], ends[1:], strict=True)]
