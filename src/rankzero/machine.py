"""What this process may use of the machine: cores, instructions, memory; a container's limits included. Stdlib only."""

from __future__ import annotations

import os
from pathlib import Path

CPU_FEATURES_VARIABLE = "RANKZERO_CPU_FEATURES"
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
_MEMORY_PARTS = Path("/sys/fs/cgroup/memory.stat")
_MEMORY_INFO = Path("/proc/meminfo")


def usable_cores() -> int:
    """Cores of the affinity mask, or fewer where a cgroup's CPU quota is lower; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cores


def cpu_features() -> frozenset[str]:
    """What instructions the CPU has, by Linux's names (avx512_bf16). Empty where the system does not say (macOS).

    Whatever depends on them asks here. The names in RANKZERO_CPU_FEATURES, separated by spaces, are believed instead of
    what the CPU says: where a virtual machine hides some, or to run as on another CPU.
    """
    told = os.environ.get(CPU_FEATURES_VARIABLE)
    if told is not None:
        return frozenset(told.split())
    if not _CPU_INFO.is_file():
        return frozenset()
    for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def usable_memory() -> int:
    """Bytes of the machine's memory, or fewer where a cgroup's limit is lower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(_MEMORY_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return installed


def available_memory() -> int:
    """Bytes that this process can still take without anything being swapped out or killed: what the kernel can free is
    counted, and a cgroup's limit. 0 where the system does not say."""
    free = _number_after(_MEMORY_INFO, "MemAvailable:") * 1024
    try:
        limit, used = (int(path.read_text(encoding="ascii")) for path in (_MEMORY_LIMIT, _MEMORY_USED))
    except (OSError, ValueError):
        return free
    return max(0, min(free, limit - used + _number_after(_MEMORY_PARTS, "inactive_file")))


def _number_after(table: Path, word: str) -> int:
    """Of the line that begins with `word`, the number behind it; 0 where there is none."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [word]), 0)


def offline() -> bool:
    """Whether the environment forbids the network, in any of the ways that users know."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"} for name in names)
