"""What a command that takes seconds says while it is imported. Imports next to nothing itself.

An error that comes at once stands alone: the line waits for PATIENCE_SECONDS, and is left out where something else has
been said by then.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

PATIENCE_SECONDS = 1.0
"""Who waits for longer wonders whether anything happens."""
_waiting: threading.Timer | None = None
_BEGINS_WITH = {
    "train": "look at the spec and at what it names",
    "quickstart": "find the model and the rows",
    "generate": "look at the result, then load its model",
    "predict": "look at the result, then load its model",
    "merge": "look at the result, then load its model",
    "export": "look at the result, then load its model",
    "chat": "look at the result, then load its model",
    "serve": "look at the result, and for what serves it",
    "plan": "look at the run and at the cluster",
    "smoke": "import torch",
}
"""Commands that import a training stack, or ask a cluster, and what they do first."""
_SILENT = frozenset({"--json", "--help", "-h"})


def first_line(arguments: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The line for a command line without its program; None where the command is quick, its output is for a program, or
    another process of the run says it."""
    begins = _BEGINS_WITH.get(arguments[0]) if arguments else None
    if arguments == ["train"]:
        return None  # there is nothing to train, which is said at once
    if begins is None or _SILENT & set(arguments) or env.get("RANK", "0") != "0":
        return None
    return f"rankzero {arguments[0]}: {begins}"


def say_first_line() -> None:
    """Have it written to stderr, unless `leave_out_first_line` is called soon."""
    global _waiting
    line = first_line(sys.argv[1:], os.environ)
    if line is not None:
        _waiting = threading.Timer(PATIENCE_SECONDS, _write, [line])
        _waiting.daemon = True
        _waiting.start()


def leave_out_first_line() -> None:
    """Something else is said now, or nothing more is."""
    if _waiting is not None:
        _waiting.cancel()


def say_step(text: str) -> None:
    """A line in the form of a run's log, to stderr, for as long as nothing that logs is imported."""
    leave_out_first_line()
    _write(text)


def _write(text: str) -> None:
    with suppress(OSError):  # the terminal is gone
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} [STEP] {text}\n")
        sys.stderr.flush()
