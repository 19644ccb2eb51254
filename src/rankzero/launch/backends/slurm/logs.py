"""The logs of a run's nodes as one stream: files that grow on the file system that nodes share."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.slurm.state import PREPARATION, Part, RunState
from rankzero.launch.labels import NODE_ROLE, PREPARE_ROLE
from rankzero.launch.log_lines import Wanted, read_stamp

_FIRST = datetime.min.replace(tzinfo=UTC)


class _File:
    """A log that is read on from where it was left, in whole lines."""

    def __init__(self, path: Path, part: Part, pod: str) -> None:
        self._path, self._pod = path, pod
        self._node, self._role = (0, PREPARE_ROLE) if part == PREPARATION else (part, NODE_ROLE)
        self._at = 0
        self._directory: int | None = None
        """Which one it was in: of a run that is submitted anew it is another."""
        self._time: datetime | None = None

    def lines(self, *, rest: bool = False) -> list[LogLine]:
        """What is new. A line without a time is of that of the one before it. With `rest` the last may lack its end."""
        raw = b""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            directory = self._path.parent.stat().st_ino
            if self._directory not in (None, directory) or os.fstat(file.fileno()).st_size < self._at:
                self._at = 0
            self._directory = directory
            file.seek(self._at)
            raw = file.read()
        whole = raw if rest else raw[: raw.rfind(b"\n") + 1]
        self._at += len(whole)
        return [self._line(text) for text in whole.decode(errors="replace").removesuffix("\n").split("\n") if whole]

    def _line(self, text: str) -> LogLine:
        stamped = read_stamp(text)
        self._time = stamped.time or self._time
        return LogLine(self._node, self._pod, self._role, stamped.text, self._time)


def _files(state: RunState, names: Mapping[Part, str]) -> list[_File]:
    """The logs of these parts; where one has none, what srun says in the batch script's too: it may not have started
    it."""
    silent = next((part for part in names if not state.last_lines(state.log(part), 1)), None)
    found = [_File(state.log(part), part, pod) for part, pod in names.items()]
    return found if silent is None else [*found, _File(state.batch_log, silent, names[silent])]


def recent(
    state: RunState, names: Mapping[Part, str], query: LogQuery, wanted: Wanted, now: datetime
) -> Iterator[LogLine]:
    """What was said up to now. `names` are the pods that are asked for."""
    yield from _past(_files(state, names), query, wanted, now)


def followed(
    state: RunState,
    names: Mapping[Part, str],
    query: LogQuery,
    wanted: Wanted,
    now: datetime,
    goes_on: Callable[[], bool],
    pause: Callable[[], None],
) -> Iterator[LogLine]:
    """The same, and then as it comes, until the job does not go on."""
    files = _files(state, names)
    yield from _past(files, query, wanted, now)
    over = False
    while not over:
        over = not goes_on()  # before the last look, so that nothing is missed
        parts = [file.lines(rest=over) for file in files]
        yield from filter(wanted.line, _merged(parts))
        if not over:
            pause()


def _past(files: list[_File], query: LogQuery, wanted: Wanted, now: datetime) -> Iterator[LogLine]:
    oldest = None if query.since_seconds is None else now - timedelta(seconds=query.since_seconds)
    parts = []
    for file in files:
        lines = [line for line in file.lines(rest=not query.follow) if oldest is None or (line.time or now) >= oldest]
        lines = [line for line in lines if wanted.line(line)]
        parts.append(lines if query.tail is None else list(deque(lines, maxlen=query.tail)))
    yield from _merged(parts)


def _merged(parts: list[list[LogLine]]) -> Iterator[LogLine]:
    """By time."""
    return heapq.merge(*parts, key=lambda line: line.time or _FIRST)
