"""What is doubtful and keeps nothing from running, told as Python tells it. Light."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

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


def _of_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("rankzero", "contextlib")
