"""PID 1's duty: bury processes whose parents are gone. Elsewhere there are none of these."""

from __future__ import annotations

import os
from collections.abc import Collection


def reap_orphans(ours: Collection[int]) -> list[int]:
    """Collect ended children that are not among `ours`, which have a keeper already. Returns their process ids."""
    reaped: list[int] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if ended is None or ended.si_pid in ours:
            return reaped  # the kernel names one of ours as long as it is not collected; its keeper does so shortly
        try:
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return reaped
        reaped.append(ended.si_pid)
