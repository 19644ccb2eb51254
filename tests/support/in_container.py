"""What tests do to the processes of a run in a container, from inside it: programs for its Python."""

from __future__ import annotations

_FIND = """
import os, pathlib, signal, time
def workers():
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\\0")
            except OSError:
                continue
            if b"rankzero.engine.worker" in words:
                found.append(int(entry.name))
    return found
"""

SUSPEND = f"""{_FIND}
(one,) = workers()
os.kill(one, signal.SIGSTOP)
"""
"""SIGSTOP to the container's only worker."""

SLOW_DOWN = f"""{_FIND}
(one,) = workers()
try:
    while True:
        os.kill(one, signal.SIGSTOP)
        time.sleep(0.15)
        os.kill(one, signal.SIGCONT)
        time.sleep(0.05)
except ProcessLookupError:
    pass
"""
"""A quarter of a core for the container's only worker, until it has ended."""
