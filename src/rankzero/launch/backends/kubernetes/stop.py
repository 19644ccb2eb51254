"""Stopping, starting again and removing what runs. Knows the objects that train and Kueue's say in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from rankzero.errors import ConfigError, Problem, RankzeroError
from rankzero.launch import labels
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import MERGE_PATCH, WRITE, Api, list_each
from rankzero.launch.backends.kubernetes.claims import deletable_claims, noted_claims
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError, as_error
from rankzero.launch.backends.kubernetes.kueue import is_active, set_active, workloads
from rankzero.launch.backends.kubernetes.resources import (
    ADDED,
    CLAIM,
    CONFIG_MAP,
    CORE,
    SECRET,
    TEMPLATES,
    TRAINING,
    claims_of,
    ended,
    grace_seconds,
    is_owned,
    is_preparation,
    is_queued_without_pods,
    is_suspended,
    is_training,
    label,
    name_of,
    resource_of,
    suspension,
)
from rankzero.launch.backends.kubernetes.wait import MARGIN_SECONDS, wait_until_gone
from rankzero.launch.kinds import kind_of
from rankzero.launch.labels import Manifest, submission_name
from rankzero.launch.pods import parse_pod
from rankzero.launch.resource import JOB, POD, Resource

FOREGROUND: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}


def training_objects(api: Api, discovery: Discovery, run: str) -> list[Manifest]:
    """The objects that train a run; more than one only while its kind is being changed."""
    served = discovery.training().values()
    return [one for one in list_each(api, list(served), {"labelSelector": labels.selector(run)}) if is_training(one)]


def must_have_seen(api: Api, discovery: Discovery, run: str, seen: Collection[str], signs: Iterable[Manifest]) -> None:
    """Raise where a run may go on by an object that was not seen: of a kind that its pods or its ConfigMap, `signs`,
    name, and that is not among `seen`. ApiError where this user may not look for that kind; ConfigError where the
    cluster serves it no longer and pods live all the same. Without those pods nothing is left that could go on."""
    for resource, those in unseen(seen, signs).items():
        alive = [name_of(one) for one in those if lives(one)]
        if not _can_be_seen(api, discovery, resource, run) and alive:
            raise _unserved(resource, alive[0])


def _can_be_seen(api: Api, discovery: Discovery, resource: Resource, run: str) -> bool:
    """False for a kind that the cluster does not serve. Discovery is asked first: to who may not list it the server
    says 403, whether it serves it or not."""
    if not discovery.serves(resource):
        return False
    try:
        api.list(resource, {"labelSelector": labels.selector(run)})
    except ApiError as error:
        if error.status != 404:  # it was uninstalled meanwhile
            raise
        return False
    return True


def unseen(seen: Collection[str], signs: Iterable[Manifest]) -> dict[Resource, list[Manifest]]:
    """The kinds that train which objects of a run name, without those that were seen."""
    found: dict[Resource, list[Manifest]] = {}
    for one in signs:
        resource = TRAINING.get(label(one, labels.KIND) or "")
        if resource is not None and resource.kind not in seen:
            found.setdefault(resource, []).append(one)
    return found


def _unserved(resource: Resource, pod: str) -> ConfigError:
    what = f"it lives, and this cluster does not serve the {resource.kind} ({resource.api_version}) that it is of"
    hint = "have that version served again; or, where it was uninstalled, wait until the pods of the run have gone"
    return ConfigError(what, where=pod, hint=hint)


def lives(manifest: Manifest) -> bool:
    """Whether it is a pod that has not ended and is not told to."""
    if manifest["kind"] != POD.kind:
        return False
    pod = parse_pod(manifest)
    return not pod.is_over and pod.deleting_since is None


def remove(api: Api, manifest: Manifest, *, run: str | None) -> bool:
    """Delete an object with all that it made, and wait until it is gone; with `run`, until the run's pods are too.
    False where the name is another's by now, or a claim has changed."""
    resource, uid = resource_of(manifest), str(manifest["metadata"]["uid"])
    name = str(manifest["metadata"]["name"])
    pods, grace = _pods_of(api, manifest, run), _grace(api, manifest)
    begun = _delete(api, manifest)
    if begun != "deleting":
        return begun == "gone"
    seconds = grace + MARGIN_SECONDS
    wait_until_gone(api, resource, {"fieldSelector": f"metadata.name={name}"}, {uid}, seconds)
    if pods and run is not None:  # a pod that is still ending holds the run directory
        wait_until_gone(api, POD, {"labelSelector": labels.selector(run)}, pods, seconds)
    return True


