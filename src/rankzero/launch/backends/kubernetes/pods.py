"""What a pod's status says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rankzero.launch.kinds import containers
from rankzero.launch.labels import PREPARE_ROLE, Manifest


def container_name(pod: Mapping[str, Any]) -> str:
    """The container that does the work; the others, if any, are the site's."""
    names = [str(one["name"]) for one in pod["spec"]["containers"]]
    return next((name for name in names if name in (*containers(), PREPARE_ROLE)), names[0])


def container_status(pod: Mapping[str, Any]) -> Manifest:
    """Status of that container; empty before it has one."""
    name = container_name(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((dict(one) for one in statuses if one.get("name") == name), {})


def phase(pod: Mapping[str, Any]) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether nothing of it will run again."""
    return phase(pod) in ("Succeeded", "Failed")


def restarts(pod: Mapping[str, Any]) -> int:
    """How many instances of the container came before this one."""
    return int(container_status(pod).get("restartCount", 0))


def is_running(pod: Mapping[str, Any]) -> bool:
    """Whether an instance of the container runs at this moment."""
    return "running" in (container_status(pod).get("state") or {})


def started_at(pod: Mapping[str, Any]) -> datetime | None:
    """When the newest instance started, to the second."""
    state = container_status(pod).get("state") or {}
    began = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    return datetime.fromisoformat(began) if isinstance(began, str) else None


def has_log(pod: Mapping[str, Any]) -> bool:
    """Whether its container has run at all."""
    status = container_status(pod)
    state = status.get("state") or {}
    return "running" in state or "terminated" in state or bool(status.get("restartCount"))


def is_unhealthy(pod: Mapping[str, Any]) -> bool:
    """Whether its log may say what went wrong."""
    status = container_status(pod)
    ended = (status.get("state") or {}).get("terminated") or {}
    return phase(pod) == "Failed" or bool(status.get("restartCount")) or bool(ended.get("exitCode"))


def waiting_for(pod: Mapping[str, Any]) -> str | None:
    """Why it does not run yet, in a few words; None where it runs or has ended."""
    if phase(pod) != "Pending" and not (container_status(pod).get("state") or {}).get("waiting"):
        return None
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting")
        if waiting:
            return _words(str(waiting.get("reason") or "waiting"), str(waiting.get("message") or ""))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _words(str(condition.get("reason") or "not scheduled"), str(condition.get("message") or ""))
    return "Pending"


def _words(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason
