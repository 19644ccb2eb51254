"""What every kind has: metadata, the ConfigMap, claims, volumes, the Service by which pods find each other, and what
becomes of a pod by its exit code. Pure."""

from __future__ import annotations

import base64
from typing import Any

from rankzero.errors import NEVER_RETRIED, ConfigError, ExitCode, Problem
from rankzero.launch import labels
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import CONTROL_PORT, MASTER_PORT
from rankzero.launch.plan import Plan
from rankzero.launch.resource import POD_GROUP
from rankzero.spec.cluster_spec import VolumeSpec
from rankzero.spec.kinds import kind_section
from rankzero.spec.resolve import to_yaml as spec_to_yaml
from rankzero.spec.written import CLUSTER_PREFIX
from rankzero.spec.written_secrets import secret_problems


def require_no_secret(plan: Plan) -> None:
    """Raise ConfigError where cluster.yaml holds a secret, which objects and scripts would show.

    It is looked for where these are made, not where cluster.yaml is read: runs that are under way must be found, ended
    and pulled by the file that they were submitted with.
    """
    found = secret_problems(plan.cluster)
    if found:
        raise ConfigError(Problem(one.what, plan.where(f"{CLUSTER_PREFIX}{one.where}"), one.hint) for one in found)


def run_labels(plan: Plan, role: str | None = None) -> dict[str, str]:
    """Labels of an object; with `role`, of pods."""
    own = {
        "app.kubernetes.io/name": "rankzero",
        "app.kubernetes.io/instance": plan.name,
        labels.MANAGED_BY: "rankzero",
        labels.RUN: plan.name,
        labels.KIND: plan.kind,
    }
    return {**plan.cluster.labels, **own, **({labels.ROLE: role} if role else {})}


def run_annotations(plan: Plan) -> dict[str, str]:
    """Annotations of every object."""
    own = {
        labels.RUN_NAME: str(plan.run.name),
        **({labels.RUN_DIR: plan.known_run_dir} if plan.known_run_dir is not None else {}),
        labels.NODES: str(plan.cluster.num_nodes),
        labels.NPROC: str(plan.cluster.nproc_per_node),
    }
    return {**plan.cluster.annotations, **own}


def metadata(plan: Plan, name: str | None = None) -> dict[str, Any]:
    """Name, namespace, labels and annotations of an object."""
    return {
        "name": name or plan.name,
        "namespace": plan.cluster.namespace,
        "labels": run_labels(plan),
        "annotations": run_annotations(plan),
    }


def top_metadata(plan: Plan, name: str | None = None) -> dict[str, Any]:
    """Metadata of an object that Kueue admits."""
    value = metadata(plan, name)
    queue = plan.cluster.queue
    if queue is not None:
        value["labels"][labels.QUEUE] = queue.name
        if queue.priority is not None:
            value["labels"][labels.QUEUE_PRIORITY] = queue.priority
    return value


def config_map(plan: Plan) -> Manifest:
    """What the pods read at /etc/rankzero."""
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(plan),
        "data": {"run.yaml": spec_to_yaml(plan.run), "node.json": plan.settings.to_json()},
    }
    if plan.files:
        manifest["binaryData"] = {
            file_key(index): base64.b64encode(plan.files[name]).decode()
            for index, name in enumerate(sorted(plan.files))
        }
    return manifest


def file_key(index: int) -> str:
    """Key of a shipped file; a ConfigMap's keys have no slashes, so the volume's items say the path."""
    return f"file-{index:04}"


def config_items(plan: Plan) -> list[dict[str, str]]:
    """Which key of the ConfigMap becomes which path below /etc/rankzero."""
    texts = [{"key": key, "path": key} for key in ("run.yaml", "node.json")]
    files = [{"key": file_key(index), "path": f"files/{name}"} for index, name in enumerate(sorted(plan.files))]
    return [*texts, *files]


def claims(plan: Plan) -> list[Manifest]:
    """Claims that are to be made where they do not exist. They carry no run's label: they outlive runs."""
    made: dict[str, Manifest] = {}
    for volume in plan.cluster.storage.values():
        if volume.claim is None or volume.size is None or volume.claim in made:
            continue
        spec: dict[str, Any] = {
            "accessModes": [_as_written(plan, volume).access],
            "resources": {"requests": {"storage": volume.size}},
        }
        if volume.storage_class is not None:
            spec["storageClassName"] = volume.storage_class
        made[volume.claim] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": volume.claim,
                "namespace": plan.cluster.namespace,
                "labels": {**plan.cluster.labels, "app.kubernetes.io/name": "rankzero", labels.MANAGED_BY: "rankzero"},
            },
            "spec": spec,
        }
    return list(made.values())


