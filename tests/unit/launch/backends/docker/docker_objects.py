"""Pods, claims and ConfigMaps as the renderer makes them for docker, written out so that tests can bend them."""

from __future__ import annotations

import base64
import copy
from typing import Any

from rankzero.launch import labels

RUN = "tiny"
Manifest = dict[str, Any]


def metadata(name: str, role: str = labels.NODE_ROLE, **more: str) -> Manifest:
    own = {labels.RUN: RUN, labels.KIND: "docker", labels.ROLE: role, labels.MANAGED_BY: "rankzero", **more}
    return {"name": name, "namespace": "default", "labels": own, "annotations": {labels.NPROC: "2"}}


def pod_spec(name: str, env: list[Manifest] | None = None) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": "rankzero:test",
        "command": ["python", "-P", "-m", "rankzero.launch.node", "/etc/rankzero"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "HOME", "value": "/tmp"},
            *(env or []),
        ],
        "resources": {"limits": {"memory": "1Gi", "cpu": "16"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/rankzero", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "outputs", "mountPath": "/outputs"},
        ],
    }
    items = [{"key": "run.yaml", "path": "run.yaml"}, {"key": "file-0000", "path": "files/data/train.jsonl"}]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 42,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": RUN, "items": items}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "outputs", "persistentVolumeClaim": {"claimName": "results"}},
        ],
    }


def pod(node: int = 0, env: list[Manifest] | None = None) -> Manifest:
    name = f"{RUN}-{node}"
    spec = {"hostname": name, **pod_spec("node", [*(env or []), {"name": "RANKZERO_NODE", "value": str(node)}])}
    own = metadata(name, **{"rankzero.dev/node": str(node)})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}


def job() -> Manifest:
    own = metadata(f"{RUN}-prepare", labels.PREPARE_ROLE)
    inner = {"labels": own["labels"], "annotations": own["annotations"]}
    template = {"metadata": inner, "spec": pod_spec("prepare")}
    spec = {"backoffLimit": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": spec}


def objects(*pods: Manifest, prepare: bool = False) -> list[Manifest]:
    """A whole run; two nodes where no pods are given."""
    config: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(RUN),
        "data": {"run.yaml": "name: tiny\n"},
        "binaryData": {"file-0000": base64.b64encode(b"{}\n").decode()},
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "results"}, "spec": {}}
    return copy.deepcopy([config, claim, *([job()] if prepare else []), *(pods or (pod(0), pod(1)))])
