"""The texts in a spec, each with its field. Pure."""

from __future__ import annotations

from collections.abc import Iterator


def texts_in(value: object, field: str = "") -> Iterator[tuple[str, str]]:
    """`data.train[0].path` and what stands there, of all texts in a dumped spec or a part of it."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(inner, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from texts_in(inner, f"{field}[{number}]")
