"""The log of one pod from its first line to its last, over restarts of its container and of the connection."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rankzero.launch import kinds, labels
from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.errors import NO_ANSWER, ApiError
from rankzero.launch.backends.kubernetes.streams import Streams
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import Moment, Stamped, read_stamp
from rankzero.launch.pods import Pod, parse_pod
from rankzero.launch.resource import POD

MOST_FAILURES = 10
"""Readings of an ended pod's log that may break before it is given up, aloud."""
SILENCE_SECONDS = 300.0
"""A log stream has no heartbeat: after this the connection is made anew, without loss."""


@dataclass(slots=True)
class LogPosition:
    """Where reading stopped, so that the same log read again from about there gives only what is new.

    The API goes back to a second, not to a line; and several lines may be of one instant.
    """

    last: Moment | None = None
    count: int = 0
    """Lines of that instant that have been seen."""
    first: Moment | None = None
    """The first new line of this reading."""
    _again: int = field(default=0, repr=False)

    def reconnect(self) -> dict[str, str]:
        """From where to ask; call it before each reading of the same log."""
        self._again, self.first = 0, None
        if self.last is None:
            return {}
        return {"sinceTime": self.last[0].strftime("%Y-%m-%dT%H:%M:%SZ")}

    def is_new(self, line: Stamped) -> bool:
        """Whether a line has not been seen yet; it has been now."""
        if line.moment is None or self.last is None or line.moment > self.last:
            if line.moment is not None:
                self.last, self.count = line.moment, 1
                self._again = 1
                self.first = self.first or line.moment
            return True
        if line.moment < self.last:
            return False
        self._again += 1
        if self._again <= self.count:
            return False
        self.count = self._again
        return True


