"""What something costs on any machine: calls, of Python's functions and of C's, not seconds.

A second of the clock has other programs' work in it, and a CPU second the caches', the collector's and the neighbours'.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COUNTED = """
import sys
counted = [0]
def count(_frame, event, _argument):
    counted[0] += event in ("call", "c_call")
sys.setprofile(count)
try:
    {}
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
    print("calls:", counted[0], file=sys.stderr)
"""


def calls(work: Callable[[], object]) -> int:
    """How many calls are made in this thread while `work` is under way."""
    made = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made


def calls_of_command(*words: str, cwd: Path) -> int:
    """How many calls `rankzero WORDS` makes, imports and all. Raises CalledProcessError where it fails."""
    main = "from rankzero.__main__ import main; sys.argv[1:] = " + repr(list(words)) + "; main()"
    command = [sys.executable, "-c", _COUNTED.format(main)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    return int(done.stderr.rpartition("calls: ")[2])
