"""Parquet, in batches of rows. Knows columns and their types; nothing of what they mean.

The bytes of images become `data:` URLs; those of sounds and films are not read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow.parquet as pq

from rankzero.data.read.containers.arrow_rows import (
    BATCH_ROWS,
    PICTURED_ROWS,
    UNREAD,
    reading,
    require_distinct,
    rows_of_batch,
    unpacked_file,
)
from rankzero.data.read.containers.layout import PARQUET_MAGIC
from rankzero.data.read.containers.stream import DamagedError, Packing, Place
from rankzero.data.rows.chunks import NumberedLine
from rankzero.data.rows.problems import RowProblem


def file_problem(path: Place, packing: Packing | None) -> RowProblem | None:
    """What is wrong with the file as a whole."""
    try:
        with _open(path, packing) as table:
            _columns(table)
    except DamagedError as damage:
        return RowProblem(0, damage.reason, damage.what, damage.hint)
    return None


def count_rows(path: Place, packing: Packing | None) -> int:
    """Its rows, of which none is read. Raises DamagedError."""
    with _open(path, packing) as table:
        return int(table.metadata.num_rows)


def unread_columns(path: Place, packing: Packing | None) -> tuple[str, ...]:
    """Columns whose bytes are left out of the rows. Raises DamagedError."""
    with _open(path, packing) as table:
        return _columns(table)[1]


def read_rows(path: Place, packing: Packing | None, skip: int = 0) -> Iterator[NumberedLine]:
    """The rows behind the first `skip` as JSON objects, numbered from 1 with all that were. Row groups that lie before
    them are not read."""
    row = 1
    try:
        with _open(path, packing) as table:
            wanted, _unread = _columns(table)
            size = PICTURED_ROWS if _holds_bytes(table, wanted) else BATCH_ROWS
            json_is_text = not _KEEPING_JSON.intersection(table.metadata.metadata or ())
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if row + rows <= skip + 1:
                    row += rows
                    continue
                batches = table.iter_batches(size, row_groups=[group], columns=wanted)
                while (batch := reading(partial(next, batches, None), path, "Parquet")) is not None:
                    past = min(len(batch), max(0, skip + 1 - row))
                    row += past
                    for line, problem in rows_of_batch(batch.slice(past), row, json_is_text):
                        yield row, line, problem
                        row += 1
    except DamagedError as damage:
        yield row, b"", RowProblem(row, damage.reason, damage.what, damage.hint)


_KEEPING_JSON = frozenset({b"huggingface", b"ARROW:schema"})
"""Keys of files whose columns of JSON hold what the rows had. Other writers, as DuckDB, have so what was text to them:
an answer in JSON that is to be learnt, say."""


@contextmanager
def _open(path: Place, packing: Packing | None) -> Iterator[Any]:
    """The file, unpacked first where it is packed as a whole: Parquet is read from its end."""
    with unpacked_file(path, packing) as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - 4))
        if size < 12 or file.read(4) != PARQUET_MAGIC:
            what = "the Parquet file has no end: its last bytes are missing"
            raise DamagedError("cut-off file", what, "was the download or the copy cut off?")
        file.seek(0)
        table = reading(lambda: pq.ParquetFile(file), path, "Parquet")
        try:
            yield table
        finally:
            table.close()


def _columns(table: Any) -> tuple[list[str], tuple[str, ...]]:
    """Paths of the leaves that are read, and names of the columns of which some are not."""
    wanted: list[str] = []
    unread: dict[str, None] = {}
    for index in range(len(table.schema)):
        leaf = table.schema.column(index)
        parts = leaf.path.split(".")
        holds_bytes = len(parts) > 1 and parts[-1] == "bytes" and leaf.physical_type == "BYTE_ARRAY"
        if holds_bytes and parts[0].startswith(UNREAD) and not _is_text(leaf):
            unread[parts[0]] = None
        else:
            wanted.append(leaf.path)
    require_distinct(table.schema_arrow.names)
    return wanted, tuple(unread)


def _holds_bytes(table: Any, wanted: Collection[str]) -> bool:
    """Whether a leaf that is read is of bytes, as pictures are kept, under whatever name."""
    leaves = (table.schema.column(index) for index in range(len(table.schema)))
    return any(leaf.path in wanted and leaf.physical_type in _BYTES and not _is_text(leaf) for leaf in leaves)


_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


def _is_text(leaf: Any) -> bool:
    return str(leaf.logical_type.type) != "NONE" or leaf.converted_type != "NONE"
