"""Pods as the API shows them, made plain: which node, in what state, how they ended, what they said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rankzero.errors import NEVER_RETRIED, ExitCode
from rankzero.launch import kinds, labels
from rankzero.launch.labels import Manifest
from rankzero.launch.last_words import LastWords, parse_last_words
from rankzero.launch.untyped_json import at, maps, moment, text, whole, words

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SHM_MOUNT = "/dev/shm"
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
"""Of what says no time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    code: int | None
    """Ours without the offset, where it is one of ours."""
    reason: str
    signal: int | None
    started: datetime | None
    finished: datetime | None
    message: str
    words: LastWords | None
    """None where the message is not ours: then `message` is the tail of the log, or the runtime's."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a pod or of any other object."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod."""

    name: str
    namespace: str
    node: int
    """Which node of the run it is."""
    role: str
    phase: str
    reason: str
    message: str
    host: str
    """The cluster's node that it is on; empty where it has none yet."""
    created: datetime | None
    deleting_since: datetime | None
    grace: int
    container: str
    """Name of the container that trains or prepares; others, if any, are the site's."""
    runs: bool
    """Whether an instance of it runs at this moment, though the pod may be told to leave."""
    waiting: str
    """Reason for which the container is not running: ContainerCreating, ImagePullBackOff …"""
    waiting_message: str
    running_since: datetime | None
    ended: Ended | None
    """How the container ended, where it is not running."""
    before: Ended | None
    """How its last instance ended, where it was started again."""
    restarts: int
    image: str
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    shm: str = ""
    """Size of /dev/shm; empty: not limited."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Names of the volumes of the spec, by claim."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """Values of NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; no other variable's value is kept."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Names of environment variables, by `secret` and by `secret/key`."""
    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Any], ...] = ()
    """Of its required node affinity: hosts meet one of them."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    gates: tuple[str, ...] = ()
    """Scheduling gates."""
    init: str = ""
    """The init container that `waiting` and `image` are about; empty: the container that trains or prepares."""
    beside: tuple[str, ...] = ()
    """Other containers that run."""
    finalizers: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether its container runs."""
        return self.phase == "Running" and self.running_since is not None and self.deleting_since is None

    @property
    def is_over(self) -> bool:
        """Whether it will never run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def began(self) -> datetime | None:
        """When the newest instance of its container started, to the second."""
        return self.running_since or (self.ended.started if self.ended is not None else None)

    @property
    def has_log(self) -> bool:
        """Whether its container has run at all."""
        return bool(self.restarts) or (not self.init and (self.runs or self.ended is not None))

    @property
    def is_unhealthy(self) -> bool:
        """Whether its log may say what went wrong."""
        return self.phase == "Failed" or bool(self.restarts) or bool(self.ended is not None and self.ended.code)

    @property
    def waits_for(self) -> str | None:
        """Why it does not run yet, in a few words; None where it runs or has ended."""
        if self.waiting:
            return _reason(self.waiting, self.waiting_message)
        if self.phase != "Pending":
            return None
        placed = self.conditions.get("PodScheduled")
        if placed is not None and placed.status == "False":
            return _reason(placed.reason or "not scheduled", placed.message)
        return "Pending"

    @property
    def title(self) -> str:
        """How findings speak of it."""
        own = f"node {self.node}" if self.role == labels.NODE_ROLE else "the preparation pod"
        return f"init container {self.init} of {own}" if self.init else own

    @property
    def endings(self) -> tuple[Ended, ...]:
        """How its container ended, the newest first."""
        return tuple(end for end in (self.ended, self.before) if end is not None)


def parse_pod(manifest: Manifest) -> Pod:
    """Make a pod plain. Nothing is required of it."""
    metadata, spec, status = at(manifest, "metadata"), at(manifest, "spec"), at(manifest, "status")
    own_labels = words(at(metadata, "labels"))
    name = text(metadata, "name")
    marks = {"labels": own_labels, "annotations": words(at(metadata, "annotations"))}
    plain = {"metadata": {"name": name if name.isascii() else "", **marks}}
    kind = kinds.kind_of_pod(plain)
    container, state, init = _container(spec, status)
    offset = kind.retry_exit_offset if kind is not None else 0
    resources = at(container, "resources")
    own, before = at(state, "state"), at(state, "lastState")
    return Pod(
        name=name,
        namespace=text(metadata, "namespace"),
        node=kinds.node_index(plain),
        role=own_labels.get(labels.ROLE, labels.NODE_ROLE),
        phase=text(status, "phase") or "Pending",
        reason=text(status, "reason"),
        message=text(status, "message"),
        host=text(spec, "nodeName"),
        created=moment(metadata.get("creationTimestamp")),
        deleting_since=moment(metadata.get("deletionTimestamp")),
        grace=whole(spec, "terminationGracePeriodSeconds") or 30,
        container=text(container, "name"),
        runs="running" in own and not init,
        waiting=text(own, "waiting", "reason"),
        waiting_message=text(own, "waiting", "message"),
        running_since=moment(at(own, "running").get("startedAt")),
        ended=_ended(at(own, "terminated"), offset),
        before=_ended(at(before, "terminated"), offset),
        restarts=whole(state, "restartCount") or 0,
        image=text(state, "image") if init else text(container, "image"),
        conditions=conditions_of(manifest),
        requests={**words(at(resources, "limits")), **words(at(resources, "requests"))},
        limits=words(at(resources, "limits")),
        shm=_shm(spec, container),
        claims={
            text(volume, "persistentVolumeClaim", "claimName"): text(volume, "name")
            for volume in maps(spec, "volumes")
            if text(volume, "persistentVolumeClaim", "claimName")
        },
        interfaces={
            text(variable, "name"): text(variable, "value")
            for variable in maps(container, "env")
            if text(variable, "name").endswith("_SOCKET_IFNAME")
        },
        secrets=_secrets(container),
        selector=words(at(spec, "nodeSelector")),
        terms=tuple(maps(at(spec, "affinity", "nodeAffinity", _REQUIRED), "nodeSelectorTerms")),
        tolerations=tuple(maps(spec, "tolerations")),
        gates=tuple(text(gate, "name") for gate in maps(spec, "schedulingGates")),
        init=init,
        beside=tuple(
            text(other, "name")
            for other in maps(status, "containerStatuses")
            if other is not state and at(other, "state", "running")
        ),
        finalizers=_texts(metadata.get("finalizers")),
    )


def conditions_of(manifest: object) -> dict[str, Condition]:
    """Conditions of any object, by type."""
    return {
        text(condition, "type"): Condition(
            text(condition, "type"),
            text(condition, "status"),
            text(condition, "reason"),
            text(condition, "message"),
            moment(condition.get("lastTransitionTime")),
        )
        for condition in maps(manifest, "status", "conditions")
    }


def _reason(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def _container(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """The container that trains or prepares, its state, and no name; or the state and name of an init container that
    has not let it start."""
    wanted = (*kinds.containers(), labels.PREPARE_ROLE)
    containers = list(maps(spec, "containers"))
    own = next((one for one in containers if text(one, "name") in wanted), containers[0] if containers else {})
    states = {text(state, "name"): state for state in maps(status, "containerStatuses")}
    state = states.get(text(own, "name")) or next((states[name] for name in wanted if name in states), {})
    if text(state, "state", "waiting", "reason") in ("", "PodInitializing") and not at(state, "state", "running"):
        for first in maps(status, "initContainerStatuses"):
            stuck = text(first, "state", "waiting", "reason")
            if (stuck and stuck != "PodInitializing") or whole(first, "state", "terminated", "exitCode"):
                return own, {**first, "restartCount": state.get("restartCount")}, text(first, "name")
    return own, state, ""


def _ended(state: Mapping[str, Any], offset: int) -> Ended | None:
    if not state:
        return None
    message = text(state, "message")
    last_words = parse_last_words(message)
    code = whole(state, "exitCode")
    if offset and code is not None and code - offset in {*ExitCode} - NEVER_RETRIED - {ExitCode.DONE}:
        code -= offset
    if last_words is not None and last_words.exit_code is not None:
        code = last_words.exit_code
    return Ended(
        code=code,
        reason=text(state, "reason"),
        signal=whole(state, "signal"),
        started=moment(state.get("startedAt")),
        finished=moment(state.get("finishedAt")),
        message="" if last_words is not None else message,
        words=last_words,
    )


def _shm(spec: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    name = next((text(m, "name") for m in maps(container, "volumeMounts") if text(m, "mountPath") == SHM_MOUNT), "")
    return next(
        (text(v, "emptyDir", "sizeLimit") for v in maps(spec, "volumes") if name and text(v, "name") == name), ""
    )


def _secrets(container: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in maps(container, "env"):
        reference = at(variable, "valueFrom", "secretKeyRef")
        if reference:
            name, key = text(reference, "name"), text(reference, "key")
            found.setdefault(name, text(variable, "name"))
            found[f"{name}/{key}"] = text(variable, "name")
    return found