@dataclass(slots=True)
class PodLog:
    """One pod's log; `lines` in a thread of its own, `update` from the one that watches pods."""

    api: Api
    streams: Streams
    pod: Manifest
    query: LogQuery
    _position: LogPosition = field(default_factory=LogPosition)
    _opened: LogPosition = field(default_factory=LogPosition)
    """The position as it was when the newest reading began."""
    _begun: float | None = None
    """When the first reading was asked for that was answered: what there was to show of the log was settled then."""
    _changed: threading.Event = field(default_factory=threading.Event)
    _gone: bool = False

    def update(self, pod: Manifest, *, gone: bool = False) -> None:
        """Newer news of the pod."""
        self.pod = pod
        self._gone = self._gone or gone
        self._changed.set()

    def stop(self) -> None:
        """Wake a thread that waits for news."""
        self._changed.set()

    def past(self) -> Iterator[LogLine]:
        """What there is now, from the instance before this one on. Raises ApiError."""
        seen = self.seen
        if seen.restarts and self.query.tail is not None:
            yield from self._last_lines(self.query.tail)
            return
        if seen.restarts:
            yield from self._read(previous=True)
        if seen.runs or seen.is_over or not seen.restarts:
            yield from self._read()

    def lines(self) -> Iterator[LogLine]:
        """Everything until the pod has ended or is gone. Raises ApiError where the log may not be read."""
        instance = self.seen.restarts
        if instance:
            yield from self._at_first()
        failures = 0
        while not self.streams.stopped.is_set():
            self._changed.clear()
            now = self.seen
            if now.restarts > instance:
                yield from self._catch_up(instance, now.restarts)
                instance = now.restarts
            ended = self._gone or now.is_over
            if not now.runs and not ended:
                self._changed.wait()
                continue
            before = self._position.last
            broken: str | None = None
            self._opened = replace(self._position)
            try:
                yield from self._read(follow=not ended)
            except ApiError as error:
                if error.status == 403:
                    raise
                broken = error.refusal.message
                if failures == 2:
                    self.api.tell(f"the log of {self._name} does not come: {broken}; still trying")
            failures = failures + 1 if broken is not None or self._position.last == before else 0
            if ended and (broken is None or failures >= MOST_FAILURES):
                if broken is not None:
                    what = "none of it is here" if self._position.last is None else "its end may be missing"
                    self.api.tell(f"the log of {self._name} could not be read, {what}: {broken}")
                return
            if failures:  # the pod's state lags behind its log, or the connection is poor
                self.api.clock.sleep(min(15.0, 0.5 * 2 ** min(failures, 5)))
            self._look()

    @property
    def seen(self) -> Pod:
        """The pod as it was last seen."""
        return parse_pod(self.pod)

    @property
    def _name(self) -> str:
        return str(self.pod["metadata"]["name"])

    def _look(self) -> None:
        """Ask for the pod itself: the watch may be behind."""
        there = self.api.read(POD, self._name, patient=True)
        if there is None or there["metadata"]["uid"] != self.pod["metadata"]["uid"]:
            self._gone = True
        elif not self._changed.is_set():
            self.pod = there

    def _at_first(self) -> Iterator[LogLine]:
        """What is shown of a pod that has restarted before its newest instance is followed."""
        if self.query.tail is None:
            yield from self._before()
            return
        try:
            yield from self._last_lines(self.query.tail)
        except ApiError as error:  # following begins with the same question, and says so where it is not answered
            if error.status == 403:
                raise
            self._position, self._begun = LogPosition(), None

    def _last_lines(self, tail: int) -> Iterator[LogLine]:
        """So many, or as many as the query's time has: the newest instance's, after what it lacks of the one before."""
        newest = list(self._read())
        lacking, reached = tail - len(newest), self._position
        if lacking > 0:
            self._position = LogPosition()
            began = newest[0].time if newest else None
            since = self.query.since_seconds
            for line in self._before({"tailLines": lacking} | ({} if since is None else {"sinceSeconds": since})):
                # where the newest one has ended and waits for the next, its log is that of the one before as well
                if began is None or line.time is None or line.time < began:
                    yield line
        if newest:
            self._position = reached
        yield from newest

    def _before(self, limits: Mapping[str, int] | None = None) -> Iterator[LogLine]:
        """The instance before this one, from where reading stopped."""
        try:
            yield from self._read(previous=True, limits=limits)
        except ApiError as error:
            if error.status == 403:
                raise
            self.api.tell(f"the log of {self._name} before its restart cannot be read: {error.refusal.message}")

    def _catch_up(self, instance: int, newest: int) -> Iterator[LogLine]:
        """The rest of the instance that was being read, which is the previous one by now.

        Where the connection was made just after the restart, it is the new instance that has been read, and nothing yet
        of the one before: its lines come late, but they come.
        """
        if newest > instance + 1:
            self.api.tell(
                f"{self._name} restarted {newest - instance} times while its log was away; some lines are gone"
            )
        began, first = self.seen.began, self._position.first
        if began is None or first is None or first[0] < began:
            yield from self._before()
            return
        current, self._position = self._position, replace(self._opened)
        yield from self._before()
        self._position = current

    def _read(
        self, *, follow: bool = False, previous: bool = False, limits: Mapping[str, int] | None = None
    ) -> Iterator[LogLine]:
        """One reading, new lines only. One that breaks or finds nothing to read just ends; a refused one raises."""
        params = {"container": self.seen.container, "timestamps": "true", **self._position.reconnect()}
        if self._position.last is None:
            limits = self._limits() if limits is None else limits
            params |= {name: str(limit) for name, limit in limits.items()}
        params |= {"follow": "true"} if follow else {}
        params |= {"previous": "true"} if previous else {}
        path = POD.path(self.api.place.namespace, self._name, "log")
        asked = self.api.clock.monotonic()

        def opened() -> None:
            if self._begun is None and not previous:
                self._begun = asked

        try:
            for text in self.api.lines(
                path, params, resource=POD, streams=self.streams, silence=SILENCE_SECONDS, opened=opened
            ):
                line = read_stamp(text)
                if self._position.is_new(line):
                    yield LogLine(
                        kinds.node_index(self.pod), self._name, labels.role_of(self.pod), line.text, line.time
                    )
        except ApiError as error:
            # 400: this instance has no log (any more); a pod that has gone takes its log along
            absent = error.status == 400 or (error.status == 404 and (previous or self._gone))
            if not absent and (error.status != NO_ANSWER or not follow):
                raise

    def _limits(self) -> dict[str, int]:
        """From where to ask for a log of which no line has been seen: as the query says, once; then since that time."""
        since, tail = self.query.since_seconds, self.query.tail
        if self._begun is not None and (since is not None or tail is not None):
            since, tail = (
                math.ceil(self.api.clock.monotonic() - self._begun) + 1,
                None,
            )  # the server's seconds, not ours
        limits = {"sinceSeconds": since, "tailLines": tail}
        return {name: limit for name, limit in limits.items() if limit is not None}
