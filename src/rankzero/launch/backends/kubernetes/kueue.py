"""Kueue's say in an object: its Workloads, whether it waits for them, and taking it out of its queue and back."""

from __future__ import annotations

from rankzero.launch import labels
from rankzero.launch.backends.kubernetes.api import MERGE_PATCH, WRITE, Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import is_queued_without_pods, label, name_of
from rankzero.launch.labels import Manifest


def workloads(api: Api, discovery: Discovery, manifest: Manifest, *, patient: bool = False) -> list[Manifest]:
    """Kueue's Workloads of an object. `patient` as in `Api.list`.

    Where the server fails over all of them, as it does while Kueue's webhook is down, one that names no queue is taken
    to have none, which is said."""
    resource, queued = discovery.workloads(), label(manifest, labels.QUEUE) is not None
    if resource is None:
        return []
    try:
        found, _ = api.list(resource, patient=patient and queued)
    except ApiError as error:
        if not queued and error.status >= 500:
            api.tell(f"{error}; {name_of(manifest)} names no queue, and is taken to be in none")
            return []
        if queued or not patient:
            raise
        found, _ = api.list(resource, patient=True)  # a silence, which is waited out
    uid = manifest["metadata"].get("uid")
    return [
        one for one in found if any(owner.get("uid") == uid for owner in one["metadata"].get("ownerReferences") or ())
    ]


def is_queued(api: Api, discovery: Discovery, manifest: Manifest) -> bool:
    """Whether a suspended object waits for Kueue, which has not been told to leave it alone; for who follows a run.

    Who may not see Workloads goes by the queue's label: what they cancel is removed (stop.py).
    """
    if not is_queued_without_pods(manifest):
        return False
    try:
        waiting = workloads(api, discovery, manifest, patient=True)
    except ApiError as error:
        if error.status != 403:
            raise
        waiting = []
    if waiting:
        return all(map(is_active, waiting))
    return label(manifest, labels.QUEUE) is not None


def is_active(workload: Manifest) -> bool:
    """Whether Kueue may start what the Workload stands for."""
    return workload["spec"].get("active", True) is not False


def set_active(api: Api, discovery: Discovery, workload: Manifest, *, active: bool) -> None:
    """Have Kueue leave it alone, or start it when there is room. Raises ApiError."""
    resource = discovery.workloads()
    if resource is not None and is_active(workload) != active:
        body: Manifest = {"spec": {"active": active}}
        name = str(workload["metadata"]["name"])
        api.write("PATCH", resource, name, body, params=WRITE, content_type=MERGE_PATCH)