def _delete(api: Api, manifest: Manifest) -> Literal["deleting", "gone", "another"]:
    """Begin to delete this very object. A claim is deleted as it was read: whoever notes on it that it is used keeps
    it; controllers change other objects all the time."""
    name, metadata = str(manifest["metadata"]["name"]), manifest["metadata"]
    exact = ("uid", "resourceVersion") if manifest["kind"] == CLAIM.kind else ("uid",)
    conditions = {key: metadata[key] for key in exact}
    try:
        api.write("DELETE", resource_of(manifest), name, {**FOREGROUND, "preconditions": conditions})
    except ApiError as error:
        if error.status == 404:
            return "gone"
        if error.status == 409 and "recondition" in error.refusal.message:
            return "another"
        raise
    return "deleting"


def _grace(api: Api, manifest: Manifest) -> int:
    """How long its pods may take to leave; some kinds have them described by another object of their name."""
    kind = kind_of(manifest)
    described = None
    if kind is not None and kind.template is not None:
        described = api.read(kind.template.resource, str(manifest["metadata"]["name"]))
    return grace_seconds([manifest, described])


def _pods_of(api: Api, manifest: Manifest, run: str | None) -> set[str]:
    """Pods that must be gone before others take their place."""
    if run is None:
        return set()
    role = labels.PREPARE_ROLE if is_preparation(manifest) else labels.NODE_ROLE
    selector = {"labelSelector": f"{labels.selector(run)},{labels.ROLE}={role}"}
    return {str(pod["metadata"]["uid"]) for pod in api.list(POD, selector)[0] if is_owned(pod)}


def start_again(api: Api, discovery: Discovery, there: Manifest, rendered: Manifest) -> str:
    """Let a stopped object have its pods back. Returns what was done, in words; nothing where we may not."""
    try:
        waiting = workloads(api, discovery, there)
    except ApiError as error:
        if error.status != 403:
            raise
        if label(there, labels.QUEUE) and is_queued_without_pods(there):  # made again it would be the last of all
            run = label(there, labels.RUN)
            return (
                "waits in its queue; you may not list Workloads, and where somebody has put its own aside (spec.active:"
                f" false), `rankzero cancel {run}` and this command again put it back"
            )
        waiting = []  # nothing of ours is in a queue, or Kueue hears of it by its pods
    aside = [one for one in waiting if not is_active(one)]
    try:
        for workload in aside:  # Kueue decides when; it only has to be allowed to
            set_active(api, discovery, workload, active=True)
    except ApiError as error:
        if error.status != 403:
            raise
        return ""
    if waiting and is_queued_without_pods(there):
        return "is back in its queue" if aside else "waits in its queue"
    _patch(api, there, suspension(rendered, suspend=False))
    return "started again"


def cancel(api: Api, discovery: Discovery, run: str, say: Say) -> None:
    """Stop a run's pods, with their grace period. What is saved stays, and so do all objects."""
    selector = {"labelSelector": labels.selector(run)}
    jobs = [one for one in api.list(JOB, selector)[0] if is_preparation(one)]
    trained = training_objects(api, discovery, run)
    signs = [one for resource in (POD, CONFIG_MAP) for one in _seen(api, resource, selector) or ()]
    must_have_seen(api, discovery, run, {one["kind"] for one in trained}, signs)
    if not jobs and not trained:
        say(_nothing_of(api, discovery, run))
    for one in [*jobs, *trained]:
        if ended(one) is not None:
            say(f"{name_of(one)} has ended already ({ended(one)})")
            continue
        grace = _grace(api, one)
        if _put_aside(api, discovery, one):
            say(f"{name_of(one)} is told to stop; its pods save and leave within {grace} s")
            continue
        _delete(api, one)
        say(
            f"{name_of(one)} is removed, since Kueue starts again what is suspended and you may not patch its Workload;"
            f" its pods save and leave within {grace} s, and submitting again continues from there"
        )


def _nothing_of(api: Api, discovery: Discovery, run: str) -> str:
    """That there is nothing to stop. Who may look neither for all that trains nor for all signs of it is told so."""
    selector = {"labelSelector": labels.selector(run)}

    def hidden(resources: Iterable[Resource]) -> list[str]:
        return [one.title for one in resources if _seen(api, one, selector) is None]

    trains, signs = hidden(discovery.training().values()), hidden((POD, CONFIG_MAP))
    if not trains or not signs:
        return f"nothing of {run} runs or waits here"
    what = ", ".join(sorted((*trains, *signs)))
    return f"nothing that you may see of {run} runs or waits here; not permitted to look for {what}"


