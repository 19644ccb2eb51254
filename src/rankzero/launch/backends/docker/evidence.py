"""What `docker inspect` says, in the shapes of the Kubernetes API. Pure.

A container carries the Pod that it stands for as a label, so that nothing has to be remembered elsewhere, and nothing
of its environment, where secrets are, is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from signal import SIGTERM
from typing import Any

from rankzero.errors import NEVER_RETRIED, ExitCode
from rankzero.launch import labels
from rankzero.launch.evidence import ABOUT_TO_START
from rankzero.launch.kinds.docker import NODE_LABEL
from rankzero.launch.labels import Manifest, prepare_name
from rankzero.launch.untyped_json import moment

POD = "rankzero.dev/docker-pod"
"""Container label: the Pod, as JSON."""
HASH = "rankzero.dev/docker-hash"
"""Container label: tells one rendering of a run from another."""
RESTARTS = "rankzero.dev/docker-restarts"
"""Container label: how many containers this one is the successor of."""
TERMINATION = "rankzero.dev/docker-termination"
"""Container label: the file on this machine that has the termination message."""
MOST_MESSAGE_BYTES = 4096
FINAL = frozenset({*NEVER_RETRIED, ExitCode.STOPPED, 128 + SIGTERM})
"""Exit codes after which a preparation is not tried again: it cannot succeed, or somebody has stopped it."""

_NEVER = "0001-01-01T00:00:00Z"


def label_of(inspected: Mapping[str, Any], name: str) -> str:
    """A container's label, or nothing."""
    return str((inspected["Config"].get("Labels") or {}).get(name, ""))


def run_of(inspected: Mapping[str, Any]) -> str:
    """The run that a container belongs to."""
    return label_of(inspected, labels.RUN)


def asked_for(inspected: Mapping[str, Any]) -> Manifest:
    """The Pod as it was submitted."""
    manifest: Manifest = json.loads(label_of(inspected, POD))
    return manifest


def is_active(inspected: Mapping[str, Any]) -> bool:
    """Whether a process of it runs."""
    return bool(inspected["State"]["Running"])


def has_started(inspected: Mapping[str, Any]) -> bool:
    """Whether it ever ran."""
    return str(inspected["State"].get("StartedAt", _NEVER)) != _NEVER


def is_waiting(inspected: Mapping[str, Any]) -> bool:
    """Whether it was made and not started yet, and docker has not refused that."""
    state = inspected["State"]
    return not has_started(inspected) and state["Status"] == "created" and not state.get("Error")


def is_under_way(containers: Iterable[Mapping[str, Any]], now: datetime) -> bool:
    """Whether a submit may be about to start some of a run's containers: nothing but time tells that it was ended. One
    that gives up leaves none that waits."""
    every = sorted(containers, key=lambda one: str(one["Created"]))
    if not any(map(is_waiting, every)):
        return False
    if any(map(is_active, every)):
        return True
    first = [pod_of(one)["status"] for one in every if label_of(one, labels.ROLE) == labels.PREPARE_ROLE]
    ends = first[-1]["containerStatuses"][0]["state"] if first and first[-1]["phase"] == "Failed" else {}
    if ends and ends["terminated"]["exitCode"] in FINAL:
        return False
    times = [moment(at) for one in every for at in (one["Created"], one["State"].get("FinishedAt"))]
    return any(at is not None and now - at < ABOUT_TO_START for at in times)


def pod_of(inspected: Mapping[str, Any], message: str = "") -> Manifest:
    """The Pod with its status. `message` is what it left when it ended."""
    asked = asked_for(inspected)
    metadata = {**asked["metadata"], "uid": inspected["Id"], "creationTimestamp": _time(inspected["Created"])}
    return {**asked, "metadata": metadata, "status": _status(inspected, asked, message)}


def objects_of(run: str, pods: Iterable[Manifest], *, tries_again: bool) -> list[Manifest]:
    """What a cluster would show besides pods: the ConfigMap without its data, and the preparation Job. That has not
    failed where somebody `tries_again`."""
    pods = list(pods)
    if not pods:
        return []
    first = min(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    metadata = {
        "name": run,
        "namespace": first["metadata"].get("namespace", "default"),
        "labels": {k: v for k, v in (first["metadata"].get("labels") or {}).items() if k not in _OF_PODS},
        "annotations": dict(first["metadata"].get("annotations") or {}),
        "creationTimestamp": first["metadata"]["creationTimestamp"],
    }
    found: list[Manifest] = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}]
    prepares = [pod for pod in pods if labels.role_of(pod) == labels.PREPARE_ROLE]
    if prepares:
        found.append(_job(metadata, prepare_name(run), prepares[-1], tries_again=tries_again))
    return found


_OF_PODS = (labels.ROLE, NODE_LABEL)


def _job(metadata: Mapping[str, Any], name: str, pod: Manifest, *, tries_again: bool) -> Manifest:
    status = pod["status"]
    ends = {"Succeeded": ("Complete", "succeeded"), "Failed": ("Failed", "failed")}
    condition, count = ends.get(status["phase"], ("", "active"))
    value: Manifest = {"startTime": status.get("startTime"), count: 1}
    if condition and not (condition == "Failed" and tries_again):
        ended = status["containerStatuses"][0]["state"]["terminated"]
        value["conditions"] = [{"type": condition, "status": "True", "lastTransitionTime": ended.get("finishedAt")}]
    own = {**metadata, "name": name, "labels": {**metadata["labels"], labels.ROLE: labels.PREPARE_ROLE}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "status": value}


def _status(inspected: Mapping[str, Any], asked: Manifest, message: str) -> Manifest:
    state = inspected["State"]
    (only,) = asked["spec"]["containers"]
    own, phase = _state(state, message)
    container = {
        "name": only["name"],
        "image": only["image"],
        "imageID": inspected["Image"],
        "containerID": f"docker://{inspected['Id']}",
        "ready": "running" in own,
        "started": has_started(inspected),
        "restartCount": int(label_of(inspected, RESTARTS) or 0),
        "state": own,
    }
    value: Manifest = {"phase": phase, "containerStatuses": [container], "startTime": _time(inspected["Created"])}
    networks = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    address = next((one.get("IPAddress") for one in networks.values() if one.get("IPAddress")), None)
    if address:
        value["podIP"] = address
    return value


def _state(state: Mapping[str, Any], message: str) -> tuple[Manifest, str]:
    """The container's state and the pod's phase."""
    if state["Running"]:
        return {"running": {"startedAt": _time(state["StartedAt"])}}, "Running"
    if state["Status"] == "created" and not state.get("Error"):
        return {"waiting": {"reason": "ContainerCreating"}}, "Pending"
    code = int(state["ExitCode"])
    reason = "Completed" if code == 0 else "Error"
    if state.get("OOMKilled"):
        reason = "OOMKilled"
    if state.get("Error") and state["Status"] == "created":
        reason, message = "StartError", str(state["Error"])
    ended: Manifest = {"exitCode": code, "reason": reason}
    for key, value in (("startedAt", state.get("StartedAt")), ("finishedAt", state.get("FinishedAt"))):
        if value and value != _NEVER:
            ended[key] = _time(value)
    if message:
        ended["message"] = message
    return {"terminated": ended}, "Succeeded" if code == 0 and reason == "Completed" else "Failed"


def _time(text: str) -> str:
    """Whole seconds, as the Kubernetes API writes them."""
    return re.sub(r"\.\d+", "", text)
