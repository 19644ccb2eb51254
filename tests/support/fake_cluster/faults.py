"""What a server can do wrong, on order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Fault:
    """Happens to the next `times` requests whose method and path (with query) fit."""

    method: str
    part: str
    times: int = 1
    status: int = 0
    reason: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    drop: str = ""
    """`before` or `after` the request is carried out, the connection is cut; `cut`: in mid-answer."""
    die: bool = False
    """From then on nobody answers any more."""
    hold: threading.Event | None = None
    """The answer waits for this."""
    skip: int = 0
    """How many fitting requests pass first."""
    dry: bool | None = None
    """Only dry runs, or only real requests."""

    def fits(self, method: str, path: str) -> bool:
        """Whether this request meets it; counts."""
        if self.times <= 0 or self.method not in ("*", method) or self.part not in path:
            return False
        if self.dry is not None and self.dry != ("dryRun=All" in path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True
