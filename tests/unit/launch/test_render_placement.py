"""Whatever pods we render are as a site has all its pods, and where it has them: of runs, and beside them."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan, make_plan
from rankzero.launch.render import render
from rankzero.launch.render.reader import reader_pod
from rankzero.launch.render.serving import ServingWishes, serving_objects
from rankzero.launch.render.tensorboard import tensorboard
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.quantity import as_number
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec

STORAGE = {name: {"mount": f"/{name}", "claim": name} for name in ("outputs", "cache")}
PATCH = {
    "runtimeClassName": "nvidia",
    "securityContext": {"supplementalGroups": [4242]},
    "containers": [
        {
            "name": "node",
            "securityContext": {"readOnlyRootFilesystem": True},
            "resources": {"requests": {"ephemeral-storage": "500Mi"}, "limits": {"ephemeral-storage": "50Gi"}},
        }
    ],
}
SITE = {
    "image": "i",
    "kind": "job",
    "storage": STORAGE,
    "prepare": "always",
    "scheduler": "own-scheduler",
    "priority_class": "research",
    "node_selector": {"pool": "gpus"},
    "tolerations": [{"key": "team", "value": "ours", "effect": "NoSchedule"}],
    "image_pull_secrets": ["registry"],
    "service_account": {"name": "trainer"},
    "user": 1234,
    "resources": {"cpu": 2, "memory": "4Gi", "limits": {"cpu": 4, "memory": "8Gi"}},
    "pod_patch": PATCH,
}


def plan(*, idle: bool = False, **more: Any) -> Plan:
    spec = {"name": "r", "model": {"name": "o/m"}, "data": {"train": "/outputs/t.jsonl"}}
    cluster = ClusterSpec.model_validate({**SITE, **more})
    return make_plan(resolve(RunSpec.model_validate(spec)), cluster, idle=idle)


def pods(value: object) -> list[dict[str, Any]]:
    """Every pod's spec in it."""
    if isinstance(value, list):
        return [found for one in value for found in pods(one)]
    if not isinstance(value, dict):
        return []
    return [value] if "containers" in value else [found for one in value.values() for found in pods(one)]


def rendered(what: str, **more: Any) -> list[Manifest]:
    dev = {"kind": "statefulset", "prepare": "never"} if what == "dev" else {}
    made = plan(idle=what == "dev", **dev, **more)
    if what in ("run", "dev"):
        return render(made)
    if what == "serve":
        return serving_objects(made, ServingWishes("assistant"))
    return [reader_pod(made.cluster, "pull")] if what == "pull" else tensorboard(made.cluster)


@pytest.mark.parametrize(("what", "count"), [("run", 2), ("serve", 1), ("pull", 1), ("tensorboard", 1)])
def test_every_pod_has_what_the_site_says_of_pods(what: str, count: int) -> None:
    found = pods(rendered(what))
    assert len(found) == count
    for pod in found:
        assert pod["schedulerName"] == "own-scheduler"
        assert pod["nodeSelector"] == {"pool": "gpus"}
        assert {"key": "team", "operator": "Equal", "value": "ours", "effect": "NoSchedule"} in pod["tolerations"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}] and pod["serviceAccountName"] == "trainer"
        assert pod["runtimeClassName"] == "nvidia"
        assert (pod["securityContext"]["supplementalGroups"], pod["securityContext"]["runAsUser"]) == ([4242], 1234)
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        disk = {part: container["resources"][part]["ephemeral-storage"] for part in ("requests", "limits")}
        if what in ("run", "serve"):
            assert disk == {"requests": "500Mi", "limits": "50Gi"}
            assert pod["priorityClassName"] == "research"
        else:
            assert disk == {"requests": "500Mi", "limits": "1Gi"}, "what a volume is read with is little"
        assert set(container["resources"]["limits"]) >= {"cpu", "memory"}, "where a quota counts them, none may lack"
        assert set(container["resources"]["requests"]) >= {"cpu", "memory"}


