"""What stays and answers beside the runs: a Deployment with its Service, applied and waited for."""

from __future__ import annotations

from collections.abc import Sequence

from rankzero.errors import ConfigError, Problem, ServiceError
from rankzero.launch import labels
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import APPLY_PATCH, Api
from rankzero.launch.backends.kubernetes.apply import APPLY
from rankzero.launch.backends.kubernetes.resources import DEPLOYMENT, label, name_of, resource_of
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import parse_pod
from rankzero.launch.resource import POD
from rankzero.launch.untyped_json import at

READY_SECONDS, GLANCE_SECONDS = 300.0, 10.0


def serve(api: Api, objects: Sequence[Manifest], say: Say) -> str:
    """Bring all objects up to date; the last is the Deployment. Returns when a pod of it is ready.

    Raises ConfigError where an object of this name is somebody else's, ServiceError where none gets ready in
    READY_SECONDS.
    """
    there = [api.read(resource_of(one), str(one["metadata"]["name"])) for one in objects]
    foreign = [one for one in there if one is not None and label(one, labels.MANAGED_BY) != "rankzero"]
    if foreign:
        raise ConfigError(Problem("it exists already and is not rankzero's", name_of(one)) for one in foreign)
    for one in objects:
        name = str(one["metadata"]["name"])
        api.write("PATCH", resource_of(one), name, one, params=APPLY, content_type=APPLY_PATCH)
    deployment = objects[-1]
    _wait(api, deployment, say)
    return f"deployment/{deployment['metadata']['name']}"


def _wait(api: Api, deployment: Manifest, say: Say) -> None:
    name = str(deployment["metadata"]["name"])
    pods = ",".join(f"{key}={value}" for key, value in at(deployment, "spec", "selector", "matchLabels").items())
    deadline = api.clock.monotonic() + READY_SECONDS
    said: set[str] = set()
    chosen = {"fieldSelector": f"metadata.name={name}"}
    for change in api.follow(DEPLOYMENT, chosen, seconds=lambda: GLANCE_SECONDS):
        if change.items and _is_ready(change.items[-1]):
            return
        items, _ = api.list(POD, {"labelSelector": pods})
        waits = [f"{item['metadata']['name']} waits: {words}" for item in items if (words := parse_pod(item).waits_for)]
        for words in waits:
            if words not in said:
                said.add(words)
                say(f"  {words}")
        if api.clock.monotonic() >= deadline:
            hint = "; ".join(waits) or f"kubectl describe deployment {name} -n {api.place.namespace}"
            raise ServiceError(
                f"no pod of it was ready after {READY_SECONDS:.0f} s", where=name_of(deployment), hint=hint
            )


def _is_ready(deployment: Manifest) -> bool:
    """Whether a pod of the newest version answers."""
    status = at(deployment, "status")
    seen = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)
    return seen and int(status.get("updatedReplicas") or 0) > 0 and int(status.get("availableReplicas") or 0) > 0
