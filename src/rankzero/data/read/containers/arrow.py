"""Arrow files, streamed or with a footer, in batches of rows: what `save_to_disk` of the library datasets leaves.

Knows columns and their types; nothing of what they mean. The bytes of images become `data:` URLs; those of sounds and
films are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rankzero.data.read.containers.arrow_rows import (
    BATCH_ROWS,
    PICTURED_ROWS,
    UNREAD,
    reading,
    require_distinct,
    rows_of_batch,
    unpacked_file,
)
from rankzero.data.read.containers.layout import ARROW_MAGIC
from rankzero.data.read.containers.stream import DamagedError, Packing, Place
from rankzero.data.rows.chunks import NumberedLine
from rankzero.data.rows.problems import RowProblem

_KIND = "Arrow"

_BLOCK_BYTES = 1 << 20


def file_problem(path: Place, packing: Packing | None) -> RowProblem | None:
    """What is wrong with the file as a whole, as far as its schema says."""
    try:
        with _open(path, packing) as (schema, _):
            require_distinct(schema.names)
    except DamagedError as damage:
        return RowProblem(0, damage.reason, damage.what, damage.hint)
    return None


def count_rows(path: Place, packing: Packing | None) -> int:
    """Its rows. Raises DamagedError."""
    with _open(path, packing) as (_, batches):
        return sum(len(batch) for batch in batches)


def unread_columns(path: Place, packing: Packing | None) -> tuple[str, ...]:
    """Columns whose bytes are left out of the rows. Raises DamagedError."""
    with _open(path, packing) as (schema, _):
        return tuple(column.name for column in schema if column.name.startswith(UNREAD) and _has_bytes(column.type))


def read_rows(path: Place, packing: Packing | None, skip: int = 0) -> Iterator[NumberedLine]:
    """The rows behind the first `skip` as JSON objects, numbered from 1 with all that were."""
    row = 1
    try:
        with _open(path, packing) as (schema, batches):
            require_distinct(schema.names)
            for batch in batches:
                columns = [
                    _without_bytes(column) if name.startswith(UNREAD) else _stored(column)
                    for name, column in zip(schema.names, batch.columns, strict=True)
                ]
                plain = pa.RecordBatch.from_arrays(columns, names=schema.names)
                size = PICTURED_ROWS if any(_holds_bytes(column.type) for column in columns) else BATCH_ROWS
                past = min(len(plain), max(0, skip + 1 - row))
                row += past
                for start in range(past, len(plain), size):
                    for line, problem in rows_of_batch(plain.slice(start, size), row):
                        yield row, line, problem
                        row += 1
    except DamagedError as damage:
        yield row, b"", RowProblem(row, damage.reason, damage.what, damage.hint)


@contextmanager
def _open(path: Place, packing: Packing | None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Schema and batches. What is not packed is mapped, so that counting touches no values."""
    with unpacked_file(path, packing) as file:
        file.seek(0)
        has_footer = file.read(len(ARROW_MAGIC[0])) == ARROW_MAGIC[0]
        file.seek(0)
        source = pa.memory_map(path) if packing is None and isinstance(path, str) else file
        open_ = pa.ipc.open_file if has_footer else pa.ipc.open_stream
        reader = reading(lambda: open_(source), path, _KIND)
        yield reader.schema, (_in_footer(reader, path) if has_footer else _streamed(reader, source, path))


def _in_footer(reader: Any, path: Place) -> Iterator[Any]:
    for index in range(reader.num_record_batches):
        yield reading(lambda index=index: reader.get_batch(index), path, _KIND)  # type: ignore[misc]


def _streamed(reader: Any, source: Any, path: Place) -> Iterator[Any]:
    def following() -> Any:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None

    while (batch := reading(following, path, _KIND)) is not None:
        yield batch
    reading(lambda: _require_end(source), path, _KIND)


def _require_end(source: Any) -> None:
    """Raise DamagedError where more than zeros, as files of a fixed size have, follows the end of the stream."""
    at = source.tell()
    while block := source.read(_BLOCK_BYTES):
        if block.strip(b"\0"):
            what = f"more data follows the end of the Arrow stream, at byte {at} of it, and is not read"
            hint = "are these several streams in one file? write each to a file of its own"
            raise DamagedError("data behind the end", what, hint)


def _has_bytes(kind: Any) -> bool:
    """Whether somewhere in it is what `datasets` keeps images and sounds in."""
    if pa.types.is_struct(kind):
        return any(_is_bytes(field) or _has_bytes(field.type) for field in kind)
    return bool(_is_list(kind) and _has_bytes(kind.value_type))


def _holds_bytes(kind: Any) -> bool:
    """Whether somewhere in it are bytes, as pictures are kept, under whatever name."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if any(is_bytes(kind) for is_bytes in _BYTES):
        return True
    return any(_holds_bytes(kind.field(index).type) for index in range(kind.num_fields))


_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


def _is_bytes(field: Any) -> bool:
    return bool(field.name == "bytes" and (pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_KNOWN = ("arrow.json", "arrow.uuid", "arrow.bool8")
"""Types of their own whose values are others than what is stored of them; of Parquet they are read as these, too."""


def _stored(column: Any) -> Any:
    extended = isinstance(column, pa.ExtensionArray) and column.type.extension_name not in _KNOWN
    return column.storage if extended else column


def _without_bytes(column: Any) -> Any:
    """The column with `bytes` left out of its objects."""
    column = _stored(column)
    if not _has_bytes(column.type):
        return column
    if _is_list(column.type):
        return type(column).from_arrays(column.offsets, _without_bytes(column.values), mask=column.is_null())
    kept = [index for index, field in enumerate(column.type) if not _is_bytes(field)]
    inner = [_without_bytes(column.field(index)) for index in kept]
    return pa.StructArray.from_arrays(inner, [column.type[index].name for index in kept], mask=column.is_null())
