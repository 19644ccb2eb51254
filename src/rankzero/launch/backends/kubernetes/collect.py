"""Looking at runs: one pass over the API, in paged lists, into Evidence. Judges nothing and changes nothing."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rankzero.launch import labels
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    CONFIG_MAP,
    EVENT,
    NODE,
    SERVICE,
    STORAGE_CLASS,
    TEMPLATES,
    claims_of,
    is_training,
    label,
)
from rankzero.launch.evidence import Evidence, Refusal
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import Pod, parse_pod
from rankzero.launch.resource import POD, Resource

MOST_LOGS = 24
"""Pods whose last lines are fetched: a thousand failed pods fail for one reason."""
FEW_PODS = 16
MOST_LOG_BYTES = 64 * 1024
AT_ONCE = 8
MOST_NODES = 32
"""Read one by one; more are quicker in a list."""
_POD_NAME = re.compile(r"-\d+|-(master|worker)-\d+|-(\d+|node-0-\d+|prepare)-[a-z0-9]{5}")
"""What follows a run's name in that of its pods, of whichever kind it is, and all that does: `r-2` is another run."""
T = TypeVar("T")


def collect(api: Api, discovery: Discovery, run: str, *, log_lines: int) -> Evidence:
    """Everything about one run. What cannot be read is noted in `refused`. Raises ApiError."""
    ours = {"labelSelector": labels.selector(run)}
    kinds = [*discovery.training().values(), *(one for one in TEMPLATES if discovery.serves(one))]
    workloads = discovery.workloads()
    look = _Look(api)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # one after the other, a distant cluster takes seconds
        objects = [pool.submit(look.list, one, ours) for one in (*kinds, SERVICE, CONFIG_MAP)]
        pods = pool.submit(look.list, POD, ours)
        claims = pool.submit(look.list, CLAIM)
        events = pool.submit(look.list, EVENT)
        classes = pool.submit(look.list, STORAGE_CLASS, optional=True)
        queued = pool.submit(look.list, workloads, optional=True) if workloads is not None else None
        found = [_without_data(one) for each in objects for one in each.result() or ()]
        found_pods = pods.result() or []
        parsed = [parse_pod(pod) for pod in found_pods]
        nodes = pool.submit(look.nodes, parsed)
        logs = pool.map(lambda pod: look.tail(pod, log_lines), _worth_reading(parsed) if log_lines else ())
        mounted = claims_of([found, found_pods])
        found += [one for one in claims.result() or () if one["metadata"]["name"] in mounted]
        everything = [*found, *found_pods]
        return Evidence(
            run=run,
            now=api.now(),
            context=api.place.context,
            objects=tuple(found),
            pods=tuple(found_pods),
            events=tuple(_about(run, everything, events.result() or ())),
            nodes=_or_none(nodes.result(), tuple),
            workloads=tuple(_owned_by(everything, (queued.result() if queued is not None else None) or ())),
            storage_classes=_or_none(classes.result(), _names),
            logs={name: text for name, text in logs if text},
            refused=tuple(look.refused),
        )


def with_endings(found: Evidence, seen: Sequence[Manifest]) -> Evidence:
    """With what was `seen` to end and is gone by now, as soon as `ttl_seconds_after_finished` has it; unless another
    object trains the run since."""
    trained = {one["metadata"]["uid"] for one in seen if is_training(one)}
    if not trained or any(is_training(one) and one["metadata"]["uid"] not in trained for one in found.objects):
        return found
    uids = {one["metadata"]["uid"] for one in (*found.objects, *found.pods)}
    gone = [one for one in seen if one["metadata"]["uid"] not in uids]
    return replace(
        found,
        objects=(*found.objects, *(one for one in gone if one["kind"] != POD.kind)),
        pods=(*found.pods, *(one for one in gone if one["kind"] == POD.kind)),
    )


def all_runs(api: Api, discovery: Discovery) -> list[Evidence]:
    """Every run of the namespace by its objects and pods, in one list call for each kind."""
    any_run = {"labelSelector": labels.RUN}
    kinds = discovery.training().values()
    look = _Look(api)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pods = pool.submit(api.list, POD, any_run)
        listed = list(pool.map(lambda kind: look.list(kind, any_run), kinds))
        found = [*(one for each in listed for one in each or ()), *pods.result()[0]]
    by_run: dict[str, list[Manifest]] = {}
    for one in found:
        by_run.setdefault(str(label(one, labels.RUN)), []).append(one)
    now = api.now()
    return [
        Evidence(
            run=run,
            now=now,
            objects=tuple(one for one in members if one["kind"] != POD.kind),
            pods=tuple(one for one in members if one["kind"] == POD.kind),
        )
        for run, members in sorted(by_run.items())
    ]


