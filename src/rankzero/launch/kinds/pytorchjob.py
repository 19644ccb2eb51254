"""PyTorchJob v1 (Kubeflow Training Operator): one master and workers, or elastic workers alone. Pure."""

from __future__ import annotations

from typing import Any

from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import top_metadata

CONTAINER = "pytorch"
"""The operator injects ranks into the container of this name only."""
RESTART = "ExitCode"
"""Codes from 128 on restart the pod, others end the job; the node command adds 128 to what may be retried."""
FIRST_WORKER = "rankzero.dev/first-worker"
"""Label: the node that worker 0 is; 1 beside a master."""


def objects(plan: Plan) -> list[Manifest]:
    """The PyTorchJob; the operator makes a Service for each replica."""
    cluster = plan.cluster
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": cluster.max_restarts, "suspend": False}
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
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": top_metadata(plan), "spec": spec}]


def _replicas(plan: Plan, count: int, *, first_worker: int) -> dict[str, Any]:
    master = f"{plan.name}-worker-0" if first_worker == 0 else None
    template = pod_template(plan, name=CONTAINER, master=master, restart_policy=None)
    template["metadata"]["labels"][FIRST_WORKER] = str(first_worker)
    return {"replicas": count, "restartPolicy": RESTART, "template": template}
