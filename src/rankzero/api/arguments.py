"""What a function was called with, checked before anything is loaded. The command line checks its own flags."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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


def require_count(value: object, name: str, *, least: int = 1) -> None:
    """Raise UsageError for what is no whole number, or a smaller one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"it is {value!r}", where=name, hint=f"it is to be a whole number of at least {least}")


def process_count(nproc_per_node: int | None) -> int:
    """Of a run on this machine; None: one for each GPU, or one. Raises UsageError for what is no number of them."""
    from rankzero.machine import local_gpu_count

    if nproc_per_node is None:
        return max(1, local_gpu_count(os.environ))
    require_count(nproc_per_node, "nproc_per_node")
    return nproc_per_node


def require_kind(value: object, kinds: tuple[type, ...], name: str, hint: str) -> None:
    """Raise UsageError for a value of another type."""
    if not isinstance(value, kinds):
        raise UsageError(f"it is {_kind(value)}", where=name, hint=hint)


def require_one_of(value: object, known: Sequence[str], name: str) -> None:
    """Raise UsageError for a word that is no choice."""
    if value not in known:
        raise UsageError(f"there is no {value!r}", where=name, hint=f"one of {', '.join(known)}")


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
