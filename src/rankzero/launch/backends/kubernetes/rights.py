"""Which of the rights that commands use somebody lacks. Asks the server, which answers without changing anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from rankzero.launch.backends.kubernetes.api import ATTEMPTS, Api
from rankzero.launch.backends.kubernetes.collect import AT_ONCE
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import CLAIM, CONFIG_MAP, EVENT, SECRET, SERVICE, resource_of
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import JOB, POD, Resource
from rankzero.launch.survey import Doubt
from rankzero.launch.untyped_json import at

REVIEW = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)
_READING = ("get", "list", "watch")
_ALL = (*_READING, "create", "patch", "delete")
_OF_KIND = {
    CLAIM.kind: ("get", "list", "create", "patch"),
    POD.kind: _READING,
    EVENT.kind: ("list",),
}
"""Else all: whatever a run is made of is made, followed and removed."""
_PARTS = {POD.kind: (("log", "get"),), "StatefulSet": (("scale", "patch"), ("status", "patch"))}


def used(objects: Sequence[Manifest]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Verbs that submit, status, list, logs, cancel and delete use for a run of these objects, by (group, resource).
    Jobs among them: all look for one that prepares, and a run is prepared by one that a smoke test has not got."""
    kinds = dict.fromkeys([CONFIG_MAP, SERVICE, SECRET, CLAIM, POD, EVENT, JOB, *map(resource_of, objects)])
    found = {(one.group, one.plural): _OF_KIND.get(one.kind, _ALL) for one in kinds}
    found |= {(one.group, f"{one.plural}/{part}"): (verb,) for one in kinds for part, verb in _PARTS.get(one.kind, ())}
    return found


def missing_rights(api: Api, objects: Sequence[Manifest]) -> Iterator[Doubt]:
    """One for each resource. Where the server reviews nothing, or does not say, nothing is missing."""
    wanted = [(group, plural, verb) for (group, plural), verbs in used(objects).items() for verb in verbs]
    failures: list[ApiError] = []

    def refused_(asked: tuple[str, str, str], tries: int = ATTEMPTS) -> bool:
        try:
            return not failures and _refused(api, *asked, tries)  # who fails over one fails over all, in their time
        except ApiError as error:
            failures.append(error)
            return False

    first, *rest = wanted
    refused = [first] if refused_(first, tries=1) else []
    with ThreadPoolExecutor(AT_ONCE) as pool:  # one after the other, a distant cluster takes seconds
        refused += [one for one, said in zip(rest, pool.map(refused_, rest), strict=True) if said]
    if failures and failures[0].status not in (403, 404):
        why = failures[0].refusal
        what = f"rights could not be looked at ({why.reason or why.status}): {why.message}"
        yield Doubt("rights", what, "give the command again; the cluster's administrator knows more")
    place = api.place.namespace
    for group, plural in dict.fromkeys((group, plural) for group, plural, _ in refused):
        verbs = ", ".join(verb for *about, verb in refused if about == [group, plural])
        what = f"not permitted to {verbs} {plural}{f'.{group}' if group else ''} in namespace {place}"
        rule = f'{{apiGroups: ["{group}"], resources: [{plural}], verbs: [{verbs}]}}'
        fix = f"ask the cluster's administrator for a Role in namespace {place} with the rule {rule}"
        yield Doubt("rights", f"{what}, which submit, status, logs, cancel or delete use", fix)


def _refused(api: Api, group: str, plural: str, verb: str, tries: int) -> bool:
    plural, _, part = plural.partition("/")
    asked = {"namespace": api.place.namespace, "verb": verb, "group": group, "resource": plural, "subresource": part}
    body: Manifest = {
        "apiVersion": REVIEW.api_version,
        "kind": REVIEW.kind,
        "metadata": {},
        "spec": {"resourceAttributes": asked},
    }
    return at(api.review(REVIEW, body, tries=tries), "status").get("allowed") is False
