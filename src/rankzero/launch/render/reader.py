"""The pod that reads a cluster's results volume while a run is pulled. Pure.

It is none of a run's: it has no label by which runs are found, asks for no GPU, writes nothing, and ends by itself.
"""

from __future__ import annotations

from rankzero.launch import labels
from rankzero.launch.labels import Manifest
from rankzero.launch.render.container import resources_beside
from rankzero.launch.render.pod import NO_SIDECAR, pod_beside
from rankzero.launch.render.shared import volume_source
from rankzero.spec.cluster_spec import ClusterSpec

LIFE_SECONDS = 3600
"""Longest life, should whoever made it be gone."""


def reader_pod(cluster: ClusterSpec, name: str) -> Manifest:
    """Mounts the outputs volume where pods of runs have it. The cluster has one."""
    outputs = cluster.storage["outputs"]
    mount = {"name": "outputs", "mountPath": outputs.mount, "readOnly": True}
    if outputs.sub_path is not None:
        mount["subPath"] = outputs.sub_path
    only = {
        "name": "read",
        "image": cluster.image,
        "imagePullPolicy": cluster.image_pull_policy,
        "command": ["python", "-P", "-c", f"import time; time.sleep({LIFE_SECONDS})"],
        "resources": resources_beside(cluster, "256Mi", "256Mi"),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [mount],
    }
    spec = {
        **pod_beside(cluster, only, [{"name": "outputs", **volume_source(outputs)}]),
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
    }
    own = {"app.kubernetes.io/name": "rankzero-pull", labels.MANAGED_BY: "rankzero"}
    about = {"labels": {**cluster.labels, **own}, "annotations": {**cluster.annotations, **NO_SIDECAR}}
    metadata = {"name": name, "namespace": cluster.namespace, **about}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
