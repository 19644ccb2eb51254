"""What PID 1 of a pod does for itself: it hears that it is to stop, buries orphans, and sees what memory may be locked.

Imports next to nothing: signals are heard from its first moment on. Knows nothing of who acts on a wish to stop."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from rankzero.errors import ConfigError


@dataclass(slots=True)
class StopWish:
    """Whether it came, when, and whom to tell at once."""

    at: float | None = None
    """On the monotonic clock."""
    number: int = signal.SIGTERM
    on_first: Callable[[int], None] | None = field(default=None, repr=False)

    def __call__(self, number: int) -> None:
        """The signal handler."""
        if self.at is None:
            self.at, self.number = time.monotonic(), number
            if self.on_first is not None:
                self.on_first(number)

    @property
    def wanted(self) -> bool:
        """Whether it came."""
        return self.at is not None

    @property
    def name(self) -> str:
        """SIGTERM or SIGINT."""
        return signal.Signals(self.number).name


def listen() -> StopWish:
    """A wish that SIGTERM and SIGINT make from here on.

    PID 1 ignores signals that it has no handler for, and importing the rest takes a second or two: this comes first.
    """
    stop = StopWish()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stop(received))
    return stop


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
