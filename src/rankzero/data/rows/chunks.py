"""Chunks: JSON lines with their numbers, as one worker gets them. Knows nothing of files, containers or rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankzero.data.rows.problems import RowProblem

CHUNK_BYTES = 4 << 20
"""What one worker gets at a time: large enough to hide the hand-over, small enough to bound memory."""

UTF8_BOM = b"\xef\xbb\xbf"

DAMAGE = frozenset(
    {"cut-off file", "damaged file", "row without an end", "text after the rows", "data behind the end"}
    | {"zstd window too large"}
)
"""Reasons of problems that concern the file from there on, not one row."""

Said = RowProblem | tuple[str, ...]
"""Of a row: what is wrong with it, or by which named rules its container changed it."""
NumberedLine = tuple[int, bytes, Said | None]
"""A row as a container gives it: its number, its JSON, and what is to be said of it. Where something is wrong, there
are the row's own bytes instead of JSON."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one source, from `first_line` on."""

    source: int
    first_line: int
    data: bytes
    numbers: tuple[int, ...] | None = None
    """Of each line, where they are not first_line, first_line + 1, and so on."""
    problems: Mapping[int, RowProblem] = field(default_factory=dict)
    """By index of the line in this chunk: rows that the container could not give as JSON. What the line then holds
    is the row as it stands in the file; it is not to be parsed."""
    file_bytes: int | None = None
    """How much of its file was read for it, where that is known: packed files and tables have other sizes than rows."""
    rules: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By index of the line: what the container did to the row, by the names of the rules."""

    @property
    def done(self) -> int:
        """By how much it brings a job over files forward, in bytes of the files."""
        return len(self.data) if self.file_bytes is None else self.file_bytes


def lines(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, without its end. Only b"\\n" ends a line: U+2028 inside a string does not."""
    data = chunk.data
    if chunk.first_line == 1 and chunk.numbers is None and data.startswith(UTF8_BOM):
        data = data[len(UTF8_BOM) :]
    parts = data.removesuffix(b"\n").split(b"\n")
    numbers = range(chunk.first_line, chunk.first_line + len(parts)) if chunk.numbers is None else chunk.numbers
    for number, line in zip(numbers, parts, strict=True):
        yield number, line.removesuffix(b"\r")


def pack(rows: Iterable[NumberedLine], source: int, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Rows as chunks of about `size` bytes."""
    numbers: list[int] = []
    parts: list[bytes] = []
    said: dict[int, Said] = {}
    length = 0
    for number, line, about in rows:
        if about is not None:
            said[len(parts)] = about
            line = line.replace(b"\n", b" ")
        numbers.append(number)
        parts.append(line)
        length += len(line) + 1
        if length >= size:
            yield _chunk(source, numbers, parts, said)
            numbers, parts, said, length = [], [], {}, 0
    if parts:
        yield _chunk(source, numbers, parts, said)


def _chunk(source: int, numbers: list[int], parts: list[bytes], said: Mapping[int, Said]) -> Chunk:
    first = numbers[0]
    consecutive = numbers == list(range(first, first + len(numbers)))
    data = b"\n".join([*parts, b""])
    problems = {index: about for index, about in said.items() if isinstance(about, RowProblem)}
    rules = {index: about for index, about in said.items() if isinstance(about, tuple)}
    return Chunk(source, first, data, None if consecutive else tuple(numbers), problems, rules=rules)


def apart(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk in parts in which a number stands for one row: of an array, several rows may begin on one line."""
    if chunk.numbers is None or len(set(chunk.numbers)) == len(chunk.numbers):
        yield chunk
        return
    begins = [0]
    seen: set[int] = set()
    for index, number in enumerate(chunk.numbers):
        if number in seen:
            begins.append(index)
            seen.clear()
        seen.add(number)
    parts = [line for _number, line in lines(chunk)]
    all_said: dict[int, Said] = {**chunk.problems, **chunk.rules}
    for begin, end in pairwise([*begins, len(parts)]):
        said = {index - begin: about for index, about in all_said.items() if begin <= index < end}
        part = _chunk(chunk.source, list(chunk.numbers[begin:end]), parts[begin:end], said)
        yield replace(part, file_bytes=0 if begin else chunk.done)


def count_in(chunk: Chunk) -> int:
    """Rows of the chunk: its lines that are not blank, and those that the container could not read."""
    if chunk.problems:
        return sum(1 for _row in rows_of(chunk))
    return sum(1 for line in chunk.data.removeprefix(UTF8_BOM).split(b"\n") if line and not line.isspace())


def select(chunks: Iterable[Chunk], keep: npt.NDArray[np.int64], size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Of one source's chunks only the rows whose ordinals, from 0 and without the blank lines, are in `keep`.

    `keep` is sorted. That a file is damaged is not left out, wherever it is.
    """
    source = done = 0

    def kept() -> Iterator[NumberedLine]:
        nonlocal source, done
        seen = 0
        for chunk in chunks:
            source, done = chunk.source, done + chunk.done
            count = count_in(chunk)
            first, last = np.searchsorted(keep, (seen, seen + count))
            wanted = set((keep[first:last] - seen).tolist())
            seen += count
            if not wanted and not chunk.problems:
                continue
            for ordinal, row in enumerate(rows_of(chunk)):
                if ordinal in wanted or (isinstance(row[2], RowProblem) and row[2].reason in DAMAGE):
                    yield row

    for chunk in pack(kept(), 0, size):
        yield replace(chunk, source=source, file_bytes=done)
        done = 0


def rows_of(chunk: Chunk) -> Iterator[NumberedLine]:
    """The chunk's rows one by one, without blank lines."""
    for index, (number, line) in enumerate(lines(chunk)):
        problem = chunk.problems.get(index)
        if problem is not None or (line and not line.isspace()):
            yield number, line, problem or chunk.rules.get(index)
