"""What a process costs, whatever else the machine does: CPU seconds, not seconds of the clock."""

from __future__ import annotations

import os
from collections.abc import Callable


def of_children(work: Callable[[], object]) -> float:
    """CPU seconds, user and system, of the processes that `work` starts and waits for."""
    before = os.times()
    work()
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system
