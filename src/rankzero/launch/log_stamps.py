"""Times that a kubelet or docker puts before lines of a log, to the nanosecond. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
Moment = tuple[datetime, int]
"""Seconds and nanoseconds: what the kubelet writes is finer than a datetime."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A line and when it was written."""

    text: str
    moment: Moment | None

    @property
    def time(self) -> datetime | None:
        """To microseconds."""
        if self.moment is None:
            return None
        second, nanos = self.moment
        return second.replace(microsecond=nanos // 1000)


def read_stamp(line: str) -> Stamped:
    """A line of a log that was asked for with timestamps; without one, or with one of no day, it has no moment."""
    match = _STAMP.match(line)
    if match is None:
        return Stamped(line, None)
    rest = line[match.end() :]
    try:
        second = datetime.fromisoformat(match[1] + match[3]).astimezone(UTC)
    except (ValueError, OverflowError):
        return Stamped(rest, None)
    return Stamped(rest, (second, int((match[2] or "").ljust(9, "0"))))
