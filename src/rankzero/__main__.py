"""The command `rankzero`, and `python -m rankzero`. Imports nothing before `rankzero train` minds SIGTERM.

Importing the command line takes a moment, and so does the interpreter's end: a preempted run must not leave as one that
failed in either, since a cluster would count that.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rankzero.errors import ExitCode


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["train"]:
        signal.signal(signal.SIGTERM, _leave)
    from rankzero.cli.main import main as command_line

    try:
        command_line()
    finally:
        if signal.getsignal(signal.SIGTERM) is _leave:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the outcome is decided


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"stopped: stopped by SIGTERM\n  hint: give the same command again\n")
    os._exit(ExitCode.STOPPED)


if __name__ == "__main__":
    main()