PROCESS: dict[str, Any] = {
    "command": ["numactl", "--interleave=all", "python", "-m", "rankzero.launch.node", "/etc/rankzero"],
    "args": ["more"],
    "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
    "livenessProbe": {"exec": {"command": ["test", "-e", "/outputs/runs/r/metrics.jsonl"]}},
    "ports": [{"name": "more", "containerPort": 1}],
    "readinessProbe": {"exec": {"command": ["true"]}},
    "startupProbe": None,
}
PLACE: dict[str, Any] = {
    "env": [{"name": "HOME", "value": "/h"}],
    "envFrom": [{"secretRef": {"name": "proxy"}}],
    "image": "other",
    "imagePullPolicy": "Always",
    "resources": {"limits": {"ephemeral-storage": "50Gi"}},
    "securityContext": {"readOnlyRootFilesystem": True},
    "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
    "workingDir": "/work",
}


@pytest.mark.parametrize("what", ["run", "dev", "serve"])
def test_the_process_that_trains_is_patched_in_the_pods_that_train_alone(what: str) -> None:
    """Another pod would run the training node, and the preparation would wait for itself."""

    def made(container: dict[str, Any]) -> list[dict[str, Any]]:
        patch = {"containers": [{"name": "node", **container}, {"name": "side", "image": "s", "args": ["a"]}]}
        return pods(rendered(what, pod_patch=patch))

    both, alone, bare = made({**PROCESS, **PLACE}), made(PLACE), made({})
    for pod, expected, unpatched in zip(both, alone, bare, strict=True):
        own, side = pod["containers"]
        assert side == {"name": "side", "image": "s", "args": ["a"]}
        if own["name"] == "node" and what == "run":
            assert own["command"] == PROCESS["command"] and own["lifecycle"] == PROCESS["lifecycle"]
            continue
        assert pod == expected
        assert own["workingDir"] == "/work" and own["envFrom"] == PLACE["envFrom"] and own["image"] == "other"
        assert own["command"] == unpatched["containers"][0]["command"]


def test_pods_that_wait_have_the_devices_that_a_patch_asks_for() -> None:
    patch = {"containers": [{"name": "node", "command": ["x"], "resources": {"limits": {"rdma/ib": 1}}}]}
    [pod] = pods(rendered("dev", pod_patch=patch))
    assert pod["containers"][0]["resources"]["limits"]["rdma/ib"] == 1


@pytest.mark.parametrize("what", ["pull", "tensorboard"])
def test_what_a_site_says_of_training_alone_is_not_for_pods_beside(what: str) -> None:
    """The host's network would publish them, and their volumes and containers are others."""
    training = {
        "hostNetwork": True,
        "hostPID": True,
        "hostIPC": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "priorityClassName": "training",
        "initContainers": [{"name": "first", "image": "x"}],
        "containers": [
            {
                "name": "node",
                "volumeMounts": [{"name": "cache", "mountPath": "/root/.cache"}],
                "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_NICE"]}},
                "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "900Gi"}},
                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            },
            {"name": "side", "image": "x"},
        ],
        "volumes": [{"name": "more", "emptyDir": {}}],
    }

    def made(patch: dict[str, Any]) -> list[dict[str, Any]]:
        cluster = ClusterSpec.model_validate({**SITE, "pod_patch": patch})
        return pods([reader_pod(cluster, "pull")] if what == "pull" else tensorboard(cluster))

    assert made(training) == made({})
    [pod] = made({"nodeSelector": {"disk": "near"}, **training})
    assert pod["nodeSelector"] == {"pool": "gpus", "disk": "near"} and "priorityClassName" not in pod


@pytest.mark.parametrize(("limit", "expected"), [(None, None), (0.05, "50m"), (0.5, "500m"), (32, "1")])
@pytest.mark.parametrize("what", ["pull", "tensorboard"])
def test_pods_beside_ask_a_quota_for_a_core_at_most(what: str, limit: float | None, expected: str | None) -> None:
    cluster = ClusterSpec.model_validate({**SITE, "resources": {"limits": {} if limit is None else {"cpu": limit}}})
    [pod] = pods([reader_pod(cluster, "pull")] if what == "pull" else tensorboard(cluster))
    [container] = pod["containers"]
    assert container["resources"]["limits"].get("cpu") == expected
    assert as_number(container["resources"]["requests"]["cpu"]) <= (limit or 1)
