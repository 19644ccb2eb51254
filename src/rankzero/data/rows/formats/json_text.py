"""JSON read to the last digit and key, and written: whole numbers beyond 64 bits, which parsers round in silence, are
exact, and a key that is there twice, of which they keep the last, is a fault."""

from __future__ import annotations

import json
from typing import Any

import orjson


class TwiceReadError(Exception):
    """What a second look at JSON finds: `reason` is short and the same for every such row."""

    def __init__(self, reason: str, what: str, hint: str) -> None:
        super().__init__(what)
        self.reason, self.hint = reason, hint


def read_again(text: str | bytes) -> Any:
    """The value of JSON that could be parsed, its whole numbers exact. Raises TwiceReadError where a key is there twice
    in one object."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        what = "the row is nested too deeply to be looked at twice"
        raise TwiceReadError("nested too deeply", what, "is the row one that a program wrote by mistake?") from error


def read_text(text: str) -> Any:
    """The value of JSON in a string. Raises JSONDecodeError, and TwiceReadError."""
    value = orjson.loads(text)
    return read_again(text) if isinstance(value, (dict, list)) else value


def write_text(value: object) -> str:
    """The value as JSON, whole numbers of any size."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        what = f"key `{twice[:40]}` is there twice in one object"
        raise TwiceReadError("duplicate key", what, "which of the two is meant?")
    return value
