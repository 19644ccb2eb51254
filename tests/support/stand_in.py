"""Stands in for a worker in tests of what starts it. `python -m tests.support.stand_in`; STAND_IN is its folder.

Leaves a file for each thing that happens to it (`up`, `asked-1`, …) and does what files tell it: with `deaf` it sets no
signal handler, with `go` (or `go-RANK`) it ends with the exit code that is in it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

folder, rank = Path(os.environ["STAND_IN"]), os.environ["RANK"]
asked = 0


def on_signal(_number: int, _frame: FrameType | None) -> None:
    """As the engine: the first one is noted, the second ends the process."""
    global asked
    asked += 1
    for name in (f"asked-{asked}", f"asked-{asked}-{rank}"):
        (folder / name).touch()
    if asked > 1:
        os._exit(128 + signal.SIGTERM)


def main() -> None:
    """Wait to be told."""
    if not (folder / "deaf").exists():
        signal.signal(signal.SIGTERM, on_signal)
    faulthandler.register(signal.SIGUSR1, file=open(os.environ["RANKZERO_STACK_FILE"], "w"))  # noqa: SIM115
    for name in ("up", f"up-{rank}"):
        (folder / name).touch()
    # No Python function is called meanwhile, not even a comprehension: a stack that is taken of it ends in this one.
    told = (f"{folder}/go", f"{folder}/go-{rank}")
    while True:
        for path in told:
            if os.access(path, os.R_OK):
                sys.exit(int(Path(path).read_text() or 0))
        time.sleep(0.01)


if __name__ == "__main__":
    main()
