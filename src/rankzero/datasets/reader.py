"""Raw rows of one file, streamed, whatever kind of file it is. Knows no row shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.chunks import DAMAGE, lines
from rankzero.data.rows.parse import read_json
from rankzero.errors import DataError, Problem

_READ_BYTES = 1 << 20
"""At a time: raw rows are small, and what is read ahead of `--max_samples` is wasted."""


def read_rows(path: str) -> Iterator[Any]:
    """The value of every row; a RowProblem where it cannot be read.

    Raises DataError where the file is damaged, as nothing is known of the rows behind that place.
    """
    for chunk in read_chunks(path, size=_READ_BYTES):
        for index, (number, line) in enumerate(lines(chunk)):
            problem = chunk.problems.get(index)
            if problem is not None and problem.reason in DAMAGE:
                raise DataError(Problem(problem.what, f"{path}:{number}", problem.hint))
            if problem is not None:
                yield problem
            elif line and not line.isspace():
                yield read_json(line, number)