@dataclass(slots=True)
class _Look:
    """Reads, and notes what may not be read instead of failing for it; so it does where the server fails over what a
    run is judged without."""

    api: Api
    refused: list[Refusal] = field(default_factory=list)

    def list(
        self, resource: Resource, params: Mapping[str, str] | None = None, *, optional: bool = False
    ) -> list[Manifest] | None:
        """All objects of a kind; None where that is not permitted, or the kind has gone."""
        try:
            return self.api.list(resource, params)[0]
        except ApiError as error:
            self._note(error, optional=optional)
            return None

    def nodes(self, pods: Sequence[Pod]) -> builtins.list[Manifest] | None:
        """The cluster's nodes that pods are on, and all of them where a pod has found none.

        None where that is not permitted; or where there are more than a page, so that what is missing says nothing.
        """
        names = sorted({pod.host for pod in pods if pod.host})
        try:
            if any(not pod.host and not pod.is_over for pod in pods) or len(names) > MOST_NODES:
                return self.api.page(NODE)
            found = [self.api.read(NODE, name) for name in names]
        except ApiError as error:
            self._note(error, optional=True)
            return None
        return [one for one in found if one is not None]

    def _note(self, error: ApiError, *, optional: bool) -> None:
        if error.status not in (403, 404) and not (optional and error.status >= 500):
            raise error
        self.refused.append(error.refusal)

    def tail(self, pod: Pod, count: int) -> tuple[str, str]:
        """A pod's name and its last lines: those of the instance before this one first, where it was restarted."""
        texts = [self._log(pod, count, previous=True)] if pod.restarts else []
        if pod.runs or not pod.restarts:
            texts.append(self._log(pod, count, previous=False))
        return pod.name, "\n".join(text for text in texts if text)

    def _log(self, pod: Pod, count: int, *, previous: bool) -> str:
        path = POD.path(self.api.place.namespace, pod.name, "log")
        params = {"container": pod.container, "tailLines": str(count), "limitBytes": str(MOST_LOG_BYTES)}
        params["timestamps"] = "true"  # the kubelet's, in UTC: what lines say of the time is by the pod's own clock
        try:
            return self.api.text(path, {**params, "previous": "true"} if previous else params)
        except ApiError as error:
            # 400: the container has no log (yet, or any more); the pod's status says more about that
            if error.status not in (400, 404):
                self.refused.append(error.refusal)
            return ""


def _worth_reading(pods: Sequence[Pod]) -> list[Pod]:
    """Node 0, which speaks of progress, then the preparation and what is unhealthy, up to a limit. Of few pods all are
    read, so that a silent one among them shows."""
    candidates = [pod for pod in pods if pod.has_log]

    def rank(pod: Pod) -> tuple[bool, bool, int]:
        return not (pod.role == labels.NODE_ROLE and pod.node == 0), not pod.is_unhealthy, pod.node

    few = len(candidates) <= FEW_PODS
    wanted = [pod for pod in candidates if few or not rank(pod)[0] or pod.is_unhealthy]
    return sorted(wanted, key=rank)[:MOST_LOGS]


def _about(run: str, objects: Sequence[Manifest], events: Iterable[Manifest]) -> list[Manifest]:
    """Events about these very objects, and about pods of the run that are gone by now; where nothing of it is left,
    about what had its name.

    Names say little: an older object had the same one, as the pod before this one has with some kinds, and those of a
    run `r-2` look like pods of `r`.
    """
    uids = {one["metadata"].get("uid") for one in objects}
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    found = []
    for event in events:
        about = event.get("involvedObject") or event.get("regarding") or {}
        name = str(about.get("name", ""))
        if about.get("kind") == POD.kind:
            is_named_so = name.startswith(run) and _POD_NAME.fullmatch(name, len(run)) is not None
            gone = is_named_so and (POD.kind, name) not in names
        else:
            gone = not objects and name == run
        this = about["uid"] in uids if about.get("uid") else (about.get("kind"), name) in names
        if this or gone:
            found.append(event)
    return found


def _owned_by(objects: Iterable[Manifest], workloads: Iterable[Manifest]) -> list[Manifest]:
    uids = {one["metadata"].get("uid") for one in objects}
    return [
        one
        for one in workloads
        if any(owner.get("uid") in uids for owner in one["metadata"].get("ownerReferences") or ())
    ]


def _without_data(manifest: Manifest) -> Manifest:
    if manifest["kind"] != CONFIG_MAP.kind:
        return manifest
    return {key: value for key, value in manifest.items() if key not in ("data", "binaryData")}


def _names(items: Iterable[Manifest]) -> tuple[str, ...]:
    return tuple(sorted(str(item["metadata"]["name"]) for item in items))


def _or_none(items: list[Manifest] | None, make: Callable[[list[Manifest]], T]) -> T | None:
    return None if items is None else make(items)
