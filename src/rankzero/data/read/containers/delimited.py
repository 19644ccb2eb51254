"""CSV and TSV, with a header line or without, as RFC 4180 and spreadsheets write them. Every value is a string.

Knows quoting, ragged rows and encodings; nothing of what the columns mean.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import orjson

from rankzero.data.read.containers.stream import DamagedError
from rankzero.data.rows.chunks import NumberedLine
from rankzero.data.rows.problems import RowProblem

MAX_FIELD_CHARACTERS = 64 << 20
"""A longer field is a quote that is not closed."""

Header = bool | Literal["auto"]
"""Whether the first line names the columns; auto: it does, unless it looks like a row, which is then a question."""

_LOOKED_AT = 100
"""Rows that tell a line of names from a row."""
_LONGEST_NAME, _MOST_WORDS = 60, 6
_COMMON_NAMES = frozenset(
    {"text", "label", "prompt", "completion", "question", "answer", "instruction", "input", "output", "response"}
    | {"query", "sentence", "id", "index", "content", "role", "system", "title", "context", "category", "source"}
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?%?")

_SEPARATORS = {"\t": "a tab", ";": "`;`", "|": "`|`", ",": "a comma"}
_SPACED_QUOTE, _SPACED_VALUE = re.compile(r' +"'), re.compile(r' +"[^"]*" *')
_QUOTE_HINT = 'a field that holds quotes, separators or newlines is written in quotes, and a quote in it as ""'


def read_delimited(blocks: Iterator[bytes], separator: str, header: Header = "auto") -> Iterator[NumberedLine]:
    """Every row as a JSON object, with the number of the line where it begins; blank lines as such. Without a header
    line the columns are column_1, column_2 and so on."""
    table = _Table(blocks, separator)
    damage: list[DamagedError] = []
    records = _until(damage, table.records())
    names: list[str] | None = None
    for record in records:
        if not record.fields or record.is_blank:
            yield record.number, b"", None
        elif names is not None:
            yield _row(record, names, separator)
        else:
            following = list(islice(records, _LOOKED_AT)) if header == "auto" else []
            names, problem = _names(record, following, separator, header)
            if problem:
                yield record.number, record.raw, problem
                return
            if header is False:
                yield _row(record, names, separator)
            for early in following:
                blank = not early.fields or early.is_blank
                yield (early.number, b"", None) if blank else _row(early, names, separator)
    for fault in damage:
        yield table.begins, b"", RowProblem(table.begins, fault.reason, fault.what, fault.hint)


def _until(damage: list[DamagedError], records: Iterator[_Record]) -> Iterator[_Record]:
    """The records up to where the file is damaged, which is noted."""
    try:
        yield from records
    except DamagedError as error:
        damage.append(error)


def _names(
    first: _Record, following: Sequence[_Record], separator: str, header: Header
) -> tuple[list[str], RowProblem | None]:
    """What the columns are called, and what is wrong with that."""
    if header is False:
        return [f"column_{number}" for number in range(1, len(first.fields) + 1)], None
    problem = header_problem(first.fields, separator, first)
    names = [name.strip(" ") for name in first.fields]
    if problem is None and header == "auto" and (value := _value_among_names(names, following)):
        what = f"the first line looks like a row, not like names of columns: {value[:_LONGEST_NAME]!r}"
        hint = (
            "say which it is: header: false or --no-header (columns are then column_1, column_2, …), or header: true "
            "or --header"
        )
        problem = RowProblem(first.number, "row in place of names", what, hint)
    return names, problem


def _value_among_names(names: Sequence[str], following: Sequence[_Record]) -> str | None:
    """What in the first line is no name of a column: a number, a sentence, or what the same column holds further on."""
    if any(name.strip().lower() in _COMMON_NAMES for name in names) or names == list(map(str, range(len(names)))):
        return None
    for column, name in enumerate(names):
        words = len(name.split())
        sentence = words > _MOST_WORDS or (words > 1 and name.rstrip().endswith((".", "!", "?", "…")))
        if sentence or len(name) > _LONGEST_NAME or _NUMBER.fullmatch(name.strip()):
            return name
        if any(column < len(record.fields) and record.fields[column].strip(" ") == name for record in following):
            return name
    return None


@dataclass(slots=True)
class _Record:
    number: int
    fields: list[str]
    text: list[str]
    """Its physical lines."""
    fault: str = ""

    @property
    def raw(self) -> bytes:
        return "".join(self.text).encode(errors="surrogateescape").rstrip(b"\r\n")

    @property
    def is_blank(self) -> bool:
        return not self.fault and len(self.text) == 1 and not self.text[0].strip(" \r\n")  # tabs are separators


@dataclass(slots=True)
class _Table:
    blocks: Iterator[bytes]
    separator: str
    begins: int = 1
    """The line where the record that is being read begins."""
    _text: list[str] = field(default_factory=list)

    def records(self) -> Iterator[_Record]:
        """Every record of the file, those with faults too."""
        csv.field_size_limit(MAX_FIELD_CHARACTERS)  # the standard library's own is 128 KiB, for all of the process
        reader = csv.reader(self._lines(), delimiter=self.separator, strict=True)
        while True:
            fault = ""
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fields, fault = [""], str(error)
            yield _Record(self.begins, fields, self._text, fault)
            self.begins += len(self._text)
            self._text = []

    def _lines(self) -> Iterator[str]:
        # newline="": only \n, \r\n and \r end lines, and stay as they are; U+2028 does not. A byte that is not UTF-8
        # becomes half a surrogate pair, which _row finds, and so spoils its own row alone.
        buffered = io.BufferedReader(_Raw(self.blocks), 1 << 16)
        for line in io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline=""):
            self._text.append(line)
            yield line


class _Raw(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def header_problem(names: list[str], separator: str, record: _Record) -> RowProblem | None:
    """What is wrong with the names of the columns."""
    if fault := _fault(record, len(names), separator):
        return fault
    names = [name.strip(" ") for name in names]
    what, hint = "", "the first line names the columns: text,label"
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    other = next((known for known in _SEPARATORS if known != separator and known in names[0]), None)
    if names[0].startswith(('{"', "[{")):
        what, hint = "the first line is JSON, not the names of columns", "give the file a name that ends in .jsonl"
    elif len(names) == 1 and other is not None:
        what = f"there is one column, {names[0]!r}: are the columns separated by {_SEPARATORS[other]}?"
        hint = "give the file a name that ends in .tsv" if other == "\t" else "write it with commas, in a .csv file"
    elif "" in names:
        what = f"column {names.index('') + 1} of {len(names)} has no name"
        if not names[0]:
            hint = "pandas writes its index so: to_csv(…, index=False)"
    elif twice:
        what, hint = f"two columns are named {twice[0]!r}", "which of the two is meant?"
    return RowProblem(record.number, "header", what, hint) if what else None


def _row(record: _Record, names: list[str], separator: str) -> NumberedLine:
    if record.fault and separator == "\t" and (literal := _without_quotes(record, len(names))):
        record = literal
    if fault := _fault(record, len(names), separator):
        return record.number, record.raw, fault
    return record.number, orjson.dumps(dict(zip(names, record.fields, strict=True))), None


def _without_quotes(record: _Record, columns: int) -> _Record | None:
    """Most TSV has no quoting: a quote that cannot be one is a character like any other."""
    fields = record.text[0].rstrip("\r\n").split("\t") if len(record.text) == 1 else []
    return _Record(record.number, fields, record.text) if len(fields) == columns else None


def _fault(record: _Record, columns: int, separator: str) -> RowProblem | None:
    number = record.number
    if record.fault:
        return _quote_fault(record)
    if any("\0" in line for line in record.text):
        hint = "the file was damaged (disk full, cut-off copy) or is not text"
        return RowProblem(number, "NUL byte", "a raw NUL byte", hint)
    if not all(line.isascii() or _is_utf8(line) for line in record.text):
        return _encoding_fault(record)
    if spaced := _spaced_quote(record, separator):
        what = f"a space stands before a quote, so that it quotes nothing: {spaced[:_LONGEST_NAME]!r}"
        return RowProblem(
            number, "space before a quote", what, "a quote stands right behind the separator: remove the space"
        )
    if len(record.fields) != columns:
        what = f"{len(record.fields)} value{'s' * (len(record.fields) != 1)} for {columns} columns"
        return RowProblem(number, "ragged row", what, _QUOTE_HINT)
    # In TSV a stray quote at the start of one field and at the end of a later one would join rows in silence.
    if separator == "\t" and len(record.text) > 1 and any("\t" in text and "\n" in text for text in record.fields):
        what = f"one value in quotes spans {len(record.text)} lines and columns"
        return RowProblem(number, "quotes over several rows", what, _QUOTE_HINT)
    return None


def _spaced_quote(record: _Record, separator: str) -> str | None:
    """The first value whose quotes would be none of it but for the space before them."""
    if not any(' "' in line for line in record.text):
        return None
    values = [value for value in record.fields if _SPACED_QUOTE.match(value)]
    if not values:
        return None
    try:
        (other,) = csv.reader(["".join(record.text)], delimiter=separator, strict=True, skipinitialspace=True)
    except csv.Error as error:
        if "unexpected end" in str(error):
            return values[0]
        # What goes on behind a second quote was never quoted, unless that is a space, too.
        raw = "".join(record.text)
        return next((value for value in values if value in raw and _SPACED_VALUE.fullmatch(value)), None)
    return next((value for value in values if value not in other), None)  # within quotes, it is what it is


def _quote_fault(record: _Record) -> RowProblem:
    if "unexpected end" in record.fault:
        what = "a quote is opened that nothing closes up to the end of the file; nothing after it was read"
        return RowProblem(record.number, "row without an end", what, _QUOTE_HINT)
    if "field limit" in record.fault:
        what = f"a quote is opened that nothing closes within {MAX_FIELD_CHARACTERS >> 20} Mi characters"
        return RowProblem(record.number, "row without an end", what, _QUOTE_HINT)
    return RowProblem(record.number, "quoting", f"quotes are out of place: {record.fault}", _QUOTE_HINT)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoding_fault(record: _Record) -> RowProblem:
    raw = record.raw
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8"
    else:  # pragma: no cover - the caller has found one
        what = "not UTF-8"
    hint = "if the file is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > utf8.csv"
    return RowProblem(record.number, "not UTF-8", what, hint)
