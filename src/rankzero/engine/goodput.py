"""Where the wall-clock time of one start of a run went. Knows phases by name only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankzero.run_dir.handover import STARTED_VARIABLE


class Ledger:
    """Seconds by phase. Phases do not nest; what none of them covers is `other`, so the sum is the wall time."""

    def __init__(self) -> None:
        self._origin = _process_start()
        self.seconds: dict[str, float] = {"startup": time.monotonic() - self._origin}
        self.time_to_first_step: float | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def first_step_done(self) -> None:
        """The first optimizer step of this start has finished."""
        if self.time_to_first_step is None:
            self.time_to_first_step = time.monotonic() - self._origin

    def report(self) -> dict[str, float]:
        """Seconds by phase, with `other` and `wall`."""
        wall = time.monotonic() - self._origin
        rounded = {name: round(value, 3) for name, value in self.seconds.items()}
        return {**rounded, "other": round(wall - sum(self.seconds.values()), 3), "wall": round(wall, 3)}


def _process_start() -> float:
    """When this run's first process started, on the monotonic clock."""
    given = os.environ.get(STARTED_VARIABLE)
    if given is not None:
        return float(given)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return time.monotonic() - (uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.monotonic()
