"""Small pieces of sentences that many messages share. Pure; knows nothing of what they speak of."""

from __future__ import annotations

from collections.abc import Iterable


def first_line(error: BaseException) -> str:
    """What an error says first, or its type where it says nothing: libraries' messages go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def listed(names: Iterable[str], most: int = 6) -> str:
    """`a, b and 3 more`, each name once."""
    every = list(dict.fromkeys(names))
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def counted(count: int, one: str, several: str | None = None) -> str:
    """`1 pod`, `3 pods` or `1,200 rows`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
