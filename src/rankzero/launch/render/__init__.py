"""Plan → the objects that a run is, as plain dicts in the order in which they are applied. Pure; one file per kind."""

from __future__ import annotations

from rankzero.launch.kinds import kind_named
from rankzero.launch.labels import OWN_HASH, SPEC_HASH, SUBMITTED_BY, Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.content import content_hash
from rankzero.launch.render.patch import merge
from rankzero.launch.render.prepare import own_hash, preparation_job
from rankzero.launch.render.shared import claims, config_map, network_policy, pod_group, require_no_secret


def render(plan: Plan) -> list[Manifest]:
    """Every object of the run; the one that trains comes last.

    That one carries a hash of all the others and itself, by which a later submit sees whether anything changed; the
    preparation, which may be there alone, one of itself. Raises ConfigError where a secret would be written into them.
    """
    require_no_secret(plan)
    kind = kind_named(plan.kind)
    own = kind.objects(plan)
    beside = [config_map(plan), *claims(plan), *network_policy(plan), *pod_group(plan)]
    first = [] if kind.whole else beside
    accounts = [manifest for manifest in own if manifest["kind"] in _ACCOUNTS]
    rest = [manifest for manifest in own if manifest["kind"] not in _ACCOUNTS]
    services = [manifest for manifest in rest if manifest["kind"] == "Service"]
    training = [manifest for manifest in rest if manifest["kind"] != "Service"]
    preparation = [preparation_job(plan)] if plan.prepare and not kind.whole else []
    objects = [*accounts, *first, *services, *preparation, *training]
    digest = content_hash(objects)
    for manifest in training[-1:]:
        by = {SUBMITTED_BY: plan.submitter} if plan.submitter else {}
        merge(manifest, {"metadata": {"annotations": {SPEC_HASH: digest, **by}}})
    for manifest in preparation:
        merge(manifest, {"metadata": {"annotations": {OWN_HASH: own_hash(manifest)}}})
    return objects


_ACCOUNTS = ("ServiceAccount", "Role", "RoleBinding")
