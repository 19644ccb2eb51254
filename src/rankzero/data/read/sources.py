"""Data files as chunks of JSON lines, whatever kind of file they are. Knows kinds of file; nothing of rows' shapes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from rankzero.data.read.containers.json_lines import read_lines
from rankzero.data.read.containers.layout import Layout, find_layout
from rankzero.data.read.containers.prose import read_prose
from rankzero.data.read.containers.stream import DamagedError, OnRead, Packing, Place, as_utf8, blocks
from rankzero.data.read.local import missing_hint
from rankzero.data.rows.chunks import CHUNK_BYTES, UTF8_BOM, Chunk, NumberedLine, count_in, lines, pack, rows_of
from rankzero.data.rows.problems import RowProblem
from rankzero.directories import is_file, is_folder, status
from rankzero.errors import DataError, Problem, StorageError
from rankzero.run_dir.unread import unread

if TYPE_CHECKING:
    from rankzero.data.read.containers.delimited import Header

__all__ = [
    "CHUNK_BYTES",
    "NO_ROWS",
    "UTF8_BOM",
    "Chunk",
    "count_rows",
    "lines",
    "numbering",
    "probe",
    "read_chunks",
    "require_readable",
    "unread_columns",
]

NO_ROWS = RowProblem(0, "no rows", "there are no rows in it", "is this the right file?")

_BLOCK_BYTES = 1 << 20
"""Of containers that are not cut at lines: what is looked at in one go."""


def read_chunks(path: str, source: int = 0, size: int = CHUNK_BYTES, *, header: Header = "auto") -> Iterator[Chunk]:
    """The rows of a file as JSON lines, in chunks of about `size` bytes; a longer row makes a longer chunk. `header`:
    whether the first line of CSV and TSV names the columns.

    Raises DataError where the file as a whole cannot be read (`probe` says so before), StorageError where the volume
    fails. What is wrong with one row is in the chunk.
    """
    layout = _layout(path)
    if layout is None:
        return
    taken = _Taken(path, layout)
    for chunk in _chunks(path, layout, source, size, header, taken.read):
        yield replace(chunk, file_bytes=taken.since(chunk))


def read_rows(place: Place, *, header: Header = "auto", skip: int = 0) -> Iterator[NumberedLine]:
    """The rows of a file one by one, wherever it lies, without blank lines and without the first `skip` rows: for
    whoever goes on in the middle. Of Parquet, row groups before that are not read.

    Raises as `read_chunks` does, and DataError for what cannot be read from its beginning on.
    """
    layout = _layout(place)
    if layout is None:
        return
    if layout.kind in ("parquet", "arrow"):
        if layout.packing is not None:
            what = f"the file is packed as a whole ({layout.packing}), and such files are not read in one go"
            raise DataError(what, where=str(place), hint="unpack it: its columns are packed in the file itself")
        yield from _columnar(layout).read_rows(place, None, skip)
        return
    left = skip
    for chunk in _chunks(place, layout, 0, CHUNK_BYTES, header, lambda _at: None):
        if left and (count := count_in(chunk)) <= left:
            left -= count
            continue
        yield from islice(rows_of(chunk), left, None)
        left = 0


class _Taken:
    """How much of a file has been read for the chunks that come of it. Tables are read from their end and out of turn:
    each row is an equal share of them."""

    def __init__(self, path: str, layout: Layout) -> None:
        self.at = 0
        self._told = 0
        self._per_row: float | None = None
        if layout.kind in ("parquet", "arrow"):
            self._per_row = 0.0
            with suppress(DamagedError):  # which is said where the rows are read
                rows = _columnar(layout).count_rows(path, None) if layout.packing is None else 0
                self._per_row = os.path.getsize(path) / max(1, rows)

    def read(self, at: int) -> None:
        """Note how far the file has been read."""
        self.at = at

    def since(self, chunk: Chunk) -> int:
        """What was read since the last chunk."""
        if self._per_row is not None:
            self.at += round(chunk.data.count(b"\n") * self._per_row)
        taken, self._told = self.at - self._told, self.at
        return taken


def _chunks(path: Place, layout: Layout, source: int, size: int, header: Header, on_read: OnRead) -> Iterator[Chunk]:
    if layout.kind == "json lines":
        yield from read_lines(_blocks(path, layout, size, on_read), source)
        return
    if layout.kind in ("parquet", "arrow"):
        rows = _columnar(layout).read_rows(path, layout.packing)
    elif layout.kind in ("csv", "tsv"):
        from rankzero.data.read.containers.delimited import read_delimited

        found = _blocks(path, layout, min(size, _BLOCK_BYTES), on_read)
        rows = read_delimited(found, _SEPARATORS[layout.kind], header)
    elif layout.kind == "text":
        rows = read_prose(read_lines(_blocks(path, layout, size, on_read), source))
    else:
        from rankzero.data.read.containers.json_values import read_values

        rows = read_values(_blocks(path, layout, min(size, _BLOCK_BYTES), on_read), layout)
    yield from pack(rows, source, size)


def _blocks(path: Place, layout: Layout, size: int, on_read: OnRead) -> Iterator[bytes]:
    """The file's bytes, in UTF-8 where it is text; `on_read` hears how far the file has been read."""
    found = blocks(path, layout.packing, size, on_read)
    return as_utf8(found, layout.encoding) if layout.encoding else found


