"""Texts of files to put into classes, labelled or not. Knows rows; nothing of tokens or models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.data.read.containers.delimited import Header
from rankzero.data.read.sources import read_chunks, require_readable
from rankzero.data.rows.chunks import Chunk, lines
from rankzero.data.rows.formats import rename
from rankzero.data.rows.formats.fields import read_text
from rankzero.data.rows.parse import read_json
from rankzero.data.rows.problems import ProblemLog, RowProblem, kind

KEYS = ("text", "sentence")
"""What the text of a row is called, as in the rows that classifiers are trained on."""


@dataclass(frozen=True, slots=True)
class Text:
    """One row's text, and the row's number in its file."""

    text: str
    row: int


def read_texts(path: str, columns: Mapping[str, str] | None = None, header: Header = "auto") -> list[Text]:
    """The texts of a file's rows in order. `columns` are the file's names by ours: {text: review}; `header`: whether
    the first line of a table has names.

    Raises DataError with every row that has none, or StorageError.
    """
    require_readable([path])
    problems, texts = ProblemLog(), []
    for chunk in read_chunks(path, header=header):
        for found in _texts(chunk, columns or {}):
            if isinstance(found, RowProblem):
                problems.add(path, [found])
            else:
                texts.append(found)
    if problems.total:
        raise problems.error()
    return texts


def _texts(chunk: Chunk, columns: Mapping[str, str]) -> Iterator[Text | RowProblem]:
    for index, (number, line) in enumerate(lines(chunk)):
        if index in chunk.problems:
            yield chunk.problems[index]
        elif line and not line.isspace():
            yield _text(read_json(line, number), number, columns)


def _text(row: Any, number: int, columns: Mapping[str, str]) -> Text | RowProblem:
    if isinstance(row, RowProblem):
        return row
    if not isinstance(row, dict):
        return RowProblem(number, "not an object", f"the row is {kind(row)}, not an object", 'expected: {"text": "…"}')
    row = rename(row, columns)
    key = next((key for key in KEYS if key in row), None)
    if key is None:
        hint = "name the column: --columns text=…" if row else 'expected: {"text": "…"}'
        return RowProblem(number, "no text", f"the row has no `text`, it has {', '.join(row) or 'nothing'}", hint)
    text = read_text(row, key, number)
    return text if isinstance(text, RowProblem) else Text(text, number)
