"""StatefulSet: pods with stable names, all started at once. Pure.

It knows no end: a container that leaves is started again. So a finished run stays in its pod, and node 0 notes the
outcome on the StatefulSet and scales it to zero, for which it alone of all kinds needs the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch.kinds.kind import End, Kind, PodSpecs, by_mark, is_number
from rankzero.launch.labels import KIND as KIND_LABEL
from rankzero.launch.labels import NODE_ROLE, OUTCOME, ROLE, RUN, Manifest
from rankzero.launch.last_words import parse_last_words
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import headless_service, metadata, top_metadata
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at, text, whole

STATEFUL_SET = Resource("apps", "v1", "statefulsets", "StatefulSet")


def objects(plan: Plan) -> list[Manifest]:
    """Service account, Role and RoleBinding (unless the site names an account), the Service and the StatefulSet."""
    match = {RUN: plan.name, ROLE: NODE_ROLE}
    template = pod_template(plan, master=f"{plan.name}-0.{plan.name}", restart_policy="Always")
    template["spec"]["automountServiceAccountToken"] = True
    template["spec"]["serviceAccountName"] = plan.cluster.service_account.name or plan.name
    stateful: dict[str, Any] = {
        "serviceName": plan.name,
        "replicas": plan.cluster.num_nodes,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": match},
        "template": template,
    }
    accounts = [] if plan.cluster.service_account.name is not None else _account(plan)
    return [
        *accounts,
        headless_service(plan, match),
        {
            "apiVersion": STATEFUL_SET.api_version,
            "kind": STATEFUL_SET.kind,
            "metadata": top_metadata(plan),
            "spec": stateful,
        },
    ]


def _account(plan: Plan) -> list[Manifest]:
    """May scale this one StatefulSet, and note the outcome on it, which a patch of its status can. Not its pods."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(plan)},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(plan),
            "rules": [
                {
                    "apiGroups": [STATEFUL_SET.group],
                    "resources": [f"{STATEFUL_SET.plural}/scale", f"{STATEFUL_SET.plural}/status"],
                    "resourceNames": [plan.name],
                    "verbs": ["patch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(plan),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": plan.name},
            "subjects": [{"kind": "ServiceAccount", "name": plan.name, "namespace": plan.cluster.namespace}],
        },
    ]


class Scale:
    """Told to have no pods by having no replicas."""

    def is_off(self, manifest: Mapping[str, Any]) -> bool:
        """Whether it is scaled to zero."""
        return at(manifest, "spec").get("replicas") == 0

    def patch(self, manifest: Mapping[str, Any], *, suspend: bool) -> Manifest:
        """To zero, or to as many as were rendered."""
        return {"spec": {"replicas": 0 if suspend else at(manifest, "spec").get("replicas", 1)}}


def _pod_specs(manifest: Mapping[str, Any]) -> PodSpecs:
    yield at(manifest, "spec", "template", "spec"), whole(manifest, "spec", "replicas") or 1


_marked = by_mark("apps.kubernetes.io/pod-index")


def _node_index(pod: Mapping[str, Any]) -> int | None:
    """From its label, which clusters before 1.28 do not write, or the end of its name, which others' do not tell by."""
    found, tail = _marked(pod), text(pod, "metadata", "name").rpartition("-")[2]
    ours = text(pod, "metadata", "labels", KIND_LABEL) == "statefulset"
    return int(tail) if found is None and ours and is_number(tail) else found


def _end(manifest: Mapping[str, Any]) -> End | None:
    """Node 0 notes every end that no restart would change, also a failure."""
    note = text(manifest, "metadata", "annotations", OUTCOME)
    if not note:
        return None
    said = parse_last_words(note)
    return "complete" if said is not None and said.outcome == "done" else "failed"


KIND = Kind(
    resource=STATEFUL_SET,
    objects=objects,
    pod_specs=_pod_specs,
    node_index=_node_index,
    end=_end,
    switch=Scale(),
    queued_without_pods=False,
    parks=True,
)
