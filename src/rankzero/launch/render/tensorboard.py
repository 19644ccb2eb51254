"""TensorBoard over the outputs of a cluster: a Deployment and a Service for all runs on that volume. Pure.

They carry no run's label: they outlive runs, as claims do. The pod only reads.
"""

from __future__ import annotations

from typing import Any

from rankzero.errors import ConfigError
from rankzero.launch import labels
from rankzero.launch.labels import Manifest, object_name
from rankzero.launch.render.container import resources_beside
from rankzero.launch.render.pod import NO_SIDECAR, pod_beside
from rankzero.launch.render.shared import TMP_VOLUME, volume_source
from rankzero.spec.cluster_spec import ClusterSpec

PORT = 6006
OUTPUTS = "outputs"
CONTAINER = "tensorboard"
SELECTED = "rankzero.dev/tensorboard"
"""Label of the pods: the Service's name."""


def tensorboard(cluster: ClusterSpec) -> list[Manifest]:
    """The Deployment, its Service, and where the cluster has such policies one that lets no other pod reach it. Raises
    ConfigError where run directories are on no volume that another pod could mount."""
    volume = cluster.storage.get(OUTPUTS)
    if volume is None or (volume.claim is None and volume.host_path is None):
        hint = "name a claim: storage: {outputs: {mount: /outputs, claim: rankzero-outputs}}"
        raise ConfigError("run directories are on no volume that outlives their pods", where="storage", hint=hint)
    # What has a slash gets a hash: each directory has a name of its own, and a claim as a whole is called as it is.
    directory = "/".join(filter(None, (volume.claim or OUTPUTS, volume.host_path, volume.sub_path)))
    name = object_name(f"tensorboard-{directory}")
    pods = {SELECTED: name}
    own = {
        "app.kubernetes.io/name": "rankzero",
        "app.kubernetes.io/component": CONTAINER,
        labels.MANAGED_BY: "rankzero",
    }

    def metadata() -> dict[str, Any]:
        about = {"labels": {**cluster.labels, **own}, "annotations": dict(cluster.annotations)}
        return {"name": name, "namespace": cluster.namespace, **about}

    template = {
        "metadata": {
            "labels": {**cluster.labels, **own, **pods},
            "annotations": {**cluster.annotations, **NO_SIDECAR},
        },
        "spec": _pod(cluster),
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(),
        "spec": {"replicas": 1, "selector": {"matchLabels": pods}, "template": template},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(),
        "spec": {"selector": pods, "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(),
        "spec": {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": []},
    }
    return [*([policy] if cluster.network_policy else []), service, deployment]


def _pod(cluster: ClusterSpec) -> dict[str, Any]:
    volume = cluster.storage[OUTPUTS]
    mount: dict[str, Any] = {"name": OUTPUTS, "mountPath": volume.mount, "readOnly": True}
    if volume.sub_path is not None:
        mount["subPath"] = volume.sub_path
    only = {
        "name": CONTAINER,
        "image": cluster.image,
        "imagePullPolicy": cluster.image_pull_policy,
        "command": ["tensorboard", "--logdir", volume.mount, "--host", "0.0.0.0", "--port", str(PORT)],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 5},
        "resources": resources_beside(cluster, "512Mi", "2Gi"),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": TMP_VOLUME, "mountPath": "/tmp"}, mount],
    }
    volumes = [{"name": TMP_VOLUME, "emptyDir": {}}, {"name": OUTPUTS, **volume_source(volume)}]
    return pod_beside(cluster, only, volumes)
