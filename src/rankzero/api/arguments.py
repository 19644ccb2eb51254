"""What a function was called with, checked before anything is loaded. The command line checks its own flags."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from rankzero.errors import Problem, UsageError


def texts(given: object, name: str) -> list[str]:
    """All of several texts, also of an iterator. Raises UsageError for a single one, which is a row of letters, and for
    what is no text."""
    if isinstance(given, str):
        raise UsageError("it is one text", where=name, hint=f"give a list, also of one: [{given[:20]!r}]")
    if not isinstance(given, Iterable):
        raise UsageError(f"it is {_kind(given)}", where=name, hint="give a list of texts")
    several = list(given)
    wrong = [(number, one) for number, one in enumerate(several, 1) if not isinstance(one, str)]
    if wrong:
        raise UsageError([Problem(f"it is {_kind(one)}, and no text", f"{name} {number}") for number, one in wrong])
    return several


def require_count(value: object, name: str) -> None:
    """Raise UsageError for what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UsageError(f"it is {value!r}", where=name, hint="it is to be a whole number of at least 1")


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
