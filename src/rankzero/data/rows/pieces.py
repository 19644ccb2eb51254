"""Files that have rows in pieces, one a line, as chunks of whole rows for `rows.parse`. Knows lines; no format.

The pieces of one row (the messages of a tree) are spread over the file, so the whole file is read before its first row
is known. What is kept of it are the texts and what orders them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rankzero.data.rows.chunks import Chunk, NumberedLine, lines, pack
from rankzero.data.rows.formats import FORMATS
from rankzero.data.rows.formats.format import Pieces
from rankzero.data.rows.formats.json_text import write_text
from rankzero.data.rows.parse import read_json
from rankzero.data.rows.problems import RowProblem


@dataclass(slots=True)
class JoinedFile:
    """A file's whole rows as chunks, in the order of their first pieces, and the pieces that belong to none.

    `rows` in the file = rows in the chunks + `merged` (pieces beyond the first of their row) + rows with problems.
    """

    chunks: list[Chunk] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    blank: int = 0
    merged: int = 0


def pieces_in(chunk: Chunk, wanted: str) -> Pieces | None:
    """The pieces of a format that the first row of a file is one of: then `join_pieces` has to come before `parse`.
    Where the format is stated, only that one's."""
    for number, line in lines(chunk):
        if line and not line.isspace():
            row = read_json(line, number)
            possible = [format_.pieces for name, format_ in FORMATS.items() if wanted in ("auto", name)]
            found = (pieces for pieces in possible if pieces is not None and pieces.is_piece(row))
            return next(found, None) if isinstance(row, dict) else None
    return None


def join_pieces(chunks: Iterable[Chunk], pieces: Pieces) -> JoinedFile:
    """The chunks of one file. Lines that are no pieces stay as they are, for `parse` to judge."""
    joined = JoinedFile()
    others: list[NumberedLine] = []
    source = done = 0

    def found() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal source, done
        for chunk in chunks:
            source, done = chunk.source, done + chunk.done
            for index, (number, line) in enumerate(lines(chunk)):
                problem = chunk.problems.get(index)
                if problem is None and (not line or line.isspace()):
                    joined.blank += 1
                    continue
                joined.rows += 1
                row = None if problem else read_json(line, number)
                if isinstance(row, dict) and pieces.is_piece(row):
                    yield number, row
                else:
                    others.append((number, line, problem))

    whole = pieces.join(found())
    joined.problems = whole.problems
    joined.merged = sum(one.rows - 1 for one in whole.wholes)
    rows: list[NumberedLine] = [(one.line, write_text(one.row).encode(), None) for one in whole.wholes]
    packed = list(pack(sorted([*rows, *others], key=lambda row: row[0]), source))
    joined.chunks = [replace(chunk, file_bytes=done // len(packed)) for chunk in packed]
    return joined
