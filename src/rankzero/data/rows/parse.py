"""Lines of a chunk as conversations. Knows JSON and its traps; nothing of tokenizers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from rankzero.data.rows.chunks import Chunk, lines
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import FORMATS, Noted, Result, Row, convert, read_keys, reason, rename
from rankzero.data.rows.formats.fields import NAMES, as_name
from rankzero.data.rows.formats.json_text import TwiceReadError, read_again
from rankzero.data.rows.formats.unread import unread_around
from rankzero.data.rows.problems import RowProblem
from rankzero.spec.tasks import Trains


@dataclass(slots=True)
class Parsed:
    """What a chunk holds. Every row is counted in one place: in `formats` where it gave conversations, in `dropped`
    where a named rule leaves it out, or by the line of its problems."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    """Lines that are not blank, good or bad."""
    blank: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of each format that was detected: which keys its first row was detected by."""
    dropped: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    """What was done to rows that are kept: images placed, empty system prompts left out …"""
    ignored_keys: Counter[str] = field(default_factory=Counter)
    names_as_text: set[int] = field(default_factory=set)
    """Lines of rows whose name or group is a number or an object, and text from now on."""


def parse(
    chunk: Chunk,
    wanted: str,
    columns: Mapping[str, str] | None = None,
    *,
    trains: Trains | None = None,
    minus_one_is_a_class: bool = False,
) -> Parsed:
    """Every row of the chunk in the `wanted` format ("auto": each row's own, of those that it could be the one that the
    task `trains`); `columns` are the data's names for keys, by ours. `minus_one_is_a_class`: a label like others, and
    not that there is none."""
    parsed = Parsed()
    for index, (number, line) in enumerate(lines(chunk)):
        if chunk.problems and index in chunk.problems:
            parsed.rows += 1
            parsed.problems.append(chunk.problems[index])
            continue
        if not line or line.isspace():
            parsed.blank += 1
            continue
        parsed.rows += 1
        found = read_row(line, number, wanted, columns, trains=trains)
        if isinstance(found, list):
            parsed.problems += found
            continue
        result = found.result
        if minus_one_is_a_class and isinstance(result, Noted):
            result = result.if_minus_one_is_a_class or result
        _count(parsed, found.original, found.row, found.name, result, columns)
        parsed.rules.update([UNREAD_NAN] if found.has_nan else ())
        parsed.rules.update(chunk.rules.get(index, ()))
        if wanted == "auto" and found.name not in parsed.reasons:
            parsed.reasons[found.name] = reason(found.row, found.name)
    return parsed


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row that could be read: as the file has it, under our names for its keys, and what it says."""

    original: Row
    row: Row
    name: str
    """Of its format."""
    result: Conversation | tuple[Conversation, ...] | Noted
    has_nan: bool
    """Where nothing is read."""


def read_row(
    line: bytes,
    number: int,
    wanted: str,
    columns: Mapping[str, str] | None = None,
    otherwise: Callable[[Row], Row | None] | None = None,
    trains: Trains | None = None,
) -> ReadRow | list[RowProblem]:
    """One line, or all that is wrong with it. `otherwise`: another row in the place of one that is in no format, by our
    names; None where there is none. `trains`: as in `parse`."""
    row = read_json(line, number)
    no_number = None
    if isinstance(row, RowProblem):
        no_number, row = row, _without_nan(line)
        if row is None:
            return [no_number]
    original = row
    if columns and isinstance(row, dict):
        row = rename(row, columns)
    name, result = convert(row, number, wanted, trains)
    other = None
    if otherwise is not None and isinstance(result, list) and isinstance(row, dict):
        other = otherwise(row)
        if other is not None:
            name, result = convert(other, number, wanted, trains)
    if no_number is not None and (isinstance(result, list) or _reads_nan(line, FORMATS[name].reads, columns)):
        return [no_number]
    if not isinstance(result, list):
        again = None if other is None else otherwise
        result = _second_look(line, original, number, name, columns, result, again)
    return result if isinstance(result, list) else ReadRow(original, row, name, result, no_number is not None)


def _count(
    parsed: Parsed, original: Row, row: Row, name: str, result: Result, columns: Mapping[str, str] | None
) -> None:
    """Note a row that could be read."""
    if isinstance(result, Conversation):
        parsed.conversations.append(result)
    elif isinstance(result, Noted):
        parsed.rules.update(result.rules)
        if not result.conversations:
            parsed.dropped[result.dropped] += 1
            return
        parsed.conversations += result.conversations
    elif isinstance(result, tuple):
        parsed.conversations += result
    parsed.formats[name] += 1
    if len(original) > 1:
        reads = FORMATS[name].reads
        read = read_keys(original, columns, name) if columns else reads
        parsed.ignored_keys.update(original.keys() - read)
        parsed.ignored_keys.update(unread_around(row, reads))
        _count_names(parsed, row, reads, columns or {})
    unread_in_turn = FORMATS[name].unread_in_turn
    for key in FORMATS[name].turn_lists if unread_in_turn else ():
        turns = _at(row, key)
        turns = [turns] if isinstance(turns, dict) else turns
        # Nearly always a turn is who speaks and what, a text.
        richer = (
            [turn for turn in turns if isinstance(turn, dict) and _is_rich(turn)] if isinstance(turns, list) else ()
        )
        if richer and unread_in_turn:
            unread = frozenset[str]().union(*map(unread_in_turn, richer))
            parsed.ignored_keys.update(f"{key}[].{one}" for one in unread)


def _count_names(parsed: Parsed, row: Row, reads: Collection[str], columns: Mapping[str, str]) -> None:
    """Note names that are no text: true and false name nothing, and others become it."""
    for key in NAMES:
        value = row.get(key)
        if value is None or isinstance(value, str) or key not in reads:
            continue
        if isinstance(value, bool):
            parsed.ignored_keys[columns.get(key, key)] += 1
        elif as_name(value) is not None:
            parsed.names_as_text.add(parsed.conversations[-1].line)


def _at(row: Row, place: str) -> Any:
    """What lies under a key, or, with a dot, under a key of an object."""
    key, _, inner = place.partition(".")
    value = row.get(key)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, dict) else None


def _is_rich(turn: Row) -> bool:
    return len(turn) > 2 or list in map(type, turn.values())


def seen_keys(chunk: Chunk, rows: int = 200) -> set[str]:
    """The keys of the chunk's first rows: the columns that the data has."""
    seen: set[str] = set()
    for number, line in islice(lines(chunk), rows):
        row = read_json(line, number) if line else None
        if isinstance(row, dict):
            seen.update(row)
    return seen


