"""Silence: a place that does not answer for a while, as whoever follows a run there bears it. Asks nothing itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rankzero.errors import ServiceError
from rankzero.launch.backend import LONGEST_SILENCE, Say


class SilentError(ServiceError):
    """What was asked does not answer, or not in time: the same call may be answered a minute later."""


@dataclass(slots=True)
class Silence:
    """The newest one. A busy controller lets calls time out while its jobs go on, so it is no end of anything."""

    say: Say
    told: str = "the job goes on, and Slurm is waited for"
    _since: float | None = None

    def goes_on(self, error: ServiceError) -> None:
        """Once more nothing was answered: said the first time. Raises the error where it has been too long, and at once
        where it is no silence: a program that is not there never answers."""
        if not isinstance(error, SilentError):
            raise error
        now = time.monotonic()
        if self._since is None:
            self._since = now
            most = f"{LONGEST_SILENCE / 60:.0f} minutes at most"
            self.say(f"{error.problems[0].what}; {self.told}, {most}")
        elif now - self._since >= LONGEST_SILENCE:
            raise error

    def is_over(self) -> None:
        """There was an answer."""
        self._since = None
