"""What an earlier rendering of a run left that the present one has no place for: another kind of object with what goes
with it, a preparation, a policy. Finds it, and removes what has no pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankzero.launch import labels
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import Api, list_each
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import (
    ADDED,
    CORE,
    TEMPLATES,
    is_owned,
    is_preparation,
    is_training,
    label,
    name_of,
    resource_of,
)
from rankzero.launch.backends.kubernetes.stop import lives, must_have_seen, remove, unseen
from rankzero.launch.backends.kubernetes.wait import MARGIN_SECONDS, wait_until_gone
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import POD, Resource
from rankzero.launch.untyped_json import maps


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Of one run."""

    working: Sequence[Manifest] = ()
    """What trains or prepares: two of them must never run at once, nor one with what it no longer belongs to."""
    beside: Sequence[Manifest] = ()
    """What that needed. A Service of ours would keep JobSet from making its own."""
    owned: Sequence[Manifest] = ()
    """What controllers made for `working` under names that the run's own objects have now."""


def find_leftovers(
    api: Api, discovery: Discovery, run: str, wanted: Sequence[str], there: Mapping[str, Manifest]
) -> Leftovers:
    """`wanted` are the names of the run's objects, `there` those that exist already, by name_of. Raises ApiError."""
    selector = {"labelSelector": labels.selector(run)}
    found = list_each(api, list(discovery.training().values()), selector)
    seen = {*(one["kind"] for one in found), *(name.partition("/")[0] for name in wanted)}
    if unseen(seen, there.values()):
        must_have_seen(api, discovery, run, seen, filter(lives, _listed(api, POD, selector)))
    working = [one for one in found if (is_training(one) or _prepares(one)) and name_of(one) not in wanted]
    kinds = [*CORE, *(one for one in (*ADDED, *TEMPLATES) if discovery.serves(one))]
    beside = [
        one
        for resource in kinds
        for one in _listed(api, resource, selector)
        if name_of(one) not in wanted and not is_owned(one) and label(one, labels.MANAGED_BY) == "rankzero"
    ]
    uids = {str(one["metadata"]["uid"]) for one in working}
    owned = [one for one in there.values() if label(one, labels.RUN) != run and _goes_with(api, one, uids)]
    return Leftovers(working, beside, owned)


def remove_beside(api: Api, leftovers: Leftovers, say: Say) -> list[str]:
    """Remove what is left once its pods are gone, and wait until it is: what is collected later would take ours of the
    same name with it. Returns names. What may not be removed stays, and is said. Raises ApiError or ServiceError."""
    removed = []
    for one in (*leftovers.beside, *leftovers.owned):
        name = name_of(one)
        if not is_owned(one):
            say(f"{name} is not needed any more; removing it")
        try:
            remove(api, one, run=None)
        except ApiError as error:
            if error.status != 403:
                raise
            if not is_owned(one):
                say(f"not permitted to remove {name}, which this run does not need any more; it stays")
                continue
            only = {"fieldSelector": f"metadata.name={one['metadata']['name']}"}
            wait_until_gone(api, resource_of(one), only, {str(one["metadata"]["uid"])}, MARGIN_SECONDS)
        removed.append(name)
    return removed


def _prepares(manifest: Manifest) -> bool:
    return is_preparation(manifest) and not is_owned(manifest)


def _goes_with(api: Api, manifest: Manifest, uids: set[str]) -> bool:
    """Whether what made it, or made that, is one of these."""
    owners = [one for one in maps(manifest, "metadata", "ownerReferences") if one.get("controller")]
    if not owners or not uids:
        return False
    if str(owners[0].get("uid")) in uids:
        return True
    try:
        above = api.read(resource_of(owners[0]), str(owners[0].get("name")))
    except KeyError:  # of a kind that no run is
        return False
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return above is not None and above["metadata"]["uid"] == owners[0].get("uid") and _goes_with(api, above, uids)


def _listed(api: Api, resource: Resource, selector: Mapping[str, str]) -> list[Manifest]:
    """Who may not look for a kind has most likely never made one."""
    try:
        return api.list(resource, selector)[0]
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return []
