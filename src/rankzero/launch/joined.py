"""JoinedEvidence: the evidence of one run joined: newest pods, events by object, what has ended. Pure.

Built in one pass; status and diagnose read it and judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from rankzero.errors import ExitCode
from rankzero.launch import kinds, labels
from rankzero.launch.evidence import Evidence
from rankzero.launch.last_words import LastWords, parse_last_words
from rankzero.launch.log_lines import troubled
from rankzero.launch.pods import EARLIEST, Condition, Pod, conditions_of, parse_pod
from rankzero.launch.resource import JOB
from rankzero.launch.untyped_json import at, maps, moment, text, whole

MOST_NODES = 100_000
"""More than any cluster has; a mistyped annotation must not make a judge count for ever."""

Finished = Literal["succeeded", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of either API."""

    kind: str
    name: str
    """Of the object that it is about."""
    reason: str
    message: str
    at: datetime
    warning: bool


class JoinedEvidence:
    """The evidence, joined. Attributes say what there is; nothing is judged."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.run = evidence.run
        self.now = evidence.now if evidence.now.tzinfo is not None else evidence.now.replace(tzinfo=UTC)
        pods = [parse_pod(manifest) for manifest in evidence.pods]
        pods.sort(key=lambda pod: (pod.created or EARLIEST, pod.name))
        self.pods = tuple(pod for pod in pods if pod.role != labels.PREPARE_ROLE)
        self.prepare_pods = tuple(pod for pod in pods if pod.role == labels.PREPARE_ROLE)
        self.current: dict[int, Pod] = {}
        """The newest pod of each node."""
        self.replaced: list[Pod] = []
        """Pods that have been followed by newer ones."""
        for pod in self.pods:
            before = self.current.get(pod.node)
            if before is not None:
                self.replaced.append(before)
            self.current[pod.node] = pod
        self.current = dict(sorted(self.current.items()))
        self.objects: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for manifest in evidence.objects:
            self.objects[text(manifest, "kind")].append(manifest)
        self.trainer = self._trainer()
        self.conditions = conditions_of(self.trainer)
        self._troubles: dict[str, str] = {}

    @cached_property
    def kind(self) -> str:
        """Of ClusterSpec.kind; empty where nothing says so."""
        label = text(self.trainer, "metadata", "labels", labels.KIND)
        if label:
            return label
        own = text(self.trainer, "kind")
        if own:
            return next(name for name, kind in kinds.controlled().items() if kind.resource.kind == own)
        sources = (*self.objects.get("ConfigMap", ()), self.preparation, *self.evidence.pods[:1])
        return next((found for one in sources if (found := text(one, "metadata", "labels", labels.KIND))), "")

    @cached_property
    def num_nodes(self) -> int:
        """How many pods train."""
        for source in (self.trainer, *self.objects.get("ConfigMap", ()), *self.evidence.pods):
            written = whole(source, "metadata", "annotations", labels.NODES)
            if written:
                return min(written, MOST_NODES)
        return max(1, len(self.current))

    @cached_property
    def min_nodes(self) -> int:
        """With how few of them it trains."""
        path = self.trained_by.fewest_nodes if self.trained_by is not None else ()
        return (whole(self.trainer, *path) if path else None) or self.num_nodes

    @cached_property
    def trained_by(self) -> kinds.Kind | None:
        """The kind of the object that trains; None where there is no such object."""
        return kinds.kind_of(self.trainer)

    def annotation(self, name: str) -> str:
        """An annotation of the run: of its training object, its ConfigMap or a pod."""
        for source in (self.trainer, *self.objects.get("ConfigMap", ()), *self.evidence.pods):
            found = text(source, "metadata", "annotations", name)
            if found:
                return found
        return ""

    @cached_property
    def queue(self) -> str:
        """The Kueue queue that admits the run; empty: none."""
        return text(self.counted, "metadata", "labels", labels.QUEUE)

    @cached_property
    def preparation(self) -> Mapping[str, Any]:
        """The Job that prepares; empty where there is none."""
        return next((one for one in self.objects.get(JOB.kind, ()) if _is_preparation(one)), {})

    @cached_property
    def counted(self) -> Mapping[str, Any]:
        """The object that has the next pods: the preparation as long as it has work left, then the one that trains."""
        return self.preparation if self.preparation and self.is_preparing else self.trainer

    @cached_property
    def workload(self) -> Mapping[str, Any]:
        """The Kueue Workload that counts: the newest of the object that has the next pods, or of any."""
        uid = text(self.counted, "metadata", "uid")
        owned = [
            one
            for one in self.evidence.workloads
            if uid and any(text(owner, "uid") == uid for owner in maps(one, "metadata", "ownerReferences"))
        ]
        return max(owned or self.evidence.workloads, key=lambda one: _created(one) or EARLIEST, default={})

    @cached_property
    def is_suspended(self) -> bool:
        """Whether the object that has the next pods is told to have none."""
        kind = kinds.kind_of(self.counted)
        return kind is not None and kind.switch.is_off(self.counted)

    @cached_property
    def is_scaled_down(self) -> bool:
        """Whether the object that has the next pods is told to have none by somebody who is not Kueue."""
        kind = kinds.kind_of(self.counted)
        return self.is_suspended and kind is not None and not kind.queued_without_pods

    @cached_property
    def outcome(self) -> LastWords | None:
        """What node 0 noted on the object at the end of a run that parks."""
        return parse_last_words(text(self.trainer, "metadata", "annotations", labels.OUTCOME))

    @cached_property
    def finished(self) -> Finished | None:
        """How the run ended; None while it may still go on."""
        if self.outcome is not None:
            return _by_words(self.outcome)
        if self.trained_by is not None and not self.trained_by.parks:
            end = self.trained_by.end(self.trainer)
            if end is not None:
                return "succeeded" if end == "complete" else "failed"
        if not self.trainer and not self.current and self.prepare_pods and self.prepare_pods[-1].phase == "Failed":
            # a Job with work left tries again, or waits in its queue to
            return None if self.preparation and self.is_preparing else _by_codes([self.prepare_pods[-1]])
        if not self.trainer and self.current and all(pod.is_over for pod in self.current.values()):
            return self._finished_by_pods()
        return None

    @cached_property
    def failures(self) -> Sequence[tuple[Mapping[str, Any], Condition]]:
        """The objects that have failed and the condition that says why: the one that trains, then what it made."""
        owned = [one for one in self._of_kinds() if not _is_preparation(one)]
        found = []
        for one in (self.trainer, *(other for other in owned if other is not self.trainer)):
            conditions = conditions_of(one)
            failed = conditions.get("Failed") or conditions.get("FailureTarget")
            if failed is not None and failed.status == "True":
                found.append((one, failed))
        return found

    @cached_property
    def is_preparing(self) -> bool:
        """Whether the preparation Job has work left."""
        conditions = conditions_of(self.preparation)
        if any(conditions[name].status == "True" for name in ("Complete", "Failed") if name in conditions):
            return False
        newest = self.prepare_pods[-1] if self.prepare_pods else None
        return newest.phase != "Succeeded" if newest is not None else bool(self.preparation)

    @cached_property
    def prepared(self) -> datetime | None:
        """When the preparation succeeded; None where it did not, or nothing says when."""
        done = conditions_of(self.preparation).get("Complete")
        return done.since if done is not None and done.status == "True" else None

    @cached_property
    def created(self) -> datetime | None:
        """When the run was submitted."""
        times = [_created(self.trainer), *(pod.created for pod in self.pods[:1]), _created(self.preparation)]
        return next((time for time in times if time is not None), None)

    @cached_property
    def events(self) -> Mapping[tuple[str, str], Sequence[Event]]:
        """Events by kind and name of what they are about, the newest last."""
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for manifest in self.evidence.events:
            event = _event(manifest)
            found[event.kind, event.name].append(event)
        for several in found.values():
            several.sort(key=lambda event: event.at)
        return found

    def events_of(self, pod: Pod) -> Sequence[Event]:
        """Events about a pod, the newest last."""
        return self.events.get(("Pod", pod.name), ())

    def log_of(self, pod: Pod) -> str:
        """The last lines of a pod."""
        log = self.evidence.logs.get(pod.name)
        return log if isinstance(log, str) else ""

    def trouble_of(self, pod: Pod) -> str:
        """The lines of its log that may tell of trouble."""
        found = self._troubles.get(pod.name)
        if found is None:
            found = self._troubles[pod.name] = troubled(self.log_of(pod))
        return found

    @cached_property
    def all_pods(self) -> tuple[Pod, ...]:
        """Preparation first: training waits for it."""
        return (*self.prepare_pods, *self.pods)

    @cached_property
    def newest(self) -> tuple[Pod, ...]:
        """The pods that count: the newest of the preparation, where that has work left, and of each node."""
        return (*(self.prepare_pods[-1:] if self.is_preparing else ()), *self.current.values())

    def is_past(self, pod: Pod) -> bool:
        """Whether what happened to a pod is history: it was replaced by one that lives or is still to start."""
        if self.finished is not None:
            return False
        if pod.role == labels.PREPARE_ROLE:
            return not self.is_preparing or pod is not self.prepare_pods[-1]
        newest = self.current.get(pod.node)
        return newest is not None and newest is not pod and not newest.is_over

    def _trainer(self) -> Mapping[str, Any]:
        for manifest in self._of_kinds():
            owned = any(owner.get("controller") for owner in maps(manifest, "metadata", "ownerReferences"))
            if not owned and not _is_preparation(manifest):
                return manifest
        return {}

    def _of_kinds(self) -> list[Mapping[str, Any]]:
        """Objects that train or prepare, and those that these made; owners before what they own."""
        return [one for kind in kinds.controlled().values() for one in self.objects.get(kind.resource.kind, ())]

    @cached_property
    def restarts_counted(self) -> int:
        """How often a controller says that it has started all pods again."""
        counting = [kind for kind in kinds.controlled().values() if kind.restarts_made]
        counts = (
            whole(one, *kind.restarts_made) for kind in counting for one in self.objects.get(kind.resource.kind, ())
        )
        return max((count or 0 for count in counts), default=0)

    def _finished_by_pods(self) -> Finished | None:
        """Bare pods: nobody but they can tell."""
        if len(self.current) < self.num_nodes:
            return None
        if all(pod.phase == "Succeeded" for pod in self.current.values()):
            return "succeeded"
        return _by_codes(self.current.values())


def _by_codes(pods: Iterable[Pod]) -> Finished:
    codes = {pod.ended.code for pod in pods if pod.ended is not None and pod.phase == "Failed"}
    return "stopped" if codes == {ExitCode.STOPPED} else "failed"


def _is_preparation(manifest: Mapping[str, Any]) -> bool:
    return text(manifest, "metadata", "labels", labels.ROLE) == labels.PREPARE_ROLE


def _by_words(words_: LastWords) -> Finished:
    if words_.outcome == "done":
        return "succeeded"
    return "stopped" if words_.exit_code == ExitCode.STOPPED or words_.outcome == "stopped" else "failed"


def _created(manifest: Mapping[str, Any]) -> datetime | None:
    return moment(at(manifest, "metadata").get("creationTimestamp"))


def _event(manifest: Mapping[str, Any]) -> Event:
    about = at(manifest, "involvedObject") or at(manifest, "regarding")
    times: Iterable[object] = (
        at(manifest, "series").get("lastObservedTime"),
        manifest.get("lastTimestamp"),
        manifest.get("deprecatedLastTimestamp"),
        manifest.get("eventTime"),
        manifest.get("firstTimestamp"),
        at(manifest, "metadata").get("creationTimestamp"),
    )
    return Event(
        kind=text(about, "kind"),
        name=text(about, "name"),
        reason=text(manifest, "reason"),
        message=text(manifest, "message") or text(manifest, "note"),
        at=next((time for time in map(moment, times) if time is not None), EARLIEST),
        warning=text(manifest, "type") == "Warning",
    )
