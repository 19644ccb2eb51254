"""The logs of all pods of a run as one stream, from before they start until the run has ended."""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from rankzero.launch import kinds, labels
from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.kueue import is_queued
from rankzero.launch.backends.kubernetes.log_reader import PodLog
from rankzero.launch.backends.kubernetes.resources import (
    TRAINING,
    annotation,
    ended,
    is_preparation,
    is_suspended,
    is_training,
    label,
    name_of,
)
from rankzero.launch.backends.kubernetes.stop import training_objects
from rankzero.launch.backends.kubernetes.streams import Change, Streams
from rankzero.launch.backends.kubernetes.wait import waits
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import Wanted
from rankzero.launch.pods import parse_pod
from rankzero.launch.resource import JOB, POD, Resource

AT_ONCE = 16
MOST_FOLLOWED = 64
"""Pods followed at the same time; node 0 speaks for all, and more connections would load every kubelet."""
LINES_IN_FLIGHT = 10_000
LAST_LINES_SECONDS = 30.0
"""How long pods may go on talking after their run has ended."""
PATIENCE_SECONDS = 15.0
"""How long nothing is said of a run that has no pod."""
_NO_POD = "no pod"
_EPOCH = datetime.fromtimestamp(0, UTC)


def past_lines(api: Api, run: str, query: LogQuery) -> Iterator[LogLine]:
    """What all pods have said up to now, by time. Raises ApiError."""
    pods, _ = api.list(POD, {"labelSelector": labels.selector(run)})
    nproc = _processes(pods)
    wanted = Wanted.of(query, nproc)

    # the last lines of one rank are not among the last lines of its pod
    whole = replace(query, tail=query.tail if query.rank is None else None)

    def read(pod: Manifest) -> list[LogLine]:
        lines = PodLog(api, Streams(), pod, whole).past()
        try:
            kept = [line for line in lines if wanted.line(line)]
            return kept if query.tail is None else kept[max(0, len(kept) - query.tail) :]
        except ApiError as error:
            if error.status == 403:
                raise
            api.tell(f"the log of {pod['metadata']['name']} cannot be read: {error.refusal.message}")
            return []

    with ThreadPoolExecutor(AT_ONCE) as pool:
        each = list(pool.map(read, [pod for pod in pods if parse_pod(pod).has_log and _is_wanted(wanted, pod)]))
    yield from heapq.merge(*each, key=lambda line: line.time or _EPOCH)


