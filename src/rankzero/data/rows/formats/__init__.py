"""The row shapes that are read: a dict of adapters, and which one a row is meant for. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from rankzero.data.rows.formats import (
    alpaca,
    classification,
    columns,
    detection,
    messages,
    oasst,
    openorca,
    preference,
    prompt_completion,
    query_response,
    sharegpt,
    text,
)
from rankzero.data.rows.formats.format import Noted, Result, Row
from rankzero.data.rows.problems import RowProblem, kind
from rankzero.errors import Problem

__all__ = ["FORMATS", "Format", "Noted", "Result", "Row", "check_columns", "convert", "detect", "reason"]

# The model would have to see these, so leaving them out in silence would train something else.
_SEEN = frozenset(
    {"tools", "functions", "documents", "system", "image", "images", "video", "videos", "audio", "audios"}
)


@dataclass(frozen=True, slots=True)
class Format:
    """One row shape: the keys that make it (any of these sets), how it looks, the keys that it reads and those that
    it must not leave out in silence, and how its values are read."""

    needs: tuple[frozenset[str], ...]
    reads: frozenset[str]
    shape: str
    to_conversation: Callable[[Row, int], Result]
    unread: frozenset[str] = field(default=_SEEN)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unread", self.unread - self.reads)


_ASKING = _SEEN | {"context", "passage", "choices", "options", "history"}

FORMATS: dict[str, Format] = {
    "messages": Format((messages.KEYS,), messages.READS, messages.SHAPE, messages.to_conversation),
    "prompt_completion": Format(
        (prompt_completion.KEYS,), prompt_completion.READS, prompt_completion.SHAPE, prompt_completion.to_conversation
    ),
    "text": Format((text.KEYS,), text.READS, text.SHAPE, text.to_conversation),
    "alpaca": Format((alpaca.KEYS,), alpaca.READS, alpaca.SHAPE, alpaca.to_conversation, _ASKING),
    "sharegpt": Format(sharegpt.KEYS, sharegpt.READS, sharegpt.SHAPE, sharegpt.to_conversation),
    # Which of its many names a row has, the adapter finds out itself.
    "query_response": Format(
        (frozenset(),), query_response.READS, query_response.SHAPE, query_response.to_conversation, _ASKING
    ),
    "openorca": Format((openorca.KEYS,), openorca.READS, openorca.SHAPE, openorca.to_conversation, _ASKING),
    "oasst": Format(
        (frozenset({"prompt"}), frozenset({"message_id", "text"})), oasst.READS, oasst.SHAPE, oasst.to_conversation
    ),
    "preference": Format((preference.KEYS,), preference.READS, preference.SHAPE, preference.to_conversation),
    "classification": Format(
        (frozenset({"text"}), frozenset({"sentence"})),
        classification.READS,
        classification.SHAPE,
        classification.to_conversation,
    ),
}

_SHAPES = "; ".join(format_.shape for format_ in FORMATS.values())
_ALL_READS = frozenset[str]().union(*(format_.reads for format_ in FORMATS.values()))


def convert(row: object, line: int, wanted: str = "auto") -> tuple[str, Result]:
    """The name of the row's format and the row as a conversation, or all that is wrong with it."""
    if not isinstance(row, dict):
        what = f"the line is {kind(row)}, not an object"
        return wanted, [RowProblem(line, "not an object", what, f"accepted: {_SHAPES}")]
    name = detect(row, line) if wanted == "auto" else _asserted(row, line, wanted)
    if isinstance(name, RowProblem):
        return wanted, [name]
    format_ = FORMATS[name]
    result = format_.to_conversation(row, line)
    if len(row) > 1 and not row.keys().isdisjoint(format_.unread):
        unread = [key for key in row if key in format_.unread and row[key]]
        if unread:
            result = [*(result if isinstance(result, list) else ()), _unread(unread, line)]
    return name, result


def detect(row: Row, line: int) -> str | RowProblem:
    """The format that the row's keys call for. A key whose value is null counts as absent."""
    return detection.detect(row, line, _SHAPES)


def reason(row: Row, name: str) -> str:
    """Why the row is read as `name`: `alpaca: keys instruction, input, output`."""
    return detection.reason(row, name, FORMATS[name].reads)


def check_columns(name: str, names: Mapping[str, str], seen: Collection[str] | None = None) -> tuple[Problem, ...]:
    """Everything that is wrong with a column map of format `name` ("auto": of any); `seen` are the data's columns."""
    known = _ALL_READS if name == "auto" else FORMATS[name].reads
    return columns.check_columns(name, names, known, seen)


def _unread(keys: list[str], line: int) -> RowProblem:
    what = f"the row has {detection.listed(keys)}, which is not read yet"
    return RowProblem(line, f"`{keys[0]}` is not read", what, "remove the key to train without it")


def _asserted(row: Row, line: int, wanted: str) -> str | RowProblem:
    format_ = FORMATS[wanted]
    if any(all(row.get(key) is not None for key in need) for need in format_.needs):
        return wanted
    what = f"the row is not in format {wanted}: its keys are {detection.listed(row)}"
    return RowProblem(line, "not in the stated format", what, f"expected: {format_.shape}")
