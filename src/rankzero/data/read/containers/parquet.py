"""Parquet, in batches of rows. Knows columns and their types; nothing of what they mean.

The bytes of images and the like are not read: of {bytes, path} the path is.
"""

from __future__ import annotations

import datetime
import decimal
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rankzero.data.read.containers.layout import PARQUET_MAGIC
from rankzero.data.read.containers.stream import DamagedError, Packing, blocks
from rankzero.data.rows.chunks import NumberedLine
from rankzero.data.rows.problems import RowProblem
from rankzero.errors import StorageError
from rankzero.wording import first_line

BATCH_ROWS = 1024
"""Rows as Python objects at a time."""

_COPY_BYTES = 1 << 20
Result = TypeVar("Result")


def parquet_problem(path: str, packing: Packing | None) -> RowProblem | None:
    """What is wrong with the file as a whole."""
    try:
        with _open(path, packing) as table:
            _columns(table)
    except DamagedError as damage:
        return RowProblem(0, damage.reason, damage.what, damage.hint)
    return None


def count_parquet(path: str, packing: Packing | None) -> int:
    """Its rows, of which none is read. Raises DamagedError."""
    with _open(path, packing) as table:
        return int(table.metadata.num_rows)


def unread_columns(path: str, packing: Packing | None) -> tuple[str, ...]:
    """Columns whose bytes are left out of the rows. Raises DamagedError."""
    with _open(path, packing) as table:
        return _columns(table)[1]


def read_parquet(path: str, packing: Packing | None) -> Iterator[NumberedLine]:
    """Every row as a JSON object, numbered from 1."""
    row = 1
    try:
        with _open(path, packing) as table:
            wanted, _unread = _columns(table)
            for group in range(table.num_row_groups):
                batches = table.iter_batches(BATCH_ROWS, row_groups=[group], columns=wanted)
                while (batch := _reading(partial(next, batches, None), path)) is not None:
                    for line, problem in _rows(batch, row):
                        yield row, line, problem
                        row += 1
    except DamagedError as damage:
        yield row, b"", RowProblem(row, damage.reason, damage.what, damage.hint)


@contextmanager
def _open(path: str, packing: Packing | None) -> Iterator[Any]:
    """The file, unpacked first where it is packed as a whole: Parquet is read from its end."""
    with _unpacked(path, packing) as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - 4))
        if size < 12 or file.read(4) != PARQUET_MAGIC:
            what = "the Parquet file has no end: its last bytes are missing"
            raise DamagedError("cut-off file", what, "was the download or the copy cut off?")
        file.seek(0)
        table = _reading(lambda: pq.ParquetFile(file), path)
        try:
            yield table
        finally:
            table.close()


@contextmanager
def _unpacked(path: str, packing: Packing | None) -> Iterator[IO[bytes]]:
    if packing is None:
        with open(path, "rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        stream = blocks(path, packing, _COPY_BYTES)
        while block := next(stream, b""):
            try:
                copy.write(block)
            except OSError as error:
                hint = "unpack the file yourself, or set TMPDIR to a directory with room"
                raise StorageError(f"unpacking failed: {error.strerror}", where=path, hint=hint) from error
        yield copy


def _reading(step: Callable[[], Result], path: str) -> Result:
    try:
        return step()
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None):
            raise StorageError(f"reading failed: {error}", where=path) from error
        what = f"the Parquet data is damaged: {first_line(error)}"
        raise DamagedError("damaged file", what, "copy or download the file again") from error


def _columns(table: Any) -> tuple[list[str], tuple[str, ...]]:
    """Paths of the leaves that are read, and names of the columns of which some are not."""
    wanted: list[str] = []
    unread: dict[str, None] = {}
    for index in range(len(table.schema)):
        leaf = table.schema.column(index)
        parts = leaf.path.split(".")
        if len(parts) > 1 and parts[-1] == "bytes" and leaf.physical_type == "BYTE_ARRAY" and not _is_text(leaf):
            unread[parts[0]] = None
        else:
            wanted.append(leaf.path)
    names = Counter(table.schema_arrow.names)
    if twice := [name for name, count in names.items() if count > 1]:
        raise DamagedError("header", f"two columns are named {twice[0]!r}", "which of the two is meant?")
    return wanted, tuple(unread)


def _is_text(leaf: Any) -> bool:
    return str(leaf.logical_type.type) != "NONE" or leaf.converted_type != "NONE"


def _rows(batch: Any, first: int) -> Iterator[tuple[bytes, RowProblem | None]]:
    """The rows of a batch as JSON. Where one value cannot be a Python object, its row alone is a problem."""
    names = batch.schema.names
    columns = [_as_text(column) for column in batch.columns]
    try:
        values = [column.to_pylist() for column in columns]
    except (ValueError, OverflowError, pa.ArrowException):
        if len(batch) > 1:
            for index in range(len(batch)):
                yield from _rows(batch.slice(index, 1), first + index)
            return
        yield b"", _value_problem(first, names, columns)
        return
    for number, row in enumerate(zip(*values, strict=True), first):
        try:
            yield orjson.dumps(dict(zip(names, row, strict=True)), default=_plain), None
        except TypeError as error:
            hint = "write the column as text or numbers, or leave it out of the file"
            yield repr(row).encode(errors="replace"), RowProblem(number, "value without JSON", str(error), hint)


def _as_text(column: Any) -> Any:
    """Times as ISO text, which keeps their nanoseconds, and years that Python has not."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type) or pa.types.is_time(column.type):
        return column.cast(pa.string())
    return column


def _value_problem(number: int, names: list[str], columns: list[Any]) -> RowProblem:
    for name, column in zip(names, columns, strict=True):
        try:
            column.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException) as error:
            what = f"column {name!r} cannot be read: {first_line(error)}"
            return RowProblem(number, "value without JSON", what, "write the column as text")
    return RowProblem(number, "value without JSON", "the row cannot be read")


def _plain(value: object) -> object:
    """What JSON has for a type that it does not have. Bytes that are text are text: older writers do not say so."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"bytes": len(value)}  # not null, which a row without an image has
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")
