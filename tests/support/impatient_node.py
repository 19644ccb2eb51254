"""A node command that waits a moment, not half a minute, for who has left a run that may go on with fewer nodes."""

from __future__ import annotations

from typing import Any

from rankzero.launch.node import coordinator
from rankzero.launch.node.__main__ import main


def start(self: coordinator.Coordinator, now: float) -> Any:
    """All who are to begin together are waited for as ever."""
    if self.generation:
        coordinator.ELASTIC_SECONDS = 0.5
    return _start(self, now)


if __name__ == "__main__":
    _start, coordinator.Coordinator._start = coordinator.Coordinator._start, start  # type: ignore[method-assign]
    main()
