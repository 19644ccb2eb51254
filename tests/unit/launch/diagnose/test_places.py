"""What is found of runs on docker and on Slurm: the same causes, and nothing to do that only a cluster's API could."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch import labels
from rankzero.launch.diagnose import diagnose
from rankzero.launch.diagnose.remedies import Remedies, remedies, told
from rankzero.launch.diagnose.signs import ON_CPU, SIGNS
from rankzero.launch.evidence import Evidence
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds.slurm import CONDITION
from rankzero.launch.pods import parse_pod
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.cluster_spec import ClusterSpec
from tests.support.evidence import prepared
from tests.support.situations import situations

PLACES = ["docker", "slurm"]
OF_KUBERNETES = re.compile(
    r"kubectl|kubelet|\bService\b|\bSecret\b|network polic|autoscaler|cordon|pod_patch|node_selector"
)
EVERY = [*((one.name, one.evidence) for part in ("seen", "unseen") for one in situations(part))]
EVERY += [(one.name, one.evidence) for one in prepared()]


def moved(evidence: Evidence, place: str) -> Evidence:
    """The same run as another backend shows it: its pods, what they said, and nothing else that a cluster knows."""
    named = {str(pod["metadata"]["name"]): _pod(pod, place) for pod in evidence.pods if _shown(pod)}
    first = next(iter(named.values()), None)
    about = {"name": evidence.run, "labels": {labels.KIND: place}, "annotations": {labels.NODES: "2"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about}
    logs = {str(named[name]["metadata"]["name"]): text for name, text in evidence.logs.items() if name in named}
    return replace(
        evidence,
        objects=(config,) if first is not None else (),
        pods=tuple({str(pod["metadata"]["name"]): pod for pod in named.values()}.values()),
        events=(),
        nodes=None,
        workloads=(),
        storage_classes=None,
        logs=logs,
        refused=(),
    )


def _shown(pod: Mapping[str, Any]) -> bool:
    """Neither has containers that a scheduler, a kubelet or another container keeps from starting."""
    return bool((pod.get("status") or {}).get("containerStatuses"))


def _pod(pod: Mapping[str, Any], place: str) -> dict[str, Any]:
    plain, role = parse_pod(pod), labels.role_of(pod)
    name = f"{plain.name.rpartition('-prepare')[0] or 'run'}-{plain.node if role == labels.NODE_ROLE else 'prepare'}"
    (own, *_) = pod["status"]["containerStatuses"]
    container = {"name": "node", "restartCount": own.get("restartCount", 0), "state": dict(own.get("state") or {})}
    phase = pod["status"].get("phase", "Pending")
    if "waiting" in container["state"]:
        container["state"] = {"waiting": {"reason": "ContainerCreating" if place == "docker" else "Completing"}}
    if place == "slurm" and "lastState" in own:
        container["lastState"] = own["lastState"]
    status: dict[str, Any] = {"phase": phase, "containerStatuses": [container]}
    if place == "slurm":
        state = "RUNNING" if phase == "Running" else "FAILED"
        status["conditions"] = [{"type": CONDITION, "status": "True", "reason": state, "message": "17: "}]
    about = {labels.KIND: place, labels.ROLE: role, "rankzero.dev/node": str(plain.node)}
    metadata = {"name": name, "labels": about, "creationTimestamp": pod["metadata"].get("creationTimestamp")}
    only = (pod["spec"].get("containers") or [{}])[0]
    spec = {
        "nodeName": plain.host,
        "containers": [{**only, "name": "node"}],
        "volumes": pod["spec"].get("volumes") or (),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_advised_that_only_kubernetes_has(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    found: set[str] = set()
    wrong = []
    for name, evidence in EVERY:
        for finding in diagnose(moved(evidence, place)):
            found.add(finding.code)
            if OF_KUBERNETES.search(finding.fix) or "kubectl" in finding.cause:
                wrong.append(f"{name}: {finding.code}: {finding.fix}")
    with capsys.disabled():
        print(f"\n{place}: {len(found)} kinds of findings")
    assert not wrong, "\n".join(wrong)
    assert len(found) >= 30, sorted(found)


SETTINGS = {
    **{"image_pull_policy": "Always", "image_pull_secrets": "[s]", "gpu_resource": "amd.com/gpu", "user": "0"},
    **{"node_selector": "{a: b}", "tolerations": "[{key: a}]", "spread": "{mode: none}", "queue": "{name: q}"},
    **{"priority_class": "p", "scheduler": "s", "service_account": "{name: s}", "network_policy": "true"},
    **{"annotations": "{a: b}", "labels": "{a: b}", "pod_patch": "{a: b}", "context": "c", "min_nodes": "1"},
    **{"timeout_seconds": "60", "ttl_seconds_after_finished": "60", "num_nodes": "2", "nproc_per_node": "2"},
    **{"resources.shm": "16Gi", "resources.rdma": "rdma/ib", "resources.limits": "{cpu: 8}", "resources.cpu": "4"},
    **{"resources.memory": "8Gi", "env": "{A: b}", "secrets": "{A: {name: a}}", "prepare": "never", "gpu": "false"},
    **{"storage.outputs.size": "1Gi", "storage.outputs.claim": "c", "storage.outputs.sub_path": "a"},
    **{"storage.outputs.class": "fast", "grace_period_seconds": "300", "rendezvous_timeout_seconds": "60"},
    **{"max_restarts": "1", "image": "i", "namespace": "n", "slurm.partition": "p"},
}
"""One value, other than the default, of each field of cluster.yaml."""


def refused(place: str) -> set[str]:
    """The fields that a cluster.yaml of this place may not have."""
    outputs = "storage.outputs={mount: /o, host_path: /o}"
    found = set()
    for field, value in SETTINGS.items():
        try:
            load_cluster_spec(None, [f"kind={place}", "image=i", "gpu=false", outputs, f"{field}={value}"], env={})
        except ConfigError:
            found.add(field)
    return found


def names(field: str, fix: str) -> bool:
    """Fields are words as others are: `set user to …` and `user: …` mean one."""
    plain = re.escape(field.replace(".outputs.", ".")).replace(r"storage\.", r"storage\.(?:\S+\.)?")
    if "." in field or "_" in field:
        return re.search(rf"\b{plain}\b", fix) is not None
    return re.search(rf"\b(?:set|correct|raise|lower|with) {plain}\b|\b{plain}:", fix) is not None


def test_every_field_has_a_value_here() -> None:
    assert {field.partition(".")[0] for field in SETTINGS} | {"storage", "kind", "slurm"} == set(
        ClusterSpec.model_fields
    )


@pytest.mark.parametrize("place", PLACES)
def test_no_field_is_advised_that_the_place_refuses(place: str) -> None:
    fields_ = refused(place)
    assert "min_nodes" in fields_ and "resources.memory" not in fields_
    wrong = [
        f"{name}: {finding.code}: {field}: {finding.fix}"
        for name, evidence in EVERY
        for finding in diagnose(moved(evidence, place))
        for field in fields_
        if names(field, finding.fix)
    ]
    wrong += [f"{sign.code}: {field}" for sign in (*SIGNS, *ON_CPU) for field in fields_ if names(field, sign.fix)]
    assert not wrong, "\n".join(wrong)


def test_what_a_place_has_of_its_own_is_no_sign_s_affair() -> None:
    """Signs that no situation shows advise no other than what helps where the run is."""
    for sign in (*SIGNS, *ON_CPU):
        assert OF_KUBERNETES.search(sign.fix) is None, sign.code
    for place in PLACES:
        joined = JoinedEvidence(moved(EVERY[0][1], place))
        for words in fields(Remedies):
            text = told(
                joined, getattr(remedies(joined), words.name), joined.pods[0], ports="", secret="", size="", device=""
            )
            assert OF_KUBERNETES.search(text) is None and "{run}" not in text, words.name


def test_a_cluster_is_advised_as_before() -> None:
    (finding,) = [one for one in diagnose(dict(EVERY)["node_silent"]) if one.code == "node-silent"]
    assert "`kubectl delete pod " in finding.fix