class _Columnar(Protocol):
    """The readers of files in columns, which are modules with these functions."""

    def read_rows(self, path: Place, packing: Packing | None, skip: int = 0) -> Iterator[NumberedLine]: ...
    def count_rows(self, path: str, packing: Packing | None) -> int: ...
    def unread_columns(self, path: str, packing: Packing | None) -> tuple[str, ...]: ...
    def file_problem(self, path: str, packing: Packing | None) -> RowProblem | None: ...


def _columnar(layout: Layout) -> _Columnar:
    """Imported where it is needed: JSON lines are read without pyarrow."""
    from rankzero.data.read.containers import arrow, parquet

    return parquet if layout.kind == "parquet" else arrow


_SEPARATORS = {"csv": ",", "tsv": "\t"}


def count_rows(path: str, *, header: Header = "auto") -> int:
    """Rows of the file, good and bad, without blank lines. Raises as `read_chunks` does."""
    layout = _layout(path)
    if layout is not None and layout.kind in ("parquet", "arrow"):
        try:
            return _columnar(layout).count_rows(path, layout.packing)
        except DamagedError as damage:
            raise DataError(damage.what, where=path, hint=damage.hint) from damage
    return sum(count_in(chunk) for chunk in read_chunks(path, header=header))


def rows_bytes(path: str) -> int:
    """About how many bytes the rows of a file are, as JSON: more than the file has where that is packed, or a table.
    Raises as `read_chunks` does."""
    layout = _layout(path)
    smaller = layout is not None and (layout.packing is not None or layout.kind == "parquet")
    return os.path.getsize(path) * (_PACKED if smaller else 1)


_PACKED = 4
"""Times that text is smaller where it is packed."""


def numbering(path: str) -> Literal["line", "row"]:
    """What the numbers of the file's rows are: its lines or, where it has none, the rows' places from 1."""
    layout = _layout(path)
    return "row" if layout is not None and layout.by_row else "line"


def unread_columns(path: str) -> tuple[str, ...]:
    """Columns of which the bytes (of images and the like) are left out of the rows."""
    layout = _layout(path)
    if layout is None or layout.kind not in ("parquet", "arrow"):
        return ()
    try:
        return _columnar(layout).unread_columns(path, layout.packing)
    except DamagedError:
        return ()  # what is wrong is said where the rows are read


def _layout(path: Place) -> Layout | None:
    """How the file holds its rows; None where it is empty."""
    try:
        layout = find_layout(path)
    except OSError as error:
        raise StorageError(f"reading failed: {error.strerror or error}", where=str(path)) from error
    if isinstance(layout, Layout):
        return layout
    if layout.reason == "empty file":
        return None
    raise DataError(layout.what, where=str(path), hint=layout.hint)


def require_readable(paths: Sequence[str]) -> None:
    """Raise one DataError with all that is wrong with the files as such."""
    problems = [Problem(problem.what, path, problem.hint) for path in dict.fromkeys(paths) if (problem := probe(path))]
    if problems:
        raise DataError(problems)


def probe(path: str) -> RowProblem | None:
    """What is wrong with the file as a whole, seen from its name and its first bytes (and Parquet's last). Raises
    StorageError where it cannot be looked at now."""
    file = Path(path)
    try:
        if is_folder(file):
            return _directory(file)
        if status(file) is None:
            return RowProblem(0, "no such file", "no such file", missing_hint(path))
        if not is_file(file):
            hint = "data is read more than once: write it to a file first"
            return RowProblem(0, "not a regular file", "is not a regular file", hint)
        layout = find_layout(path)
    except OSError as error:
        problem = unread(error, path)
        return RowProblem(0, "unreadable file", problem.what, problem.hint)
    if isinstance(layout, Layout) and layout.kind in ("parquet", "arrow"):
        return _columnar(layout).file_problem(path, layout.packing)
    return None if isinstance(layout, Layout) else layout


def _directory(folder: Path) -> RowProblem:
    """`expand` gives the files of directories; this one was not asked."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".jsonl", ".json"))
    hint = f"name the files in it: {', '.join(names[:5])}" if names else "give the path of a data file"
    return RowProblem(0, "directory", "is a directory, not a file", hint)
