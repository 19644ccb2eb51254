"""Whether a run that failed starts again: what trying again may cure, how often, and that it still gets on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rankzero.errors import NEVER_RETRIED, ExitCode, RankzeroError

IDLE_RESTARTS = 3
"""Restarts in a row that bring no new checkpoint, after which the next failure is the last."""


def may_be_cured(failure: RankzeroError) -> bool:
    """Whether starting again may end otherwise: not what was asked to stop, nor what is wrong with spec or data."""
    return failure.exit_code != ExitCode.STOPPED and failure.exit_code not in NEVER_RETRIED


@dataclass(slots=True)
class Restarts:
    """What is left of a run's restarts. `saved` is always the step of the newest checkpoint; None: there is none."""

    most: int
    made: int = 0
    idle: int = 0
    """How many of the last ones brought no checkpoint that is newer than `saved`."""
    saved: int | None = None

    def refused(self, saved: int | None, *, charged: bool = True) -> str:
        """Why there is no further restart; empty where there is one. One that is not `charged` only has to get on."""
        if charged and self.made >= self.most:
            return f"the {self.most} restarts of max_restarts are used up" if self.most else "max_restarts is 0"
        if self.idle >= IDLE_RESTARTS and not self._gets_on(saved):
            at = (
                "there is no checkpoint yet"
                if saved is None
                else f"the newest checkpoint is still that of step {saved}"
            )
            return f"{IDLE_RESTARTS} restarts in a row have brought nothing new: {at}"
        return ""

    def make(self, saved: int | None, *, charged: bool = True) -> None:
        """Count one that begins from `saved`."""
        self.idle = 1 if self._gets_on(saved) else self.idle + 1
        self.made += charged
        self.saved = saved

    def _gets_on(self, saved: int | None) -> bool:
        return saved is not None and (self.saved is None or saved > self.saved)
