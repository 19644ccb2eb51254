"""What is found of runs on docker and on Slurm: the same causes, and nothing to do that only a cluster's API could."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from rankzero.launch import labels
from rankzero.launch.diagnose import diagnose
from rankzero.launch.diagnose.remedies import Remedies, remedies, told
from rankzero.launch.diagnose.signs import ON_CPU, SIGNS
from rankzero.launch.evidence import Evidence
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.kinds.slurm import CONDITION
from rankzero.launch.pods import parse_pod
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


def test_what_a_place_has_of_its_own_is_no_sign_s_affair() -> None:
    """Signs that no situation shows advise no other than what helps where the run is."""
    for sign in (*SIGNS, *ON_CPU):
        assert OF_KUBERNETES.search(sign.fix) is None, sign.code
    for place in PLACES:
        joined = JoinedEvidence(moved(EVERY[0][1], place))
        for words in fields(Remedies):
            text = told(joined, getattr(remedies(joined), words.name), joined.pods[0], ports="", secret="")
            assert OF_KUBERNETES.search(text) is None and "{run}" not in text, words.name


def test_a_cluster_is_advised_as_before() -> None:
    (finding,) = [one for one in diagnose(dict(EVERY)["node_silent"]) if one.code == "node-silent"]
    assert "`kubectl delete pod " in finding.fix
