"""What is doubtful and keeps nothing from running, told as Python tells it. Light."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rankzero.errors import RankzeroError
from rankzero.redaction import Redactor

if TYPE_CHECKING:
    from rankzero.errors import Problem


def warn(text: str) -> None:
    """As a Python warning, of the line outside of this package that asked."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _of_ours(frame.f_globals.get("__name__")):  # executed text has no name
        level, frame = level + 1, frame.f_back
    warnings.warn(Redactor(os.environ)(text), stacklevel=level)


def warn_of(problem: Problem) -> None:
    """What a command prints as a warning."""
    warn(str(problem))


@contextmanager
def doubts_told() -> Iterator[Callable[[Problem], None]]:
    """Is told what is doubtful, and warns of it at the end: of an error that is raised within, nothing is lost to those
    who have warnings as errors."""
    doubts: list[Problem] = []
    try:
        yield doubts.append
    except RankzeroError:
        for doubt in doubts:
            with suppress(UserWarning):  # as an error, which would stand for the one that is to be mended
                warn_of(doubt)
        raise
    for doubt in doubts:
        warn_of(doubt)


def _of_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("rankzero", "contextlib")
