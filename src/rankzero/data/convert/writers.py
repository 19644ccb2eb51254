"""Rows into open files: JSON lines, CSV, TSV, Parquet. Knows containers; nothing of what a row means."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rankzero.data.read.containers.delimited import MAX_FIELD_CHARACTERS
from rankzero.data.rows.formats.format import Column, Writer
from rankzero.data.rows.formats.json_text import write_text

Container = Literal["jsonl", "csv", "tsv", "parquet"]
SUFFIXES: dict[str, Container] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}

_BATCH = 2000
_BATCH_BYTES = 32 << 20
"""Of text at a time: rows may have their pictures in them."""


class RowWriter(Protocol):
    """Takes rows until it is closed, or given up, which hands its file back as it is."""

    def write(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...
    def give_up(self) -> None: ...


class JsonLines:
    """One JSON object a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._file.write(write_text(row).encode() + b"\n")

    def close(self) -> None:
        """Nothing is left to write."""

    give_up = close


class Table:
    """CSV or TSV. Every cell is quoted, so that a line break inside a text stays one."""

    def __init__(self, file: IO[bytes], columns: tuple[str, ...], delimiter: str) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
        self._columns = columns
        self._writer.writerow(columns)

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._writer.writerow([row.get(column, "") for column in self._columns])

    def close(self) -> None:
        """Hand the file back."""
        self._text.detach()

    give_up = close


class _Sink(io.RawIOBase):
    """Hands a file what is written until it is cut. pyarrow writes to it even where its writer is thrown away."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of it."""
        return len(data) if self._file is None else self._file.write(data)

    def cut(self) -> None:
        """Nothing more reaches the file."""
        self._file = None


class Parquet:
    """Columns, some thousand rows or megabytes at a time."""

    def __init__(self, file: IO[bytes], columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._schema = pa.schema([(name, _type(column)) for name, column in columns.items()])
        self._sink = _Sink(file)
        self._writer = pq.ParquetWriter(self._sink, self._schema)
        self._rows: list[Any] = []
        self._size = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        cell = _cell(row, self._columns)
        self._rows.append(cell)
        self._size += _size(cell)
        if len(self._rows) == _BATCH or self._size >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._size = [], 0

    def close(self) -> None:
        """Write the last rows and the footer."""
        if self._rows:
            self._flush()
        self._writer.close()

    def give_up(self) -> None:
        """Without a footer, which would make half of the rows a whole file for who reads them from a pipe."""
        self._sink.cut()
        self._writer.close()


def _type(column: Column) -> Any:
    if isinstance(column, str):
        return {"flag": pa.bool_(), "number": pa.float64()}.get(column, pa.string())
    if isinstance(column, Mapping):
        return pa.struct([(name, _type(inner)) for name, inner in column.items()])
    return pa.list_(_type(column[0]))


def _cell(value: Any, column: Column) -> Any:
    """A value with JSON in a string wherever the column has that."""
    if value is None or column in ("text", "flag", "number"):
        return value
    if column == "json":
        return write_text(value)
    if isinstance(column, Mapping):
        return {name: _cell(value.get(name), inner) for name, inner in column.items()}
    return [_cell(one, column[0]) for one in value]


def _size(value: Any) -> int:
    """How much text is in it."""
    if isinstance(value, str):
        return len(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_size, inside))


def unplaced(value: Any, column: Column) -> str:
    """The path of the first key that no column has; "" where each has one."""
    if value is None or isinstance(column, str):
        return ""
    if not isinstance(column, Mapping):
        return next((found for one in value if (found := unplaced(one, column[0]))), "")
    for name, inner in value.items():
        if name not in column:
            return str(name)
        if found := unplaced(inner, column[name]):
            return f"{name}.{found}"
    return ""


def refused(row: Mapping[str, Any], container: Container) -> tuple[str, str] | None:
    """Of a row of texts: the key and what is in its text that a table of this kind would be refused for."""
    for key, text in row.items() if container in ("csv", "tsv") else ():
        if "\0" in text:
            return key, "a NUL byte"
        if container == "tsv" and "\t" in text and "\n" in text:  # as where a quote that nothing closes joins lines
            return key, "a tab and a line break"
        if len(text) > MAX_FIELD_CHARACTERS:
            return key, f"more than {MAX_FIELD_CHARACTERS >> 20} Mi characters"
    return None


@contextmanager
def writing(file: IO[bytes], container: Container, writes: Writer) -> Iterator[RowWriter]:
    """What takes rows into an open file: closed in the end, and given up where the block ends with an error."""
    writer = _writer(file, container, writes)
    with ExitStack() as failed:
        failed.callback(writer.give_up)
        yield writer
        writer.close()
        failed.pop_all()


def _writer(file: IO[bytes], container: Container, writes: Writer) -> RowWriter:
    if container == "jsonl":
        return JsonLines(file)
    if container == "parquet":
        return Parquet(file, writes.columns)
    return Table(file, writes.texts, "," if container == "csv" else "\t")
