"""The warm pods among what a place shows of a name: which there are, and whether all of them run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.errors import ServiceError, UsageError
from rankzero.launch import kinds, labels
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import parse_pod
from rankzero.launch.render.container import IDLE_MODULE
from rankzero.launch.untyped_json import at, maps, text


@dataclass(frozen=True, slots=True)
class WarmPod:
    """A pod that waits for commands."""

    name: str
    node: int
    nproc: int
    """Processes that it is made for."""
    master: str
    """Where the first of them is, as this one reaches it."""
    made_by: str = ""
    """`user@machine`; nothing where nobody is named."""
    container: str = ""
    """The one of the pod that waits; others are the site's."""


def running(evidence: Evidence) -> list[WarmPod]:
    """All pods that were asked for, by their node. Raises UsageError where there are none or they are another run's,
    ServiceError where not all of them run."""
    must_be_warm(evidence)
    pods = [pod for pod in evidence.pods if labels.role_of(pod) == labels.NODE_ROLE and parse_pod(pod).is_running]
    by = made_by(evidence)
    found = {warm.node: warm for warm in (_warm(pod, by) for pod in pods)}
    wanted = max((int(_note(pod, labels.NODES) or 1) for pod in evidence.pods), default=1)
    if set(found) != set(range(wanted)):
        hint = "`rankzero dev up` starts what is missing; `rankzero status` says what it waits for"
        raise ServiceError(f"{len(found)} of {wanted} pods run", where=evidence.run, hint=hint)
    return [found[node] for node in range(wanted)]


def made_by(evidence: Evidence) -> str:
    """Who has made them: `user@machine`; nothing where nobody is named."""
    every = (*evidence.objects, *evidence.pods)
    return next((by for one in every if (by := _note(one, labels.SUBMITTED_BY))), "")


def must_be_warm(evidence: Evidence) -> None:
    """Raise UsageError where there is nothing, or a run that trains."""
    if not evidence.pods and not evidence.objects:
        raise UsageError("there are no warm pods of this name", where=evidence.run, hint="`rankzero dev up` makes them")
    specs = [at(pod, "spec") for pod in evidence.pods if labels.role_of(pod) == labels.NODE_ROLE]
    for manifest in evidence.objects:
        kind = kinds.kind_of(manifest)
        specs += [spec for spec, _ in kind.pod_specs(manifest)] if kind is not None else []
    if not all(_idles(spec) for spec in specs):
        hint = "`rankzero dev --name` names warm pods; runs have commands of their own: rankzero cancel, delete, logs"
        raise UsageError("this is a run that trains, and no warm pods", where=evidence.run, hint=hint)


def _idles(spec: Mapping[str, Any]) -> bool:
    return any(_waits(one) for one in maps(spec, "containers"))


def _waits(container: Mapping[str, Any]) -> bool:
    """By what it runs, however another version of rankzero has it started."""
    return IDLE_MODULE in (container.get("command") or ())


def _warm(pod: Manifest, by: str) -> WarmPod:
    values = {text(one, "name"): text(one, "value") for first in _containers(pod) for one in maps(first, "env")}
    nproc = int(_note(pod, labels.NPROC) or 1)
    name, master = text(pod, "metadata", "name"), values.get("RANKZERO_MASTER", "")
    return WarmPod(name, kinds.node_index(pod), nproc, master, by, text(_containers(pod)[0], "name"))


def _containers(pod: Manifest) -> list[Mapping[str, Any]]:
    return [one for one in maps(pod, "spec", "containers") if _waits(one)]


def _note(pod: Manifest, name: str) -> str:
    return text(pod, "metadata", "annotations", name)
