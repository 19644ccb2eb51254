"""StatefulSet: pods with stable names, all started at once. Pure.

It knows no end: a container that leaves is started again. So a finished run stays in its pod, and node 0 notes the
outcome on the StatefulSet and scales it to zero, for which it alone of all kinds needs the API.
"""

from __future__ import annotations

from typing import Any

from rankzero.launch.labels import NODE_ROLE, ROLE, RUN, Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import headless_service, metadata, top_metadata


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
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": top_metadata(plan), "spec": stateful},
    ]


def _account(plan: Plan) -> list[Manifest]:
    """May read and patch this one StatefulSet."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(plan)},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(plan),
            "rules": [
                {
                    "apiGroups": ["apps"],
                    "resources": ["statefulsets"],
                    "resourceNames": [plan.name],
                    "verbs": ["get", "patch"],
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
