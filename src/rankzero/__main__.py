"""The command `rankzero`, and `python -m rankzero`. Imports nothing before `rankzero train` (or `smoke`) minds SIGTERM,
and next to nothing before the first line of a command that takes seconds is on its way.

Importing the command line takes a moment, and so does the interpreter's end: a preempted run must not leave as one that
failed in either, since a cluster would count that.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from rankzero.errors import ExitCode


def main() -> None:
    """Run the command line."""
    minded = []
    if sys.argv[1:2] in (["train"], ["smoke"]):  # a SIGHUP that is ignored, as under nohup, stays so
        minded = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else [])]
    for number in minded:
        signal.signal(number, _leave)
    if os.getpid() == 1 and signal.SIGTERM not in minded:
        # The kernel drops what the first process of a container has no handler for: it would be killed after its grace.
        signal.signal(signal.SIGTERM, _end)
    from rankzero.collector import look_seldom

    look_seldom()
    from rankzero.cli.first_line import leave_out_first_line, say_first_line

    say_first_line()
    from rankzero.cache.import_structure import keep_import_structure

    keep_import_structure()
    from rankzero.stderr import outlive_readers

    outlive_readers()
    from rankzero.cli.main import main as command_line

    try:
        command_line()
    finally:
        leave_out_first_line()
        for number in minded:
            signal.signal(number, signal.SIG_IGN)  # the outcome is decided


def _leave(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"stopped: stopped by {name}\n  hint: give the same command again\n".encode())
    os._exit(ExitCode.STOPPED)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