def read_json(line: bytes, number: int) -> Any:
    """The line's value, or what is wrong with its bytes or its JSON. Whole numbers of an object are exact, such as an
    id or a label of more than 64 bits; those inside of other values are looked at where they are read."""
    try:
        value = orjson.loads(line)
        if isinstance(value, dict) and float in map(type, value.values()) and any(map(_may_be_rounded, value.values())):
            return read_again(line)
        return value
    except TwiceReadError as error:
        return RowProblem(number, error.reason, str(error), error.hint)
    except orjson.JSONDecodeError as error:
        return _byte_problem(line, number, error.pos) or RowProblem(
            number,
            "not valid JSON",
            f"not valid JSON: {error.msg} at column {error.colno}",
            _json_hint(line, error),
        )


def _may_be_rounded(value: object) -> bool:
    """Whether it is a float where whole numbers are read as floats."""
    return isinstance(value, float) and abs(value) >= 2.0**63


UNREAD_NAN = "NaN or Infinity where nothing is read"


def _without_nan(line: bytes) -> Any:
    """The object in a line that is JSON but for NaN and Infinity, with null for these; None where it is not."""
    if b"NaN" not in line and b"Infinity" not in line:
        return None
    try:
        row = json.loads(line, parse_constant=lambda _name: None)
        json.dumps(row, ensure_ascii=False).encode()  # half a character is none
    except (ValueError, TypeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _reads_nan(line: bytes, reads: Collection[str], columns: Mapping[str, str] | None) -> bool:
    """Whether NaN or Infinity stands in what is read of a row."""
    found: list[str] = []
    row = json.loads(line)
    for key in {*reads, *(columns or {}).values()} & row.keys():
        json.loads(json.dumps(row[key]), parse_constant=found.append)
    return bool(found)


def _byte_problem(line: bytes, number: int, position: int) -> RowProblem | None:
    """Trouble with the encoding, which the JSON parser reports in misleading words."""
    if (nul := line.find(b"\0")) >= 0:
        hint = "the file was damaged (disk full, cut-off copy) or is not text"
        return RowProblem(number, "NUL byte", f"a raw NUL byte at byte {nul + 1}", hint)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8"
        hint = "if the file is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > utf8.jsonl"
        return RowProblem(number, "not UTF-8", what, hint)
    if text[position : position + 1] != "\ufeff":
        return None
    return RowProblem(
        number,
        "byte-order mark inside the file",
        f"a byte-order mark at column {position + 1}: files with marks were joined",
        "turn the marks into newlines: sed 's/\\xEF\\xBB\\xBF/\\n/g' FILE > rows.jsonl",
    )


def _json_hint(line: bytes, error: orjson.JSONDecodeError) -> str:
    if "end of data" in error.msg:
        return "the row is cut off: was the file written or copied to the end?"
    if line.startswith(b"{'"):
        return "this is Python's notation: write rows with json.dumps"
    if "surrogate" in error.msg:
        return "half of an emoji's \\u escape: the text was cut in the middle of a character"
    if line.decode()[error.pos : error.pos + 3] in ("NaN", "Inf", "-In"):
        return "JSON has no NaN or Infinity: write null"
    if "after document" in error.msg:
        return "one object a line: is a newline missing between two rows?"
    return "a JSONL file has one JSON object a line"


def _second_look(
    line: bytes,
    row: Row,
    number: int,
    name: str,
    columns: Mapping[str, str] | None,
    result: Result,
    otherwise: Callable[[Row], Row | None] | None,
) -> Result:
    """What comes of the row where a key that is there twice, of which parsers keep the last in silence, is a problem,
    and whole numbers beyond 64 bits, which they round, are exact.

    A quote inside a JSON string is escaped, so a quoted name is a key or, rarely, a whole value; counting is cheap.
    Only when there are more than the row's shape explains, where letters are escaped that need not be and so might be
    those of a key, or where objects lie in what is read, is the line parsed again to be sure.
    """
    escaped = b"\\u00" in line and _ESCAPED_LETTER.search(line)
    if not FORMATS[name].nests and not escaped and not _more_keys_than_expected(line, row, name, columns):
        return result
    try:
        exact = read_again(line)
    except TwiceReadError as error:
        return [RowProblem(number, error.reason, str(error), error.hint)]
    if not _LONG_NUMBER.search(line):
        return result
    exact = rename(exact, columns) if columns else exact
    return convert(exact if otherwise is None else otherwise(exact) or exact, number, name)[1]


def _more_keys_than_expected(line: bytes, row: Row, name: str, columns: Mapping[str, str] | None) -> bool:
    reads = FORMATS[name].reads
    turns: list[dict[str, Any]] = []
    others: list[object] = []
    for key, value in row.items():
        if key in reads or columns:
            if line.count(_QUOTED.get(key) or b'"' + key.encode() + b'"') > 1:
                return True
            if key in _TURN_LISTS and isinstance(value, list):
                turns += value
            else:
                others.append(value)
    if line.count(b"{") > 1 + len(turns) and _hold_objects(others, turns):
        return True
    if not turns:
        return False
    if sum(map(len, turns)) == 2 * len(turns):  # who speaks and what, in every turn
        keys = turns[0]
        return any(line.count(_QUOTED[key]) > len(turns) for key in keys if key in _QUOTED)
    return any(line.count(_QUOTED[key]) > sum(key in turn for turn in turns) for key in _TURN_KEYS)


def _hold_objects(values: Iterable[object], turns: Iterable[object]) -> bool:
    """Whether there are objects in these values, or in these turns."""
    inside = (value for turn in turns for value in (turn.values() if isinstance(turn, dict) else (turn,)))
    lists: list[object] = [*values, *inside]
    for value in lists:  # which becomes longer meanwhile
        if isinstance(value, dict):
            return True
        if isinstance(value, list):
            lists += value
    return False


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
"""What may be beyond 64 bits."""

_ESCAPED_LETTER = re.compile(rb"\\u00(?:3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|5[fF])")
"""A letter, digit or underscore, of which the names of keys are made."""

_TURN_LISTS = frozenset[str]().union(*(of.turn_lists for of in FORMATS.values()))
_TURN_KEYS = frozenset[str]().union(*(of.turn_keys for of in FORMATS.values()))
_QUOTED = {key: f'"{key}"'.encode() for key in _TURN_KEYS.union(*(of.reads for of in FORMATS.values()))}