def network_policy(plan: Plan) -> list[Manifest]:
    """Where asked for: the pods of a run are reached by each other alone."""
    if not plan.cluster.network_policy or not kind_section(plan.kind).in_kubernetes:
        return []
    peers = {"podSelector": {"matchLabels": {labels.RUN: plan.name}}}
    spec = {**peers, "policyTypes": ["Ingress"], "ingress": [{"from": [peers]}]}
    api = "networking.k8s.io/v1"
    return [{"apiVersion": api, "kind": "NetworkPolicy", "metadata": metadata(plan), "spec": spec}]


VOLCANO = "volcano"
"""Name of its scheduler."""
IN_GROUP = "scheduling.k8s.io/group-name"
"""Annotation of pods: their PodGroup. For pods without one Volcano makes a group that is content with one pod."""
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation: Volcano's queue."""


def pod_group(plan: Plan) -> list[Manifest]:
    """Where Volcano places the pods: as many as the run needs, or none of them."""
    cluster = plan.cluster
    if cluster.scheduler != VOLCANO or not kind_section(plan.kind).in_kubernetes:
        return []
    spec: dict[str, Any] = {"minMember": cluster.min_nodes or cluster.num_nodes}
    if VOLCANO_QUEUE in cluster.annotations:
        spec["queue"] = cluster.annotations[VOLCANO_QUEUE]
    if cluster.priority_class is not None:
        spec["priorityClassName"] = cluster.priority_class
    kind = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    return [{**kind, "metadata": metadata(plan), "spec": spec}]


def headless_service(plan: Plan, selector: dict[str, str]) -> Manifest:
    """Gives each pod a name in DNS, also while it is not ready: pods meet before they are."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [
                {"name": name, "port": port, "targetPort": port}
                for name, port in (("control", CONTROL_PORT), ("master", MASTER_PORT))
            ],
        },
    }


CONFIG_VOLUME, SHM_VOLUME, TMP_VOLUME = "rankzero-run", "rankzero-shm", "rankzero-tmp"


def volumes(plan: Plan) -> list[dict[str, Any]]:
    """Ours, then the site's; a claim that is mounted at two places is one volume."""
    shm: dict[str, Any] = {"medium": "Memory"}
    if plan.cluster.resources.shm is not None:
        shm["sizeLimit"] = plan.cluster.resources.shm
    found: dict[str, dict[str, Any]] = {
        CONFIG_VOLUME: {"configMap": {"name": plan.name, "items": config_items(plan)}},
        SHM_VOLUME: {"emptyDir": shm},
        TMP_VOLUME: {"emptyDir": {}},
    }
    for name, volume in plan.cluster.storage.items():
        found.setdefault(volume_name(plan, name), volume_source(_as_written(plan, volume)))
    return [{"name": name, **source} for name, source in found.items()]


def _as_written(plan: Plan, volume: VolumeSpec) -> VolumeSpec:
    """The first entry that writes to the same claim, for what holds for the claim as a whole; else the entry itself."""
    entries = plan.cluster.storage.values() if volume.claim is not None else ()
    return next((one for one in entries if one.claim == volume.claim and one.access != "ReadOnlyMany"), volume)


def volume_name(plan: Plan, name: str) -> str:
    """Name of the pod's volume for an entry of storage: that of the first entry with the same claim."""
    claim = plan.cluster.storage[name].claim
    if claim is None:
        return name
    return next(other for other, volume in plan.cluster.storage.items() if volume.claim == claim)


def volume_source(volume: VolumeSpec) -> dict[str, Any]:
    """What a pod's volume is made of."""
    if volume.claim is not None:
        claim: dict[str, Any] = {"claimName": volume.claim}
        if volume.access == "ReadOnlyMany":
            claim["readOnly"] = True
        return {"persistentVolumeClaim": claim}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path, "type": "Directory"}}
    return {"emptyDir": {} if volume.size is None else {"sizeLimit": volume.size}}


NEVER_RETRIED_CODES = sorted(int(code) for code in NEVER_RETRIED)
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


def failure_rules(container: str, *, stopped: str) -> list[dict[str, Any]]:
    """The exit codes as rules, in this order: never right by trying again; saved, so no restart is charged; disrupted.

    `stopped` is the action of the last two. Every rule has `onPodConditions`, which API servers before 1.29 insist on.
    """

    def codes(action: str, values: list[int]) -> dict[str, Any]:
        rule = {"containerName": container, "operator": "In", "values": values}
        return {"action": action, "onExitCodes": rule}

    return [
        codes("FailJob", NEVER_RETRIED_CODES),
        codes(stopped, [int(ExitCode.STOPPED)]),
        {"action": stopped, "onPodConditions": DISRUPTED},
    ]
