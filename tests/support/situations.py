"""Situations: what a cluster says of a run, written as what differs from a run that is well, and made into evidence.

A situation is a YAML file of `tests/fixtures/evidence_held_out`:

    about: one line for people             words: the component whose words these are
    expect: {code: the finding or null, names: [words of its cause]}
    kind: job | jobset | trainjob | pytorchjob | statefulset
    pods: [{node: 0 | role: prepare, host: gpu-a, is: running | creating | ..., more: {any part of the pod}}]
    events: [{of: Pod 0 | Job | PersistentVolumeClaim rz-outputs, from, reason, message, minutes: [first, last]}]
    claims, nodes, workload, objects, status (of the object that trains), logs, refused: where they differ
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rankzero.launch.evidence import Evidence, Refusal

FOLDER = Path(__file__).parents[1] / "fixtures" / "evidence_held_out"
NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
RUN = "alpaca-qwen3-8b"
_IMAGE = "registry.example/ml/rankzero:1.0"
_TRAINING = {
    "job": ("batch/v1", "Job", {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 3}),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet", {"failurePolicy": {"maxRestarts": 3}}),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"kind": "TrainingRuntime", "name": RUN}}),
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob", {"runPolicy": {"backoffLimit": 3, "suspend": False}}),
    "statefulset": ("apps/v1", "StatefulSet", {"replicas": 2}),
}
_SUFFIX = ("xk2pq", "tz8lm", "9fqzd", "m7r2c")


@dataclass(frozen=True)
class Situation:
    """One situation, and what is to be found in it."""

    name: str
    about: str
    words: str
    evidence: Evidence
    code: str | None
    names: tuple[str, ...]


@cache
def situations(part: str) -> tuple[Situation, ...]:
    """All of a part (a folder), by name."""
    return tuple(_read(path) for path in sorted((FOLDER / part).glob("*.yaml")))


def _read(path: Path) -> Situation:
    value = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    expect = value["expect"]
    unknown = set(value) - {"about", "words", "expect", "kind", "pods", "events", "claims", "nodes", "workload"}
    unknown -= {"objects", "status", "spec", "logs", "refused", "labels", "storage_classes"}
    assert not unknown, f"{path.name}: {unknown}"
    names = tuple(str(name) for name in expect.get("names", ()))
    return Situation(path.stem, value["about"], value["words"], _evidence(value), expect["code"], names)


def _evidence(value: Mapping[str, Any]) -> Evidence:
    kind = value.get("kind", "job")
    pods = [_pod(kind, one) for one in value.get("pods", ())]
    by_node = {_key(one): pod["metadata"]["name"] for one, pod in zip(value.get("pods", ()), pods, strict=True)}
    nodes, classes = value.get("nodes", "usual"), value.get("storage_classes")
    refused = [Refusal(**one) for one in value.get("refused", ())]
    if nodes == "unreadable":
        words = 'nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope'
        refused.append(Refusal("list nodes", 403, "Forbidden", words))
    workload = value.get("workload")
    return Evidence(
        run=RUN,
        now=NOW,
        objects=(_training(kind, value), *_claims(value.get("claims", {})), *value.get("objects", ())),
        pods=tuple(pods),
        events=tuple(_event(one, by_node) for one in value.get("events", ())),
        nodes=None if nodes == "unreadable" else tuple(_nodes(nodes)),
        workloads=() if workload is None else (_workload(kind, workload),),
        storage_classes=None if classes is None else tuple(classes),
        logs={by_node[str(node)]: text for node, text in value.get("logs", {}).items()},
        refused=tuple(refused),
    )


def _at(minutes: float) -> str:
    return f"{NOW - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


def _labels(kind: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "rankzero",
        "app.kubernetes.io/managed-by": "rankzero",
        "rankzero.dev/run": RUN,
        "rankzero.dev/kind": kind,
    }


def _annotations() -> dict[str, str]:
    return {
        "rankzero.dev/run-name": RUN,
        "rankzero.dev/run-dir": f"/outputs/runs/{RUN}",
        "rankzero.dev/num-nodes": "2",
        "rankzero.dev/nproc-per-node": "8",
    }


def _training(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    api_version, name, spec = _TRAINING[kind]
    metadata = {
        "name": RUN,
        "namespace": "train",
        "uid": "6f1c-training",
        "labels": {**_labels(kind), **value.get("labels", {})},
        "annotations": _annotations(),
        "creationTimestamp": _at(20),
    }
    status = {**value.get("status", {})}
    for condition in status.get("conditions", ()):
        condition.setdefault("status", "True")
        condition.setdefault("lastTransitionTime", _at(2))
    return {
        "apiVersion": api_version,
        "kind": name,
        "metadata": metadata,
        "spec": {**spec, **value.get("spec", {})},
        "status": status,
    }


def _claims(changed: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = []
    for name in ("rz-cache", "rz-outputs"):
        claim: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "train", "creationTimestamp": _at(20)},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "500Gi"}}},
            "status": {"phase": "Bound"},
        }
        made.append(_merged(claim, changed.get(name, {})))
    return made


def _key(one: Mapping[str, Any]) -> str:
    return str(one["node"]) if "node" in one else str(one["role"])


def _pod(kind: str, one: Mapping[str, Any]) -> dict[str, Any]:
    node, prepares = one.get("node", 0), one.get("role") == "prepare"
    labels = {**_labels(kind), "rankzero.dev/role": "prepare" if prepares else "node"}
    if prepares:
        name = f"{RUN}-prepare-kk2mz"
    elif kind == "pytorchjob":
        name = f"{RUN}-master-0" if node == 0 else f"{RUN}-worker-{node - 1}"
        labels["training.kubeflow.org/replica-type"] = "master" if node == 0 else "worker"
        labels["training.kubeflow.org/replica-index"] = str(max(node - 1, 0))
        labels["rankzero.dev/first-worker"] = "1"
    elif kind == "statefulset":
        name = f"{RUN}-{node}"
        labels["apps.kubernetes.io/pod-index"] = str(node)
    else:
        name = f"{RUN}-{'' if kind == 'job' else 'node-0-'}{node}-{_SUFFIX[node]}"
        labels["batch.kubernetes.io/job-completion-index"] = str(node)
    resources = {"cpu": "2", "memory": "8Gi"} if prepares else {"cpu": "32", "memory": "512Gi", "nvidia.com/gpu": "8"}
    container = "prepare" if prepares else "pytorch" if kind == "pytorchjob" else "node"
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": container,
                "image": _IMAGE,
                "command": ["python", "-P", "-m", "rankzero.launch.node", "/etc/rankzero"],
                "resources": {"requests": resources, "limits": {k: v for k, v in resources.items() if k != "cpu"}},
                "env": [
                    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}},
                ],
                "volumeMounts": [
                    {"name": "rankzero-run", "mountPath": "/etc/rankzero", "readOnly": True},
                    {"name": "rankzero-shm", "mountPath": "/dev/shm"},
                    {"name": "cache", "mountPath": "/cache"},
                    {"name": "outputs", "mountPath": "/outputs"},
                ],
            }
        ],
        "restartPolicy": "Always" if kind == "statefulset" else "Never",
        "terminationGracePeriodSeconds": 180,
        "volumes": [
            {"name": "rankzero-run", "configMap": {"name": RUN}},
            {"name": "rankzero-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "rz-cache"}},
            {"name": "outputs", "persistentVolumeClaim": {"claimName": "rz-outputs"}},
        ],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    if "host" in one:
        spec["nodeName"] = one["host"]
    metadata = {
        "name": name,
        "namespace": "train",
        "labels": labels,
        "annotations": _annotations(),
        "creationTimestamp": _at(one.get("age", 20)),
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": _status(one, container)}
    return _merged(pod, one.get("more", {}))


def _status(one: Mapping[str, Any], container: str) -> dict[str, Any]:
    what = one["is"]
    ((state, detail),) = what.items() if isinstance(what, dict) else ((what, None),)
    if state == "unscheduled":
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": detail or ""}
        if detail is None:
            return {"phase": "Pending"}
        return {"phase": "Pending", "conditions": [{**scheduled, "lastTransitionTime": _at(19)}]}
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": _at(19)}]
    if state == "failed":
        return {"phase": "Failed", **detail}
    phase, ready, shown = {
        "running": ("Running", True, {"running": {"startedAt": _at(18)}}),
        "creating": ("Pending", False, {"waiting": {"reason": "ContainerCreating"}}),
        "waiting": ("Running" if "last" in one else "Pending", False, {"waiting": detail}),
        "ended": ("Failed", False, {"terminated": _ended(detail or {})}),
    }[state]
    if state == "ended" and (detail or {}).get("exit_code") == 0:
        phase = "Succeeded"
    if ready or state == "creating":
        conditions.append({"type": "Ready", "status": str(ready), "lastTransitionTime": _at(18)})
    shown_container: dict[str, Any] = {
        "name": container,
        "ready": ready,
        "restartCount": one.get("restarts", 0),
        "image": _IMAGE,
        "state": shown,
    }
    if "last" in one:
        shown_container["lastState"] = {"terminated": _ended(one["last"])}
    return {"phase": phase, "conditions": conditions, "containerStatuses": [shown_container]}


def _ended(detail: Mapping[str, Any]) -> dict[str, Any]:
    code = detail.get("exit_code", 70)
    ended = {
        "exitCode": code,
        "reason": detail.get("reason", "Error" if code else "Completed"),
        "startedAt": _at(18),
        "finishedAt": _at(5),
    }
    if "says" in detail:
        said = {
            "rankzero": 1,
            "outcome": "failed" if code else "done",
            "exit_code": code,
            "node": 0,
            "what": "",
            "where": "",
            "hint": "",
            "step": None,
            "total_steps": 1000,
            "checkpoint": None,
            "run_dir": f"/outputs/runs/{RUN}",
        }
        ended["message"] = json.dumps({**said, **detail["says"]})
    elif "message" in detail:
        ended["message"] = detail["message"]
    return ended


def _event(one: Mapping[str, Any], pods: Mapping[str, str]) -> dict[str, Any]:
    kind, _, name = one["of"].partition(" ")
    first, last = one.get("minutes", (12, 1))
    subject = pods.get(name, name) if kind == "Pod" else name or RUN
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{subject}.17a{len(one['message']):03x}", "creationTimestamp": _at(first)},
        "type": one.get("type", "Warning"),
        "reason": one["reason"],
        "message": one["message"],
        "involvedObject": {"kind": kind, "name": subject, "namespace": "train"},
        "firstTimestamp": _at(first),
        "lastTimestamp": _at(last),
        "count": one.get("count", 4),
        "source": {"component": one["from"]},
    }


def _nodes(nodes: Any) -> list[dict[str, Any]]:
    if nodes == "usual":
        nodes = [
            {"name": "cp-1", "gpus": 0, "taints": [{"key": "node-role.kubernetes.io/control-plane"}]},
            {"name": "gpu-a"},
            {"name": "gpu-b"},
            {"name": "cpu-1", "gpus": 0},
        ]
    return [_node(one) for one in nodes]


def _node(one: Mapping[str, Any]) -> dict[str, Any]:
    gpus = one.get("gpus", 8)
    allocatable = {"cpu": "128", "memory": "1056Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    if not gpus:
        allocatable |= {"cpu": "4", "memory": "16Gi"}
    else:
        allocatable["nvidia.com/gpu"] = str(gpus)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": one["name"],
            "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": one["name"]},
        },
        "spec": {"taints": [{"effect": "NoSchedule", **taint} for taint in one.get("taints", ())]},
        "status": {"allocatable": allocatable, "conditions": [ready]},
    }
    return _merged(node, one.get("more", {}))


def _workload(kind: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    for condition in workload.get("status", {}).get("conditions", ()):
        condition.setdefault("lastTransitionTime", _at(2))
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"{kind}-{RUN}-5d2f1",
            "namespace": "train",
            "creationTimestamp": _at(20),
            "ownerReferences": [{"kind": _TRAINING[kind][1], "name": RUN, "uid": "6f1c-training"}],
        },
        "spec": {"queueName": "gpu-queue", "active": True, "podSets": [{"name": "main", "count": 2}]}
        | workload.get("spec", {}),
        "status": workload.get("status", {}),
    }


def _merged(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` laid over `base`, mappings key by key, everything else replaced; `+key` adds to a list."""
    result = dict(base)
    for key, value in more.items():
        if key.startswith("+"):
            result[key[1:]] = [*result.get(key[1:], ()), *value]
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result
