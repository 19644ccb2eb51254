"""Files of one message a line as chunks of one tree a line, which `rows.parse` reads. Knows lines; nothing of turns.

A message's tree is spread over the file, so the whole file is read before its first tree is known. What is kept of it
are the texts and what orders them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from rankzero.data.rows.chunks import Chunk, NumberedLine, lines, pack
from rankzero.data.rows.formats.oasst import is_flat
from rankzero.data.rows.formats.oasst_flat import group_flat_rows
from rankzero.data.rows.parse import read_json
from rankzero.data.rows.problems import RowProblem


@dataclass(slots=True)
class Joined:
    """A file's trees as chunks, in the order of their roots, and the rows that belong to none.

    `rows` in the file = rows in the chunks + `merged` (rows that became part of another's tree) + rows with problems.
    """

    chunks: list[Chunk] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    blank: int = 0
    merged: int = 0


def is_spread(chunk: Chunk) -> bool:
    """Whether the first row of a file is one message of a tree: then `join_trees` has to come before `parse`."""
    for number, line in lines(chunk):
        if line and not line.isspace():
            row = read_json(line, number)
            return isinstance(row, dict) and is_flat(row)
    return False


def join_trees(chunks: Iterable[Chunk]) -> Joined:
    """The chunks of one file. Lines that are no messages of trees stay as they are, for `parse` to judge."""
    joined = Joined()
    others: list[NumberedLine] = []
    source = 0

    def messages() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal source
        for chunk in chunks:
            source = chunk.source
            for index, (number, line) in enumerate(lines(chunk)):
                problem = chunk.problems.get(index)
                if problem is None and (not line or line.isspace()):
                    joined.blank += 1
                    continue
                joined.rows += 1
                row = None if problem else read_json(line, number)
                if isinstance(row, dict) and is_flat(row):
                    yield number, row
                else:
                    others.append((number, line, problem))

    grouped = group_flat_rows(messages())
    joined.problems = grouped.problems
    joined.merged = sum(tree.rows - 1 for tree in grouped.trees)
    trees: list[NumberedLine] = [(tree.line, orjson.dumps(tree.row), None) for tree in grouped.trees]
    joined.chunks = list(pack(sorted([*trees, *others], key=lambda row: row[0]), source))
    return joined
