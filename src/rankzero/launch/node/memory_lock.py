"""How much memory this process and those that it starts may keep in place, which RDMA registers its buffers with."""

from __future__ import annotations

import resource
from pathlib import Path

from rankzero.errors import ConfigError

ENOUGH_BYTES = 2**32
"""What collectives over several cards register comes to gigabytes."""
_IPC_LOCK = 14
"""Number of the capability that knows no limit (linux/capability.h)."""


def allow_locking(status: Path = Path("/proc/self/status")) -> None:
    """Raise the soft limit to the hard one. Raises ConfigError where that is too little and we lack the capability."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH_BYTES or _has_capability(status):
        return
    raise ConfigError(
        f"processes may lock {hard // 1024:,} KiB of memory, and RDMA registers gigabytes",
        where="resources.rdma",
        hint="set LimitMEMLOCK=infinity for the nodes' container runtime (systemctl edit containerd), or user: 0 in "
        "cluster.yaml: the capability IPC_LOCK has an effect for root alone; without RDMA leave resources.rdma out",
    )


def _has_capability(status: Path) -> bool:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _IPC_LOCK & 1)
