"""Rows into open files: JSON lines, CSV, TSV, Parquet. Knows containers; nothing of what a row means."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import IO, Any, Literal, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

Container = Literal["jsonl", "csv", "tsv", "parquet"]
SUFFIXES: dict[str, Container] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}

_BATCH = 2000

_TURN = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("loss", pa.bool_()),
        ("tool_calls", pa.string()),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
    ]
)
_BESIDE = [("images", pa.list_(pa.string())), ("tools", pa.string()), ("id", pa.string())]
_BESIDE += [("conversation_id", pa.string())]
# Columns of Parquet files whose rows are no table of texts. Tools and calls have no fixed shape: JSON in a string.
NESTED = {
    "messages": pa.schema([("messages", pa.list_(_TURN)), *_BESIDE]),
    "sharegpt": pa.schema(
        [("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))), *_BESIDE]
    ),
}


class RowWriter(Protocol):
    """Takes rows until it is closed."""

    def write(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._file.write(orjson.dumps(row) + b"\n")

    def close(self) -> None:
        """Nothing is left to write."""


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


class Parquet:
    """Columns, some thousand rows at a time."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._rows.append(
            {name: _cell(row.get(name)) if name == "tools" else row.get(name) for name in self._schema.names}
        )
        if turns := self._rows[-1].get("messages"):
            self._rows[-1]["messages"] = [{**turn, "tool_calls": _cell(turn.get("tool_calls"))} for turn in turns]
        if len(self._rows) == _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        """Write the last rows and the footer."""
        if self._rows:
            self._flush()
        self._writer.close()


def _cell(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def opener(container: Container, target: str, columns: tuple[str, ...]) -> Callable[[IO[bytes]], RowWriter]:
    """What makes a writer of an open file. `columns` are those of a table, where the target is one."""
    if container == "jsonl":
        return JsonLines
    if container == "parquet":
        texts = pa.schema([(column, pa.string()) for column in columns])
        return lambda file: Parquet(file, NESTED.get(target, texts))
    return lambda file: Table(file, columns, "," if container == "csv" else "\t")
