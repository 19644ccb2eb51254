"""No field of cluster.yaml is taken in silence: for each kind it changes what is made, is refused, or is said to be
left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.backends.docker.command import Host
from rankzero.launch.backends.docker.left_out import left_out
from rankzero.launch.backends.docker.pod import container_of, gpus_of
from rankzero.launch.backends.docker.submit import read
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import all_fields
from rankzero.spec.kinds import KINDS
from rankzero.spec.no_effect import unread_of_cluster
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec

RUN = resolve(RunSpec.model_validate({"name": "r", "model": {"name": "o/m"}, "data": {"train": "o/d"}}))
HOST = Host(name="h", cpus=64, memory=2**40)
OTHERS: dict[str, str] = {
    **{"context": "c", "namespace": "n", "image": "j", "image_pull_policy": "Always", "image_pull_secrets": "[s]"},
    **{"num_nodes": "3", "min_nodes": "1", "nproc_per_node": "4", "gpu": "false", "gpu_resource": "amd.com/gpu"},
    **{"resources.cpu": "3", "resources.memory": "9Gi", "resources.shm": "1Gi", "resources.rdma": "rdma/ib"},
    **{"resources.rdma_devices": "2", "resources.limits.cpu": "8", "resources.limits.memory": "16Gi"},
    **{"storage.cache.mount": "/h", "storage.cache.claim": "other", "storage.cache.host_path": "/h"},
    **{"storage.cache.size": "1Gi", "storage.cache.class": "fast", "storage.cache.access": "ReadWriteOnce"},
    **{"storage.cache.read_only": "true", "storage.cache.sub_path": "a", "storage.cache.url": "s3://b/p"},
    **{"prepare": "never", "secrets.A.name": "b", "secrets.A.key": "b", "secrets.A.optional": "true"},
    **{"env": "{A: b}", "node_selector": "{a: b}", "spread.mode": "none", "spread.topology_key": "zone"},
    **{"tolerations[].key": "[{key: b}]", "tolerations[].value": "[{key: a, value: b}]"},
    **{"tolerations[].effect": "[{key: a, effect: NoExecute}]"},
    **{"spread.together": "rack", "queue.name": "p", "queue.priority": "p", "priority_class": "p", "scheduler": "s"},
    **{"service_account.name": "s", "service_account.token": "true", "network_policy": "true", "user": "1234"},
    **{"grace_period_seconds": "300", "max_restarts": "1", "timeout_seconds": "60"},
    **{"ttl_seconds_after_finished": "60", "rendezvous_timeout_seconds": "60", "labels": "{a: b}"},
    **{"annotations": "{a: b}", "pod_patch": "{dnsPolicy: None}"},
    **{"slurm.partition": "p", "slurm.prepare_partition": "q", "slurm.account": "a", "slurm.qos": "q"},
    **{"slurm.constraint": "c", "slurm.reservation": "r", "slurm.gpu_type": "h100", "slurm.python": "p"},
    **{"slurm.time_limit_seconds": "3600", "slurm.runtime": "apptainer", "slurm.image": "x.sif"},
    **{"slurm.setup": "[module load x]", "slurm.options": "{exclude: n7}"},
}
"""Another value of each field than it has in BASE, or by itself."""
BESIDE = {
    "resources.rdma_devices": ["resources.rdma=rdma/ib"],
    "storage.cache.class": ["storage.cache.size=2Gi"],
    "queue.name": ["queue={name: q}"],
    "queue.priority": ["queue={name: q}"],
    "slurm.image": ["slurm.runtime=apptainer", "slurm.image=y"],
    **dict.fromkeys(("secrets.A.name", "secrets.A.key", "secrets.A.optional"), ["secrets.A={name: a}"]),
    **dict.fromkeys(("tolerations[].value", "tolerations[].effect"), ["tolerations=[{key: a}]"]),
}
"""What a field says something of."""
KEYS_OF_SECRETS = {"secrets.A.name", "secrets.A.key"}
"""Where a Secret keeps a value. Outside of Kubernetes there is none, and the name is asked for all the same."""


def made(kind: str, settings: list[str]) -> tuple[str, list[str]]:
    """All that comes of a cluster.yaml, as text, and the fields that are said to be left out. Raises ConfigError."""
    storage = ["storage.outputs={mount: /o, claim: o}", "storage.cache={mount: /c, claim: k}", "image=i"]
    if kind == "slurm":
        storage = [f"storage.{name}={{mount: /{name}, host_path: /{name}}}" for name in ("outputs", "cache")]
    base = [f"kind={kind}", "num_nodes=2", "nproc_per_node=2", *storage]
    cluster = load_cluster_spec(None, [*base, *settings], env={}).spec
    objects = render(make_plan(RUN, cluster))
    said = [problem.where for problem in unread_of_cluster(cluster)]
    if kind == "docker":
        return text(played(objects)), [*said, *left_out(cluster)]
    told = [manifest["spec"] if kind == "slurm" else manifest for manifest in objects]
    return text([told, cluster.context]), said  # the API that is asked


def text(value: object) -> str:
    """Without what only tells one rendering from another."""
    return re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", json.dumps(value))


def played(objects: list[Manifest]) -> list[Any]:
    """What docker makes of them: nothing of a pod but what a container has."""
    request = read(objects)
    found: list[Any] = [request.attempts, sorted(request.claims), sorted(map(str, request.config_maps.values()))]
    for pod in (*request.pods, *([request.prepare] if request.prepare else [])):
        one = container_of(pod, HOST, tuple(map(str, range(gpus_of(pod)))))
        found.append([one.name, one.image, one.options, one.command, dict(one.env), dict(one.secrets)])
        found.append([str(one.mounts), one.owner, pod["metadata"]])
    return found


def test_every_field_has_another_value_here() -> None:
    fields = set(all_fields(ClusterSpec))
    sections = {other.rpartition(".")[0].removesuffix("[]").removesuffix(".*") for other in fields}
    written = {name.replace("storage.cache", "storage.*").replace("secrets.A", "secrets.*") for name in OTHERS}
    assert fields - sections - {"kind"} == written


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_is_used_or_refused_or_said_to_be_left_out(kind: str) -> None:
    silent, refused = [], []
    others = OTHERS | ({"prepare": "always"} if kind == "slurm" else {})
    for field, value in others.items():
        if kind in ("docker", "slurm") and field in KEYS_OF_SECRETS:
            continue
        try:
            before, _ = made(kind, BESIDE.get(field, []))
            after, said = made(kind, [*BESIDE.get(field, []), f"{field.partition('[')[0]}={value}"])
        except ConfigError:
            refused.append(field)
            continue
        own = f"{field.partition('[')[0]}."
        told = any(f"{name}.".startswith(own) or own.startswith(f"{name}.") for name in said)
        if before == after and not told:
            silent.append(field)
    assert not silent
    assert "grace_period_seconds" not in refused and ("slurm.partition" in refused) == (kind != "slurm")


def test_docker_says_what_of_a_patch_it_leaves_out() -> None:
    security = {"privileged": True, "runAsUser": 5}
    patch = {
        "runtimeClassName": "nvidia",
        "hostNetwork": True,  # refused where containers are made
        "securityContext": {"supplementalGroups": [1], "fsGroup": 2},
        "containers": [{"name": "node", "workingDir": "/w", "tty": True, "securityContext": security}],
    }
    assert left_out(ClusterSpec(image="i", pod_patch=patch)) == [
        "pod_patch.runtimeClassName",
        "pod_patch.securityContext.supplementalGroups",
        "pod_patch.containers.tty",
        "pod_patch.containers.securityContext.privileged",
    ]
    assert left_out(ClusterSpec(image="i", max_restarts=0, resources={"memory": "1Gi"})) == []
