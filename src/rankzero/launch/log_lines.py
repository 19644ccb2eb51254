"""Lines of a run's logs: their times, whose they are, how far the run is, which error it ended with. Pure.

Lines are those of engine/console.py, perhaps with a prefix of the node command's and a timestamp of the kubelet's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.labels import NODE_ROLE

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


_PROGRESS = re.compile(
    r"\[TRAIN\] step (?P<step>\d{1,15})/(?P<total>\d{1,15}) loss (?P<loss>-?\d+(?:\.\d+)?|nan|-?inf)"
    r" (?P<rate>\d[\d,]{0,20}) tok/s(?: [^\n]{0,120}?)? ETA (?P<eta>\d[\d:]{0,15})"
)
_AWAITED = re.compile(r"(?i)\bwait\w*(?: \d+ s)? for (?:the )?nodes? (?P<nodes>\d{1,6}(?:(?:, | and )\d{1,6}){0,99})")
_GOES_ON = re.compile(r"\[NODE\] start \d|\[(?:TRAIN|STEP|DDP|DATA|EVAL)\]")
_CLOCK = re.compile(r"(?:^|\s|\])([012]\d):([0-5]\d):([0-5]\d)(?=[\s,.])")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ERROR = re.compile(r"(?:^|\s)error: (?P<text>.+)")
_HINT = re.compile(r"^\s*(?:\S+\s+)?hint: (?P<text>.+)")
_EXCEPTION = re.compile(
    r"^(?:\[rank ?\d+\]:? ?)?(?P<text>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*)?)$"
)
_SLACK = timedelta(minutes=5)
LONGEST_LINE = 300
_SIGNS = (
    *("error", "warn", "nccl", "memory", "shm", "bus", "timed", "timeout", "joined", "resol", "refused", "reset"),
    *("closed", "pipe", "known", "host", "kill", "wait", "not", "module", "lost", "ecc", "xid", "thread", "driver"),
    *("429", "certificate", "format", "resource", "no cuda"),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress line."""

    step: int
    total_steps: int
    loss: float
    tokens_per_second: int
    eta_seconds: int
    at: datetime | None


@dataclass(frozen=True, slots=True)
class SaidError:
    """The last error in a log."""

    text: str
    hint: str = ""


def last_progress(log: str, now: datetime) -> Progress | None:
    """The newest progress line."""
    lines = log.splitlines()
    for line in reversed(lines):
        match = _PROGRESS.search(line)
        if match is not None:
            return Progress(
                step=int(match["step"]),
                total_steps=int(match["total"]),
                loss=float(match["loss"]),
                tokens_per_second=int(match["rate"].replace(",", "")),
                eta_seconds=_seconds(match["eta"]),
                at=time_of(line, now),
            )
    return None


def awaited_nodes(log: str) -> tuple[int, ...]:
    """Nodes that the node command waits for; none where the processes were started after it said so."""
    for line in reversed(log.splitlines()):
        if _GOES_ON.search(line):
            return ()
        match = _AWAITED.search(line)
        if match is not None:
            return tuple(int(number) for number in re.findall(r"\d{1,6}", match["nodes"]))
    return ()


def progress_gap(log: str, now: datetime) -> timedelta | None:
    """The longest time between two progress lines that follow each other: how long silence is usual."""
    times = [time_of(line, now) for line in log.splitlines() if _PROGRESS.search(line)]
    known = [one for one in times if one is not None]
    return max((later - earlier for earlier, later in zip(known, known[1:], strict=False)), default=None)


def last_spoken(log: str, now: datetime) -> datetime | None:
    """When the last line with a time was written."""
    return next((found for line in reversed(log.splitlines()) if (found := time_of(line, now)) is not None), None)


def time_of(line: str, now: datetime) -> datetime | None:
    """When a line was written. A clock without a date is of the last 24 hours, in UTC as containers have it."""
    stamped = read_stamp(line)
    if stamped.text != line:
        return stamped.time
    clock = _CLOCK.search(_ANSI.sub("", line[:80]))
    if clock is None or int(clock[1]) > 23:
        return None
    today = now.astimezone(UTC)
    found = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3]), microsecond=0)
    return found - timedelta(days=1) if found > today + _SLACK else found


def last_error(log: str) -> SaidError | None:
    """The last `error: …` with its hint, or the last exception of a traceback."""
    lines = [read_stamp(_ANSI.sub("", line)).text.rstrip() for line in log.splitlines()]
    for index in range(len(lines) - 1, -1, -1):
        match = _ERROR.search(lines[index])
        if match is not None:
            hint = _HINT.match(lines[index + 1]) if index + 1 < len(lines) else None
            return SaidError(match["text"][:LONGEST_LINE], hint["text"][:LONGEST_LINE] if hint else "")
    for line in reversed(lines):
        match = _EXCEPTION.match(line)
        if match is not None:
            return SaidError(match["text"][:LONGEST_LINE])
    return None


def troubled(log: str) -> str:
    """The lines that may tell of trouble, each once: patterns are dear, and logs of a thousand pods are long."""
    lines = dict.fromkeys(log.splitlines())
    return "\n".join(line for line in lines if any(sign in line.lower() for sign in _SIGNS))


def find_line(log: str, pattern: re.Pattern[str]) -> str | None:
    """The first line that matches, without its stamp and colours."""
    match = pattern.search(log)
    if match is None:
        return None
    start = log.rfind("\n", 0, match.start()) + 1
    end = log.find("\n", match.end())
    line = log[start : end if end >= 0 else len(log)]
    return read_stamp(_ANSI.sub("", line)).text.strip()[:LONGEST_LINE]


def _seconds(clock: str) -> int:
    total = 0
    for part in clock.split(":"):
        total = total * 60 + (int(part) if part else 0)
    return total


_RANK = re.compile(r"\[(?P<local>local )?rank (?P<rank>\d+)\]")
"""How the node command begins the lines of processes other than the first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. A rank is a process of the node that it counts to."""

    node: int | None
    rank: int | None = None
    local_rank: int | None = None

    @classmethod
    def of(cls, query: LogQuery, nproc_per_node: int) -> Wanted:
        """Of a run with this many processes in a pod."""
        if query.rank is None:
            return cls(query.node)
        node, local_rank = divmod(query.rank, nproc_per_node)
        # another node than the rank's has none of its lines
        return cls(node if query.node in (None, node) else -1, query.rank, local_rank)

    def pod(self, role: str, node: int) -> bool:
        """Whether any of a pod's lines are; the preparation speaks for no node."""
        return self.node is None or (role == NODE_ROLE and node == self.node)

    def line(self, line: LogLine) -> bool:
        """Whether this one is; a line that names no rank is that of its node's first process."""
        match = _RANK.match(line.text) if self.rank is not None else None
        if match is None:
            return not self.local_rank
        return int(match["rank"]) == (self.local_rank if match["local"] else self.rank)
