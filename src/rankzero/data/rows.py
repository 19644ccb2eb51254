"""Lines of a chunk as conversations. Knows JSON and its traps; nothing of tokenizers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rankzero.data.conversation import Conversation
from rankzero.data.formats import FORMATS, convert
from rankzero.data.problems import RowProblem
from rankzero.data.sources import Chunk, lines


@dataclass(slots=True)
class Parsed:
    """What a chunk holds. `rows` counts every line that is not blank, good or bad."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    blank: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    ignored_keys: Counter[str] = field(default_factory=Counter)


def parse(chunk: Chunk, wanted: str) -> Parsed:
    """Every row of the chunk in the `wanted` format ("auto": each row's own)."""
    parsed = Parsed()
    for number, line in lines(chunk):
        if not line or line.isspace():
            parsed.blank += 1
            continue
        parsed.rows += 1
        row = read_json(line, number)
        if isinstance(row, RowProblem):
            parsed.problems.append(row)
            continue
        name, result = convert(row, number, wanted)
        if isinstance(result, list):
            parsed.problems += result
            continue
        if twice := _duplicate_key(line, row):
            what = f"key `{twice}` is there twice in one object"
            parsed.problems.append(RowProblem(number, "duplicate key", what, "which of the two is meant?"))
            continue
        parsed.conversations.append(result)
        parsed.formats[name] += 1
        if len(row) > len(FORMATS[name].keys):
            parsed.ignored_keys.update(row.keys() - FORMATS[name].keys)
    return parsed


def read_json(line: bytes, number: int) -> Any:
    """The line's value, or what is wrong with its bytes or its JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _byte_problem(line, number, error.pos) or RowProblem(
            number,
            "not valid JSON",
            f"not valid JSON: {error.msg} at column {error.colno}",
            _json_hint(line, error),
        )


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


def _duplicate_key(line: bytes, row: Mapping[str, Any]) -> str | None:
    """A key that is there twice, of which parsers keep the last in silence.

    A quote inside a JSON string is escaped, so these byte patterns only ever match keys, and counting them is cheap.
    Only when there are more than the row's shape explains is the line parsed again to be sure.
    """
    turns = sum(len(row[key]) for key in ("messages", "prompt", "completion") if isinstance(row.get(key), list))
    expected = {b'"messages":': 1, b'"prompt":': 1, b'"completion":': 1, b'"role":': turns, b'"content":': turns}
    if all(line.count(key) <= count for key, count in expected.items()):
        return None
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)

    json.loads(line, object_pairs_hook=note)
    return found[0] if found else None