def _put_aside(api: Api, discovery: Discovery, manifest: Manifest) -> bool:
    """Tell an object to have no pods; False where we may not.

    While its Workload is admitted, Kueue takes back whoever's suspension of the object itself. What it honours is a
    Workload that is not active, and that only its administrators' roles may write.
    """
    if not is_queued_without_pods(manifest):
        if not is_suspended(manifest):
            _patch(api, manifest, suspension(manifest, suspend=True))
        return True
    try:
        waiting = workloads(api, discovery, manifest)
        for workload in waiting:
            set_active(api, discovery, workload, active=False)
    except ApiError as error:
        if error.status != 403:
            raise
        if label(manifest, labels.QUEUE) is not None:
            return False
        waiting = []  # nothing of ours is in a queue
    if not waiting and not is_suspended(manifest):
        _patch(api, manifest, suspension(manifest, suspend=True))
    return True


def delete(api: Api, discovery: Discovery, run: str, *, claims: bool, say: Say) -> list[str]:
    """Remove everything that submit made for a run. Returns what was removed; an error names what was until then."""
    removed: list[str] = []
    try:
        for one in _parts(api, discovery, run, claims=claims, say=say):
            if remove(api, one, run=run if is_training(one) or is_preparation(one) else None):
                removed.append(name_of(one))
    except (ApiError, RankzeroError) as error:
        together = as_error(error, api.place) if isinstance(error, ApiError) else error
        account = Problem(f"removed: {', '.join(removed) or 'nothing yet'}", hint="the same command removes the rest")
        raise type(together)([*together.problems, account]) from error
    return removed


def _parts(api: Api, discovery: Discovery, run: str, *, claims: bool, say: Say) -> Iterator[Manifest]:
    """What there is to remove, in the order in which it goes: what runs, what that needs, and what it leaves."""
    selector = {"labelSelector": labels.selector(run)}
    trained = training_objects(api, discovery, run)
    prepared = [one for one in api.list(JOB, selector)[0] if is_preparation(one)]
    pods = api.list(POD, selector)[0]
    signs = [*pods, *(_seen(api, CONFIG_MAP, selector) or ())]
    must_have_seen(api, discovery, run, {one["kind"] for one in trained}, signs)
    templates = _templates(api, discovery, selector, trained, say)
    noted = noted_claims(api, run)
    mounted = {*claims_of([*trained, *prepared, *pods, *templates]), *(noted or ())}
    for one in [*trained, *prepared]:
        say(f"removing {name_of(one)}; running pods have {_grace(api, one)} s to save")
        yield one
    yield from templates
    for resource in CORE:
        yield from _listed(api, resource, selector, say)
    for resource in (one for one in ADDED if discovery.serves(one)):  # most who may not look have never made one
        yield from _listed(api, resource, selector, lambda _line: None)
    yield from submission_secret(api, run, say)
    yield from (pod for pod in pods if not is_owned(pod))
    if claims and noted is None and not mounted:
        say(_not_seen(CLAIM))
    elif claims:
        yield from deletable_claims(api, discovery, run, mounted, say)
    elif mounted:
        say(f"kept with all that is in them: {', '.join(f'{CLAIM.kind}/{name}' for name in sorted(mounted))}")


def _templates(
    api: Api, discovery: Discovery, selector: dict[str, str], trained: list[Manifest], say: Say
) -> list[Manifest]:
    """Few kinds have one; whoever may not list them has none, unless the run is of such a kind."""
    used = {kind.template for one in trained if (kind := kind_of(one)) is not None}
    own = {template.resource for template in used if template is not None}
    return [
        one
        for resource in TEMPLATES
        if discovery.serves(resource)
        for one in _listed(api, resource, selector, say if resource in own else lambda _line: None)
    ]


def submission_secret(api: Api, run: str, say: Say) -> Iterator[Manifest]:
    """The one that submit has made, where it may be looked for."""
    try:
        secret = api.read(SECRET, submission_name(run))
    except ApiError as error:
        if error.status != 403:
            raise
        say(f"not permitted to look for {SECRET.kind}/{submission_name(run)}; it stays, where there is one")
        return
    if secret is not None and label(secret, labels.RUN) == run:
        yield secret


def _seen(api: Api, resource: Resource, selector: dict[str, str]) -> list[Manifest] | None:
    """All of a kind; None where that is not permitted."""
    try:
        return api.list(resource, selector)[0]
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None if error.status == 403 else []


def _listed(api: Api, resource: Resource, selector: dict[str, str], say: Say) -> list[Manifest]:
    try:
        return [one for one in api.list(resource, selector)[0] if not is_owned(one)]
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        say(_not_seen(resource))
        return []


def _not_seen(resource: Resource) -> str:
    return f"not permitted to look for {resource.title}; any that the run has stay"


def _patch(api: Api, manifest: Manifest, body: Manifest) -> None:
    name = str(manifest["metadata"]["name"])
    api.write("PATCH", resource_of(manifest), name, body, params=WRITE, content_type=MERGE_PATCH)
