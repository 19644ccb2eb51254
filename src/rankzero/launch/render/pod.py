"""The pod of a node, the same for every kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch import kinds, labels
from rankzero.launch.plan import Plan
from rankzero.launch.render.container import container
from rankzero.launch.render.patch import merge
from rankzero.launch.render.shared import IN_GROUP, pod_group, run_annotations, run_labels, volumes
from rankzero.launch.untyped_json import at, maps
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.quantity import as_number

NO_SIDECAR = {"sidecar.istio.io/inject": "false"}
"""A mesh proxy denies the ports that ranks talk over, and keeps a finished pod from ending."""
_PATCHED_BESIDE = {
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
}
"""What pod_patch says of pods that are of no run."""
_SECURITY_BESIDE = {
    "appArmorProfile",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
}
"""What it says of their only container: by which a site lets containers in. Privileges and capabilities are for
training."""
_PATCHED_OF_OTHERS = {
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "securityContext",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
}
"""What it says of the container that trains, for a container that does not: the rest is about the process that trains,
its command, its probes, its hooks and its ports."""
_DISK, _DISK_BESIDE = "ephemeral-storage", "1Gi"
"""The resource that only pod_patch asks for, and that quotas want every container to say; and the most that a pod
beside takes of it."""


def pod_template(
    plan: Plan, *, name: str = "node", master: str | None = None, restart_policy: str | None = "Never"
) -> dict[str, Any]:
    """Template of the pods that train. `restart_policy` None leaves it to the controller."""
    spec = pod_spec(plan, container(plan, name, master=master))
    if restart_policy is not None:
        spec = {"restartPolicy": restart_policy, **spec}
    return {"metadata": pod_metadata(plan, labels.NODE_ROLE), "spec": spec}


def pod_metadata(plan: Plan, role: str) -> dict[str, Any]:
    """Labels and annotations of a pod."""
    group = {IN_GROUP: plan.name} if role == labels.NODE_ROLE and pod_group(plan) else {}
    return {"labels": run_labels(plan, role), "annotations": {**NO_SIDECAR, **run_annotations(plan), **group}}


def pod_spec(plan: Plan, only: dict[str, Any], *, role: str = labels.NODE_ROLE) -> dict[str, Any]:
    """The pod around its only container."""
    cluster = plan.cluster
    spec = {"terminationGracePeriodSeconds": cluster.grace_period_seconds, **whose(cluster)}
    spec |= _placement(cluster)
    trains = role == labels.NODE_ROLE
    if trains and cluster.num_nodes > 1:
        spec |= _spread(plan)
    spec["containers"] = [only]
    spec["volumes"] = volumes(plan)
    if trains and not plan.idle:
        merge(spec, cluster.pod_patch)
    else:  # pods that wait hold what those that train would
        merge(spec, _patch_of_others(cluster.pod_patch, only["name"], has_devices=trains))
    return spec


def pod_beside(cluster: ClusterSpec, only: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod that is of no run, around its only container: where a site has its pods, and as it lets them in. The rest
    of its patch is for pods that train: their network, their containers, their volumes, their priority."""
    spec = {**whose(cluster), **_placement(cluster), "containers": [only], "volumes": volumes}
    spec.pop("priorityClassName", None)
    merge(spec, {key: value for key, value in cluster.pod_patch.items() if key in _PATCHED_BESIDE})
    for one in maps(cluster.pod_patch, "containers"):
        if one.get("name") in kinds.containers():
            said = at(one, "securityContext")
            merge(only, {"securityContext": {key: said[key] for key in said if key in _SECURITY_BESIDE}})
            merge(only, {"resources": _disk_of(one, _DISK_BESIDE)})
    return spec


def _disk_of(container: Mapping[str, Any], most: str | None = None) -> dict[str, Any]:
    """What a container of the patch says of its disk, cut to `most`."""
    found = {}
    for part in ("requests", "limits"):
        asked = at(container, "resources", part).get(_DISK)
        if asked is not None:
            found[part] = {_DISK: asked if most is None else _least(str(asked), most)}
    return found


def _least(asked: str, most: str) -> str:
    try:
        return min(asked, most, key=as_number)
    except ValueError:  # a form of quantities that we do not read, or none of them: the API says so
        return asked


def whose(cluster: ClusterSpec) -> dict[str, Any]:
    """Who a pod's processes are, to the kernel, the API and the registry: what restricted Pod Security asks for."""
    spec: dict[str, Any] = {
        "enableServiceLinks": False,
        "automountServiceAccountToken": cluster.service_account.token,
        "securityContext": {
            "runAsNonRoot": cluster.user != 0,
            "runAsUser": cluster.user,
            "runAsGroup": cluster.user,
            "fsGroup": cluster.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if cluster.service_account.name is not None:
        spec["serviceAccountName"] = cluster.service_account.name
    if cluster.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.image_pull_secrets]
    return spec


def _patch_of_others(patch: dict[str, Any], container: str, *, has_devices: bool) -> dict[str, Any]:
    """The site's patch for a pod that does not train: its container has another name, and a process of its own; of
    resources only the disk that the patch says, unless it has the devices of training."""
    found = {key: value for key, value in patch.items() if key != "containers"}
    containers = patch.get("containers")
    if isinstance(containers, list):
        found["containers"] = [
            {
                **{key: value for key, value in one.items() if key in _PATCHED_OF_OTHERS},
                "name": container,
                "resources": one.get("resources", {}) if has_devices else _disk_of(one),
            }
            if isinstance(one, dict) and one.get("name") in kinds.containers()
            else one
            for one in containers
        ]
    return found


def _placement(cluster: ClusterSpec) -> dict[str, Any]:
    """Where the scheduler may put it. What needs no GPU goes where training may, too: what a site says of its nodes,
    such as their architecture, holds for it as well."""
    spec: dict[str, Any] = {}
    if cluster.priority_class is not None:
        spec["priorityClassName"] = cluster.priority_class
    if cluster.scheduler is not None:
        spec["schedulerName"] = cluster.scheduler
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if tolerated := tolerations(cluster):
        spec["tolerations"] = tolerated
    return spec


def tolerations(cluster: ClusterSpec) -> list[dict[str, Any]]:
    """Of the taint of hosts with GPUs, and the site's."""
    found: list[dict[str, Any]] = []
    if cluster.gpu:
        found.append({"key": cluster.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    for toleration in cluster.tolerations:
        entry: dict[str, Any] = {} if toleration.key is None else {"key": toleration.key}
        entry["operator"] = "Exists" if toleration.value is None else "Equal"
        if toleration.value is not None:
            entry["value"] = toleration.value
        if toleration.effect is not None:
            entry["effect"] = toleration.effect
        if entry not in found:
            found.append(entry)
    return found


def _spread(plan: Plan) -> dict[str, Any]:
    spread = plan.cluster.spread
    peers = {"matchLabels": {labels.RUN: plan.name, labels.ROLE: labels.NODE_ROLE}}
    affinity: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    if spread.mode == "required":
        affinity["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": peers, "topologyKey": spread.topology_key}
            ]
        }
    elif spread.mode in ("auto", "preferred"):
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": spread.topology_key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": peers,
            }
        ]
    if spread.together is not None:
        affinity["podAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"labelSelector": peers, "topologyKey": spread.together}}
            ]
        }
    if affinity:
        spec["affinity"] = affinity
    return spec
