"""Reading JSON that may lack anything, or hold something else than it should. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from rankzero.spec.quantity import as_number, exact

_EMPTY: Mapping[str, Any] = {}


def at(value: object, *keys: str) -> Mapping[str, Any]:
    """The map at a path; an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else _EMPTY


def maps(value: object, *keys: str) -> Iterator[Mapping[str, Any]]:
    """The maps in the list at a path."""
    *before, last = keys
    found = at(value, *before).get(last)
    if isinstance(found, list | tuple):
        yield from (item for item in found if isinstance(item, Mapping))


def text(value: object, *keys: str) -> str:
    """The text at a path, or a number as text; empty where there is none."""
    *before, last = keys
    found = at(value, *before).get(last)
    return found if isinstance(found, str) else str(found) if isinstance(found, int | float) else ""


def whole(value: object, *keys: str) -> int | None:
    """The whole number at a path."""
    *before, last = keys
    found = at(value, *before).get(last)
    if isinstance(found, bool):
        return None
    if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 16:
        return int(found)
    return found if isinstance(found, int) else None


def moment(value: object) -> datetime | None:
    """A time of the API: `2026-11-21T07:20:00Z`, with or without fractions."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def seconds_between(earlier: datetime | None, later: datetime | None) -> float | None:
    """How long it was; None where one end is not known, 0 where clocks disagree."""
    if earlier is None or later is None:
        return None
    return max(0.0, (later - earlier).total_seconds())


def amount(quantity: object) -> float | None:
    """The number of a quantity such as 500m or 512Gi."""
    if isinstance(quantity, bool):
        return None
    if isinstance(quantity, int | float):
        return float(quantity)
    if not isinstance(quantity, str):
        return None
    try:
        return as_number(quantity)
    except ValueError:
        return None


def exact_amount(quantity: object) -> Fraction | None:
    """As `amount`, for what is added up and compared: three times 100m is 300m."""
    if isinstance(quantity, bool):
        return None
    try:
        return exact(str(quantity)) if isinstance(quantity, str | int | float) else None
    except ValueError:
        return None


def words(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Labels or quantities: what has a text or a number as its value. Both are ASCII in the API."""
    found = {key: text(mapping, key) for key in mapping if isinstance(key, str)}
    return {key: value for key, value in found.items() if value and value.isascii()}
