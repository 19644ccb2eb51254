"""What this process may use of the machine: cores and memory, a container's limits included. Stdlib only."""

from __future__ import annotations

import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer where a cgroup's CPU quota is lower; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cores


def usable_memory() -> int:
    """Bytes of the machine's memory, or fewer where a cgroup's limit is lower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(_MEMORY_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return installed


def offline() -> bool:
    """Whether the environment forbids the network, in any of the ways that users know."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"} for name in names)
