"""Waiting, aloud: until objects are gone, until a preparation is over. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.errors import ServiceError, StoppedError
from rankzero.launch import labels
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import WATCH_SECONDS, Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.kueue import is_queued
from rankzero.launch.backends.kubernetes.resources import EVENT, ended, is_suspended, label, name_of
from rankzero.launch.backends.preparation import preparation_failed
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import Pod, parse_pod
from rankzero.launch.refusals import Asked, reason_in
from rankzero.launch.resource import JOB, POD, Resource
from rankzero.launch.untyped_json import text

MARGIN_SECONDS = 120
"""On top of the pods' grace period: for the controllers, and for nodes to say that a pod is gone."""
GLANCE_SECONDS = 15
"""How often a waiting preparation's pods are looked at."""


def wait_until_gone(api: Api, resource: Resource, selector: dict[str, str], uids: set[str], seconds: float) -> None:
    """Until none of the objects with these uids is left. Raises ServiceError where that takes longer than `seconds`."""
    deadline = api.clock.monotonic() + seconds
    left = dict.fromkeys(uids)
    names: dict[str, Manifest] = {}
    for change in api.follow(resource, selector, seconds=lambda: min(WATCH_SECONDS, deadline - api.clock.monotonic())):
        found = {str(item["metadata"].get("uid")): item for item in change.items}
        names |= found
        if change.type == "SYNC":
            left = {uid: None for uid in left if uid in found}
        elif change.type == "DELETED":
            for uid in found:
                left.pop(uid, None)
        if not left:
            return
        if api.clock.monotonic() >= deadline:
            raise _stuck([names[uid] for uid in left if uid in names], seconds, api)


def _stuck(items: list[Manifest], seconds: float, api: Api) -> ServiceError:
    first = items[0] if items else None
    words = ", ".join(name_of(item) for item in items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
    host = ((first or {}).get("spec") or {}).get("nodeName")
    finalizers = ((first or {}).get("metadata") or {}).get("finalizers") or ()
    why = f" (host {host})" if host else f" (finalizers: {', '.join(finalizers)})" if finalizers else ""
    there = f"-n {api.place.namespace}"
    hint = "the same command continues once it is gone; " + (
        f"if its host is lost: {api.place.kubectl} delete pod {first['metadata']['name']} {there} --force"
        if first is not None and first["kind"] == POD.kind
        else "a controller that should remove it is not running, or a pod's host is lost"
    )
    return ServiceError(f"deleted {seconds:.0f} s ago and still there{why}", where=words, hint=hint)


def wait_until_prepared(api: Api, discovery: Discovery, run: str, preparation: Manifest, say: Say) -> None:
    """Until the preparation Job has succeeded. Says what it waits for; raises PreparationError, StoppedError or
    ServiceError."""
    job = str(preparation["metadata"]["name"])
    said: set[str] = set()
    say(f"preparing: model and data are fetched before the run starts ({JOB.kind}/{job})")
    pods = f"{labels.selector(run)},{labels.ROLE}={labels.PREPARE_ROLE}"
    there: Manifest = {}
    for change in api.follow(JOB, {"fieldSelector": f"metadata.name={job}"}, seconds=lambda: GLANCE_SECONDS):
        if change.type == "DELETED" or (change.type == "SYNC" and not change.items):
            hint = "somebody else deleted it; the same command makes it again"
            raise ServiceError("it was deleted before it had ended", where=f"{JOB.kind}/{job}", hint=hint)
        there = change.items[-1] if change.items else there
        outcome = ended(there)
        if outcome == "complete":
            say("prepared")
            return
        items, _ = api.list(POD, {"labelSelector": pods}, patient=True)
        if outcome == "failed":
            raise preparation_failed(job, items)
        for words in _reasons(api, discovery, run, there, items):
            if words not in said:
                said.add(words)
                say(f"  {words}")


def _reasons(api: Api, discovery: Discovery, run: str, job: Manifest, pods: list[Manifest]) -> Iterator[str]:
    """What a preparation that has not ended waits for. Raises StoppedError where that is nothing any more."""
    if is_suspended(job):  # taken back by Kueue it has not failed, and comes to its turn again
        if not is_queued(api, discovery, job):
            hint = "submit again continues: what was fetched is kept"
            raise StoppedError("it was stopped before it had ended", where=name_of(job), hint=hint)
        yield f"{name_of(job)} waits in queue {label(job, labels.QUEUE)}; `rankzero status {run}` says for what"
    seen = [parse_pod(pod) for pod in pods]
    for pod in seen:
        yield from waits(run, pod)
    if all(pod.is_over for pod in seen):
        yield from _refused(api, job)


def waits(run: str, pod: Pod) -> Iterator[str]:
    """What a pod waits for, and where that is told with a message, as it is of what may never come, who explains it."""
    if pod.waits_for is not None:
        yield f"{pod.name} waits: {pod.waits_for}"
        if ": " in pod.waits_for:
            yield f"  `rankzero status {run}` says what to do about that"


def _refused(api: Api, job: Manifest) -> Iterator[str]:
    """Why the API lets a Job's controller make no pod, in words that stay the same while the reason does. Of this very
    Job: events of an older one of its name may still be there."""
    try:
        about = {"fieldSelector": f"involvedObject.uid={job['metadata']['uid']}"}
        events, _ = api.list(EVENT, about, patient=True)
    except ApiError as error:
        if error.status != 403:
            raise
        return  # who may not read events waits as before
    name = str(job["metadata"]["name"])
    for event in events:
        if event.get("reason") == "FailedCreate":
            of_a_try = rf"\b{re.escape(name)}-[a-z0-9]{{5}}\b"
            message = re.sub(of_a_try, name, text(event, "message"))
            cannot = f"{name_of(job)} cannot make its pod"
            found = reason_in(message, Asked(cannot, kind=JOB.kind))
            yield f"{cannot}: {message}" if found is None else f"{found.cause}; {found.fix}"
