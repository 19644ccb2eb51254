"""PyTorchJob v1 (Kubeflow Training Operator): one master and workers, or elastic workers alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch import labels
from rankzero.launch.kinds.kind import Flag, Kind, PodSpecs, by_conditions, is_number
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import top_metadata
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at, text, whole

PYTORCH_JOB = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
CONTAINER = "pytorch"
"""The operator injects ranks into the container of this name only."""
RESTART = "ExitCode"
"""Codes from 128 on restart the pod, others end the job; the node command adds RETRY_OFFSET to what may be retried."""
RETRY_OFFSET = 128
FIRST_WORKER = "rankzero.dev/first-worker"
"""Label: the node that worker 0 is; 1 beside a master."""


def objects(plan: Plan) -> list[Manifest]:
    """The PyTorchJob; the operator makes a Service for each replica."""
    cluster = plan.cluster
    about = top_metadata(plan)
    backoff = max(1, cluster.max_restarts)  # with 0 the operator ends the run at a pod that was only stopped or evicted
    if backoff != cluster.max_restarts:
        about["annotations"][labels.MAX_RESTARTS] = str(cluster.max_restarts)
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": backoff, "suspend": False}
    if cluster.ttl_seconds_after_finished is not None:
        policy["ttlSecondsAfterFinished"] = cluster.ttl_seconds_after_finished
    if cluster.timeout_seconds is not None:
        policy["activeDeadlineSeconds"] = cluster.timeout_seconds
    spec: dict[str, Any] = {"nprocPerNode": str(cluster.nproc_per_node), "runPolicy": policy}
    if cluster.min_nodes is None:
        spec["pytorchReplicaSpecs"] = {"Master": _replicas(plan, 1, first_worker=1)}
        if cluster.num_nodes > 1:
            spec["pytorchReplicaSpecs"]["Worker"] = _replicas(plan, cluster.num_nodes - 1, first_worker=1)
    else:
        spec["elasticPolicy"] = {
            "minReplicas": cluster.min_nodes,
            "maxReplicas": cluster.num_nodes,
            "rdzvBackend": "c10d",
            "maxRestarts": cluster.max_restarts,
        }
        spec["pytorchReplicaSpecs"] = {"Worker": _replicas(plan, cluster.num_nodes, first_worker=0)}
    return [
        {
            "apiVersion": PYTORCH_JOB.api_version,
            "kind": PYTORCH_JOB.kind,
            "metadata": about,
            "spec": spec,
        }
    ]


def _replicas(plan: Plan, count: int, *, first_worker: int) -> dict[str, Any]:
    master = f"{plan.name}-worker-0" if first_worker == 0 else None
    template = pod_template(plan, name=CONTAINER, master=master, restart_policy=None)
    template["metadata"]["labels"][FIRST_WORKER] = str(first_worker)
    return {"replicas": count, "restartPolicy": RESTART, "template": template}


def _pod_specs(manifest: Mapping[str, Any]) -> PodSpecs:
    for replicas in at(manifest, "spec", "pytorchReplicaSpecs").values():
        yield at(replicas, "template", "spec"), whole(replicas, "replicas") or 1


def _node_index(pod: Mapping[str, Any]) -> int | None:
    marks = at(pod, "metadata", "labels")
    replica = text(marks, "training.kubeflow.org/replica-index")
    if not is_number(replica):
        return None
    is_worker = text(marks, "training.kubeflow.org/replica-type").lower() == "worker"
    has_master = (text(marks, FIRST_WORKER) or "1") == "1"
    return int(replica) + int(is_worker and has_master)


KIND = Kind(
    resource=PYTORCH_JOB,
    objects=objects,
    pod_specs=_pod_specs,
    node_index=_node_index,
    end=by_conditions("Succeeded"),
    switch=Flag(("spec", "runPolicy", "suspend")),
    needs="the Kubeflow Training Operator 1 (https://www.kubeflow.org/docs/components/trainer/legacy-v1)",
    container=CONTAINER,
    retry_exit_offset=RETRY_OFFSET,
    restarts_allowed=("spec", "runPolicy", "backoffLimit"),
    time_limit=("spec", "runPolicy", "activeDeadlineSeconds"),
    fewest_nodes=("spec", "elasticPolicy", "minReplicas"),
)
