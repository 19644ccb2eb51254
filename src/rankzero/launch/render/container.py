"""The container of a pod: command, environment, resources, mounts. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from rankzero.launch import labels
from rankzero.launch.labels import submission_name
from rankzero.launch.node.settings import CONFIG_DIR, TOKEN_VARIABLE
from rankzero.launch.plan import Plan
from rankzero.launch.render.shared import CONFIG_VOLUME, SHM_VOLUME, TMP_VOLUME, volume_name
from rankzero.spec.cluster_checks import env_name_of
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.quantity import as_number, cores

IDLE_MODULE = "rankzero.launch.node.idle"
NODE_COMMAND = ["python", "-P", "-m", "rankzero.launch.node", CONFIG_DIR]
"""-P: an image's working directory may have a random.py that is not Python's."""
PREPARE_COMMAND = ["python", "-P", "-m", "rankzero.launch.node.prepare", CONFIG_DIR]
IDLE_COMMAND = ["python", "-P", "-m", IDLE_MODULE]
PREPARE_CPU, PREPARE_MEMORY = 2.0, "8Gi"
"""Enough to download weights and to tokenise; a preparation Job never asks for more than the training pods."""
SMALL_CPU, SMALL_CPU_LIMIT = 0.1, 1.0


def container(plan: Plan, name: str, *, role: str = labels.NODE_ROLE, master: str | None = None) -> dict[str, Any]:
    """A container of the run. `master` is the address of node 0 where the platform does not say it."""
    return {
        "name": name,
        "image": plan.cluster.image,
        "imagePullPolicy": plan.cluster.image_pull_policy,
        "command": PREPARE_COMMAND if role != labels.NODE_ROLE else IDLE_COMMAND if plan.idle else NODE_COMMAND,
        "env": environment(plan, role, master),
        "resources": resources(plan, role),
        "securityContext": security(plan, role),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(plan),
    }


def environment(plan: Plan, role: str, master: str | None) -> list[dict[str, Any]]:
    """The variables; ours first, then the site's, which win, then secrets by reference."""
    own = {"HOME": "/tmp", **({} if master is None else {"RANKZERO_MASTER": master})}
    values = variables(plan, role, own)
    fields = {"POD_NAME": "metadata.name", "NODE_NAME": "spec.nodeName"}
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in values.items()),
        _secret(TOKEN_VARIABLE, submission_name(plan.name), "token", True),
        *(_secret(env_name_of(name), ref.name, ref.key, ref.optional) for name, ref in plan.cluster.secrets.items()),
    ]


def variables(plan: Plan, role: str, own: Mapping[str, str]) -> dict[str, str]:
    """Those whose values are known, wherever the processes are: `own`, ours, then the site's, which win.

    What was prepared is read from the cache: the pods of a large run do not each ask the Hub, and all see one revision.
    """
    cluster = plan.cluster
    values = {"PYTHONUNBUFFERED": "1", **own}
    cache = cluster.storage.get("cache")
    if cache is not None:
        values["HF_HOME"] = posixpath.join(cache.mount, "hf")
        values["RANKZERO_CACHE"] = posixpath.join(cache.mount, "rankzero")
    if plan.prepare and role == labels.NODE_ROLE:
        values["HF_HUB_OFFLINE"] = "1"
    if cluster.gpu and cluster.nproc_per_node * cluster.num_nodes > 1:
        values["NCCL_DEBUG"] = "WARN"
    return values | cluster.env


def _secret(variable: str, name: str, key: str, optional: bool) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": name, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def resources_beside(cluster: ClusterSpec, memory: str, most: str) -> dict[str, Any]:
    """Of a pod that reads and shows: a part of a core, and memory from `memory` to `most`. A quota that counts limits
    need not have room for what pods that train may use."""
    limit = cluster.resources.limits.cpu
    cpu = SMALL_CPU if limit is None else min(SMALL_CPU, limit)
    limits = {} if limit is None else {"cpu": cores(min(SMALL_CPU_LIMIT, limit))}
    return {"requests": {"cpu": cores(cpu), "memory": memory}, "limits": {**limits, "memory": most}}


def _cpu_limit(cluster: ClusterSpec) -> dict[str, str]:
    """Where a quota counts it, no pod may leave it out."""
    limit = cluster.resources.limits.cpu
    return {} if limit is None else {"cpu": cores(limit)}


def resources(plan: Plan, role: str) -> dict[str, Any]:
    """Requests and limits. Memory is limited wherever it is known, so that a pod cannot take its neighbours along."""
    asked = plan.cluster.resources
    if role == labels.PREPARE_ROLE:
        most = asked.limits.cpu
        cpu = min(one for one in (asked.cpu or PREPARE_CPU, PREPARE_CPU, most) if one is not None)
        memory = min(asked.memory or asked.limits.memory or PREPARE_MEMORY, PREPARE_MEMORY, key=as_number)
        limited = {**_cpu_limit(plan.cluster), "memory": memory}
        return {"requests": {"cpu": cores(cpu), "memory": memory}, "limits": limited}
    requests: dict[str, str] = {}
    limits = _cpu_limit(plan.cluster)
    if asked.cpu is not None:
        requests["cpu"] = cores(asked.cpu)
    if asked.memory is not None:
        requests["memory"] = asked.memory
    limit = asked.limits.memory or asked.memory
    if limit is not None:
        limits["memory"] = limit
    devices: dict[str, str] = {}
    if plan.cluster.gpu:
        devices[plan.cluster.gpu_resource] = str(plan.cluster.nproc_per_node)
    if asked.rdma is not None:
        devices[asked.rdma] = str(asked.rdma_devices)
    # devices cannot be overcommitted: both are written, as the API would default it
    value = {"requests": {**requests, **devices}, "limits": {**limits, **devices}}
    return {key: inner for key, inner in value.items() if inner}


def security(plan: Plan, role: str) -> dict[str, Any]:
    """What restricted Pod Security asks for; RDMA needs memory that stays in place."""
    capabilities: dict[str, list[str]] = {"drop": ["ALL"]}
    if plan.cluster.resources.rdma is not None and role == labels.NODE_ROLE:
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """The run's files, memory for processes to share, scratch space, and the site's volumes."""
    found: list[dict[str, Any]] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
        {"name": TMP_VOLUME, "mountPath": "/tmp"},
    ]
    for name, volume in plan.cluster.storage.items():
        mount: dict[str, Any] = {"name": volume_name(plan, name), "mountPath": volume.mount}
        if volume.is_read_only:
            mount["readOnly"] = True
        if volume.sub_path is not None:
            mount["subPath"] = volume.sub_path
        found.append(mount)
    return found