def _processes(objects: list[Manifest]) -> int:
    return max((int(annotation(one, labels.NPROC) or 1) for one in objects), default=1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A change that a watch saw."""

    resource: Resource
    change: Change


@dataclass(frozen=True, slots=True)
class _Over:
    """A pod's log has been read to its end."""

    uid: str


_Item = _Seen | _Over | LogLine | BaseException


@dataclass(slots=True)
class Following:
    """One `logs --follow`. All that it knows changes in one thread: watches and readers only send it news."""

    api: Api
    discovery: Discovery
    run: str
    query: LogQuery
    _streams: Streams = field(default_factory=Streams)
    _queue: queue.Queue[_Item] = field(default_factory=lambda: queue.Queue(LINES_IN_FLIGHT))
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    _spoken: set[str] = field(default_factory=set)
    """Pods that had a log when following began. Of those that come later every line is new."""
    _objects: dict[Resource, dict[str, Manifest]] = field(default_factory=dict)
    _gone: dict[str, Manifest] = field(default_factory=dict)
    """What had ended and was removed, as it was seen last."""
    _said: set[str] = field(default_factory=set)
    _had_pods_at: float = 0.0
    _deadline: float | None = None
    _looked_twice: bool = False
    _wanted: Wanted = field(default=Wanted(None))

    def lines(self) -> Iterator[LogLine]:
        """Until the run has ended. Raises ApiError."""
        kinds = self._kinds()
        pods, _ = self.api.list(POD, {"labelSelector": labels.selector(self.run)})
        objects = [
            one for kind in kinds for one in self.api.list(kind, {"labelSelector": labels.selector(self.run)})[0]
        ]
        self._wanted = Wanted.of(self.query, _processes([*objects, *pods]))
        self._spoken = {str(pod["metadata"]["uid"]) for pod in pods if parse_pod(pod).has_log}
        try:
            for kind in (POD, *kinds):
                self._start(partial(self._watch, kind))
            waiting_for_all = len(kinds) + 1
            while True:
                item = self._next()
                if item is None:
                    self._leave_behind()
                    return
                if isinstance(item, LogLine):
                    if self._wanted.line(item):
                        yield item
                    continue
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, _Over):
                    self._read.add(item.uid)
                else:
                    first = item.change.type == "SYNC" and item.resource not in self._objects
                    self._take(item)
                    waiting_for_all -= first
                if waiting_for_all == 0 and self._is_over():
                    return
        finally:
            self._streams.stop()
            for log in self._logs.values():
                log.stop()

    def endings(self) -> list[Manifest]:
        """What has ended of it, with its pods, as it was seen last: a cluster may be told to remove that at once."""
        there = [one for each in self._objects.values() for one in each.values()]
        return [*self._gone.values(), *(one for one in there if _has_ended(one))]

    def _kinds(self) -> list[Resource]:
        """Where the run's own objects are: the one that trains, and the preparation."""
        trained = training_objects(self.api, self.discovery, self.run)
        prepared, _ = self.api.list(JOB, {"labelSelector": labels.selector(self.run)})
        names = {label(one, labels.KIND) for one in (*trained, *prepared)}
        return list(
            {kind.kind: kind for kind in (JOB, *(TRAINING[name] for name in names if name in TRAINING))}.values()
        )

    def _next(self) -> _Item | None:
        if self._deadline is None or any(log.seen.is_over for log in self._open()):
            return self._patient()  # the log of a pod that has ended has an end
        try:
            return self._queue.get(timeout=max(0.0, self._deadline - self.api.clock.monotonic()))
        except queue.Empty:
            return None

    def _patient(self) -> _Item:
        """Whatever comes next. Says once that no pod has come: why not is told to the object that makes them."""
        while self._lacks_pods():
            left = self._had_pods_at + PATIENCE_SECONDS - self.api.clock.monotonic()
            if left <= 0:
                self._said.add(_NO_POD)
                self.api.tell(f"{self.run} has no pod yet; `rankzero status {self.run}` says what is known of it")
                break
            with suppress(queue.Empty):
                return self._queue.get(timeout=left)
        else:
            self._had_pods_at = self.api.clock.monotonic()
        return self._queue.get()

    def _lacks_pods(self) -> bool:
        """Whether it has none and should have, and nobody has heard of it."""
        due = [one for one in self._own() if not is_suspended(one) and ended(one) is None]
        return bool(due) and self._objects.get(POD) == {} and _NO_POD not in self._said

    def _take(self, seen: _Seen) -> None:
        """News of pods starts readers; news of other objects tells when it is over."""
        known = self._objects.setdefault(seen.resource, {})
        found = {str(item["metadata"]["uid"]): item for item in seen.change.items}
        gone = found if seen.change.type == "DELETED" else {}
        if seen.change.type == "SYNC":
            gone = {uid: item for uid, item in known.items() if uid not in found}
        known |= found
        for uid, one in gone.items():
            known.pop(uid, None)
            if _has_ended(one):
                self._gone[uid] = one
        if seen.resource is POD:
            for uid, pod in found.items():
                self._take_pod(uid, pod, gone=uid in gone)
            for uid, pod in gone.items():
                if uid in self._logs:
                    self._logs[uid].update(pod, gone=True)

    def _take_pod(self, uid: str, pod: Manifest, *, gone: bool) -> None:
        if not _is_wanted(self._wanted, pod):
            return
        if uid in self._logs:
            self._logs[uid].update(pod, gone=gone)
            return
        seen = parse_pod(pod)
        if not gone and seen.has_log:
            self._follow(uid, pod)
            return
        if gone:
            return
        for words in waits(self.run, seen):
            if words not in self._said:
                self._said.add(words)
                self.api.tell(words)

    def _follow(self, uid: str, pod: Manifest) -> None:
        if len(self._open()) >= MOST_FOLLOWED and kinds.node_index(pod) != 0:
            if "many" not in self._said:
                self.api.tell(f"following {MOST_FOLLOWED} pods; --node N shows one of the others")
            self._said.add("many")
            return
        query = self.query if uid in self._spoken else replace(self.query, tail=None, since_seconds=None)
        log = PodLog(self.api, self._streams, pod, query)
        self._logs[uid] = log
        self._start(lambda: self._read_pod(uid, log))

    def _open(self) -> list[PodLog]:
        return [log for uid, log in self._logs.items() if uid not in self._read]

    def _leave_behind(self) -> None:
        left = sorted(str(log.pod["metadata"]["name"]) for log in self._open())
        if left:
            self.api.tell(f"the run has ended, but {', '.join(left)} still talks; not waiting for it")

    def _own(self) -> list[Manifest]:
        """The objects that make its pods."""
        return [one for kind, each in self._objects.items() if kind is not POD for one in each.values()]

    def _is_over(self) -> bool:
        own = self._own()
        trains = [one for one in own if is_training(one)] or [one for one in own if is_preparation(one)]
        if not all(self._has_stopped(one) for one in trains):
            self._deadline = None
            return False
        pods = [pod for pod in self._objects.get(POD, {}).values() if not parse_pod(pod).is_over]
        if not self._open() and not pods:
            if self._looked_twice:
                return True
            self._looked_twice = True  # the end may be known sooner than the last pods
            items, _ = self.api.list(POD, {"labelSelector": labels.selector(self.run)}, patient=True)
            self._take(_Seen(POD, Change("SYNC", tuple(items))))
            return self._is_over()
        if self._deadline is None and trains and all(ended(one) for one in trains):
            self._deadline = self.api.clock.monotonic() + LAST_LINES_SECONDS
        return False

    def _has_stopped(self, one: Manifest) -> bool:
        if ended(one) is not None:
            return True
        if not is_suspended(one):
            return False
        if not is_queued(self.api, self.discovery, one):
            return True
        words = f"{name_of(one)} waits in its queue"
        if words not in self._said:
            self._said.add(words)
            self.api.tell(words)
        return False

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True, name=f"rankzero-logs-{self.run}").start()

    def _watch(self, resource: Resource) -> None:
        selector = {"labelSelector": labels.selector(self.run)}
        try:
            for change in self.api.follow(resource, selector, streams=self._streams):
                self._put(_Seen(resource, change))
        except Exception as error:  # raised again where the lines are read
            self._put(error)

    def _read_pod(self, uid: str, log: PodLog) -> None:
        try:
            for line in log.lines():
                self._put(line)
            self._put(_Over(uid))
        except Exception as error:  # as above
            self._put(error)

    def _put(self, item: _Item) -> None:
        """Wait for room, but not after the reader has gone."""
        while not self._streams.stopped.is_set():
            try:
                self._queue.put(item, timeout=1.0)
                return
            except queue.Full:
                continue


def _has_ended(one: Manifest) -> bool:
    return parse_pod(one).is_over if one["kind"] == POD.kind else ended(one) is not None


def _is_wanted(wanted: Wanted, pod: Manifest) -> bool:
    return wanted.pod(labels.role_of(pod), kinds.node_index(pod))
