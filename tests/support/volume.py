"""Commands that a pod would run beside a volume, run here."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from unittest.mock import patch

from rankzero.errors import ServiceError


def run_python(command: Sequence[str]) -> str:
    """What `python -P -c PROGRAM …` prints, without a process of its own. Raises ServiceError where it fails."""
    python, alone, option, program, *arguments = command
    assert (python, alone, option) == ("python", "-P", "-c")
    out = io.StringIO()
    try:
        with redirect_stdout(out), patch.object(sys, "argv", ["-c", *arguments]):
            exec(program, {"__name__": "__main__"})
    except Exception as error:
        raise ServiceError(f"{type(error).__name__}: {error}") from error
    return out.getvalue()
