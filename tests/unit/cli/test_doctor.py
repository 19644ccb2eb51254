"""`rankzero doctor --cluster` as a user types it, against a cluster that is only a protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.launch.backends.kubernetes.api import ATTEMPTS
from tests.unit.cli.conftest import Place
from tests.unit.cli.test_plan import CLUSTER, node, put


@pytest.fixture
def gpus(place: Place) -> Place:
    """A cluster with everything that the runs of its cluster.yaml need."""
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    node(place, "gpu-a", 8)
    node(place, "gpu-b", 4)
    put(place, "Secret", "hf-token", data={"token": "c2VjcmV0LXZhbHVl"})
    put(place, "StorageClass", "shared", namespace="")
    return place


def checks(place: Place, code: int, more: str = "") -> dict[str, dict[str, Any]]:
    """The last finding of each name."""
    done = place(f"doctor --cluster cluster.yaml --json {more}")
    value = json.loads(done.out)
    assert done.code == value["exit_code"] == code, done.out + done.err
    assert value["ok"] == (code == 0) and "c2VjcmV0" not in done.out
    assert all(bool(one["fix"]) == (one["state"] != "ok") for one in value["checks"])
    assert place.cluster.changes() == []
    return {one["name"]: one for one in value["checks"]}


def test_everything_is_there(gpus: Place) -> None:
    found = checks(gpus, 0)
    assert {one["state"] for one in found.values()} == {"ok"}
    words = {name: one["what"] for name, one in found.items()}
    assert words["cluster.yaml"] == "2 pods with 4 GPUs, as job in namespace train"
    assert words["api"] == f"{gpus.cluster.url}, Kubernetes v1.36.2"
    assert words["kinds"].startswith("job, jobset, pytorchjob, statefulset, trainjob served")
    assert "gpu-a 8 ×" in words["nodes"] and "gpu-b 4 ×" in words["nodes"]
    assert words["storage"] == "classes shared; claim outputs would be made"
    assert words["secrets"] == "hf-token there" and words["queue"].startswith("no Kueue")
    assert "the server would take" in words["rights"]
    done = gpus("doctor --cluster cluster.yaml")
    assert done.code == 0 and all(line.startswith("ok ") for line in done.out.splitlines())


def test_what_is_missing_has_one_fix_each(gpus: Place) -> None:
    gpus.cluster.plurals -= {"trainjobs"}
    gpus.cluster.publish()
    gpus.cluster.store.drop("secrets", "hf-token")
    put(gpus, "Secret", "hf-token", data={"other": "eA=="})
    done = gpus("doctor --cluster cluster.yaml")
    assert done.code == 78, done.out
    assert "not trainjob" in done.out
    assert "Secret/hf-token: it has no key token" in done.out and "fix: HF_TOKEN comes from it" in done.out


def test_pods_that_would_wait(gpus: Place) -> None:
    gpus.cluster.store.drop("nodes", "gpu-b", "")
    shared = checks(gpus, 0)["nodes"]  # both pods have room on gpu-a: nothing keeps them from it, or is to be done
    assert shared["state"] == "ok" and "1 of 1 node with 4 nvidia.com/gpu: gpu-a 8 ×" in shared["what"]
    assert "2 pods would share it" in shared["what"] and "wait" not in shared["what"]
    gpus.cluster.store.drop("nodes", "gpu-a", "")
    node(gpus, "small", 2)
    assert checks(gpus, 69)["nodes"]["state"] == "wrong"


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "statefulset", "trainjob"])
def test_every_pod_of_a_kind_is_counted(gpus: Place, kind: str) -> None:
    """gpu-a has room for two pods, gpu-b for one."""
    Path("cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", f"num_nodes: 3\nkind: {kind}"), encoding="utf-8")
    assert "3 pods would share them" in checks(gpus, 0)["nodes"]["what"]
    Path("cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", f"num_nodes: 4\nkind: {kind}"), encoding="utf-8")
    assert "room for 3 of the 4 pods of a run at once" in checks(gpus, 69)["nodes"]["what"]


def test_an_elastic_run_waits_for_its_fewest_pods_alone(gpus: Place) -> None:
    elastic = "num_nodes: 8\nkind: pytorchjob\nmin_nodes: "
    Path("cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", f"{elastic}3"), encoding="utf-8")
    found = checks(gpus, 0)["nodes"]
    assert found["state"] == "look" and "room for 3 of the 8 pods of a run at once" in found["what"]
    Path("cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", f"{elastic}4"), encoding="utf-8")
    assert checks(gpus, 69)["nodes"]["state"] == "wrong"


TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
ZONE = {"key": "zone", "operator": "In", "values": ["nowhere"]}
AFFINITY = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}]}}

SIDECAR = "{name: logs, image: x, restartPolicy: Always, resources: {requests: {cpu: 65}}}"


@pytest.mark.parametrize(
    ("asked", "nodes", "why"),
    [
        ("", {"taints": [TAINT]}, "2 nodes have taint team=vision:NoSchedule"),
        ("gpu: false", {"unschedulable": True}, "2 nodes are cordoned"),
        ("gpu: false\nnode_selector: {zone: nowhere}", {}, "2 nodes lack zone=nowhere"),
        ("resources: {memory: 900Gi}", {}, "a node that may be used has 500Gi memory at most, of 900Gi"),
        ("resources: {cpu: 200}", {}, "a node that may be used has 64 cpu at most, of 200"),
        ("resources: {rdma: rdma/ib}", {}, "a node that may be used has 0 rdma/ib at most, of 1"),
        ("gpu_resource: amd.com/cpx_nps4", {}, "0 of 2 nodes with 4 amd.com/cpx_nps4"),
        (f"pod_patch: {{initContainers: [{SIDECAR}]}}", {}, "a node that may be used has 64 cpu at most, of 65"),
        (f"pod_patch: {{affinity: {{nodeAffinity: {json.dumps(AFFINITY)}}}}}", {}, "outside of its node affinity"),
    ],
)
def test_nodes_that_no_pod_can_ever_be_on(gpus: Place, asked: str, nodes: dict[str, Any], why: str) -> None:
    for name in ("gpu-a", "gpu-b"):
        node(gpus, name, 8, offers={"memory": "500Gi", "cpu": "64"}, **nodes)
    fewer = CLUSTER.replace("nproc_per_node: 4\n", "") if "gpu: false" in asked else CLUSTER
    Path("cluster.yaml").write_text(fewer + asked, encoding="utf-8")
    found = checks(gpus, 69)["nodes"]
    assert found["state"] == "wrong" and why in found["what"] and "autoscaler" in found["fix"]
    assert ("set gpu_resource to what nodes offer (nvidia.com/gpu)" in found["fix"]) is ("cpx" in asked)


def test_what_keeps_no_pod_off_a_node(gpus: Place) -> None:
    """A soft taint, as the autoscaler puts on idle nodes, and one that the run tolerates."""
    Path("cluster.yaml").write_text(f"{CLUSTER}tolerations: [{{key: lab/startup}}]\n", encoding="utf-8")
    node(gpus, "gpu-a", 8, taints=[{"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"}])
    node(gpus, "gpu-b", 4, taints=[{"key": "lab/startup", "effect": "NoSchedule"}])
    assert checks(gpus, 0)["nodes"]["state"] == "ok"


def test_nodes_that_come_and_go_are_not_to_be_uncordoned(gpus: Place) -> None:
    for name, key in (("gpu-a", "ToBeDeletedByClusterAutoscaler"), ("gpu-b", "karpenter.sh/disrupted")):
        node(gpus, name, 8, taints=[{"key": key, "effect": "NoSchedule"}])
    found = checks(gpus, 69)["nodes"]
    assert "1 node comes, goes or is sick (karpenter.sh/disrupted:NoSchedule)" in found["what"]
    assert "describe node" in found["fix"] and "uncordon" not in found["fix"]


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "statefulset", "trainjob"])
@pytest.mark.parametrize(
    ("selector", "code"), [({"app": "inference"}, 0), ({"rankzero.dev/run": "rankzero-doctor"}, 69)]
)
def test_pods_that_keep_off_each_other(gpus: Place, kind: str, selector: dict[str, str], code: int) -> None:
    """gpu-a has room for both; keeping off others does not keep them apart."""
    gpus.cluster.store.drop("nodes", "gpu-b", "")
    term = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    more = f"kind: {kind}\npod_patch: {json.dumps({'affinity': affinity})}\n"
    Path("cluster.yaml").write_text(CLUSTER + more, encoding="utf-8")
    assert checks(gpus, code)["nodes"]["state"] == ("wrong" if code else "ok")


@pytest.mark.parametrize("who", ["Kueue", "Karpenter", "the cluster's autoscaler"])
def test_nodes_that_somebody_may_bring(gpus: Place, who: str) -> None:
    """A pool is at zero, a flavor brings tolerations, or the nodes are another cluster's."""
    for name in ("gpu-a", "gpu-b"):
        gpus.cluster.store.drop("nodes", name, "")
    assert checks(gpus, 69)["nodes"]["state"] == "wrong"
    if who == "Kueue":
        gpus.cluster.plurals |= {"workloads", "localqueues", "workloadpriorityclasses"}
        gpus.cluster.publish()
        put(gpus, "LocalQueue", "team", spec={})
        Path("cluster.yaml").write_text(f"{CLUSTER}queue: {{name: team}}\n", encoding="utf-8")
    elif who == "Karpenter":
        versions = [{"version": "v1", "groupVersion": "karpenter.sh/v1"}]
        gpus.cluster.documents["/apis"]["groups"].append({"name": "karpenter.sh", "versions": versions})
    else:
        put(gpus, "ConfigMap", "cluster-autoscaler-status", namespace="kube-system")
    found = checks(gpus, 0)["nodes"]
    assert found["state"] == "look" and f"{who} may" in found["what"]


def test_a_claim_that_one_host_at_a_time_mounts(gpus: Place) -> None:
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    put(gpus, "PersistentVolumeClaim", "outputs", **claim)
    found = checks(gpus, 0)["storage"]
    assert found["state"] == "look" and "claim outputs is ReadWriteOnce: one host at a time" in found["what"]


DELETED = {"deletionTimestamp": "2026-11-21T07:00:00Z"}
UNSURE = {"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}


def kept(name: str, most: str, used: str) -> dict[str, Any]:
    return {"spec": {"hard": {name: most}}, "status": {"hard": {name: most}, "used": {name: used}}}


@pytest.mark.parametrize(
    ("kind", "name", "about", "line", "said"),
    [
        (
            *("ResourceQuota", "q", kept("requests.nvidia.com/gpu", "16", "16"), "quota"),
            "16 of 16 requests.nvidia.com/gpu are taken; pods wait until 8 are free",
        ),
        (
            *("LimitRange", "l", {"spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]}}),
            *("quota", "LimitRange/l: container node asks for 4 nvidia.com/gpu, and 2 is the most"),
        ),
        (
            *("LimitRange", "l", {"spec": {"limits": [{"type": "Container", "max": {"memory": "64Gi"}}]}}),
            *("quota", "LimitRange/l: container node asks for 512Gi memory, and 64Gi is the most"),
        ),
        (
            *("LimitRange", "l", {"spec": {"limits": [{"type": "Pod", "min": {"nvidia.com/gpu": "8"}}]}}),
            *("quota", "LimitRange/l: a pod asks for 4 nvidia.com/gpu, and 8 is the least"),
        ),
        ("PersistentVolumeClaim", "outputs", {"status": {"phase": "Lost"}}, "storage", "outputs has lost its volume"),
        ("PersistentVolumeClaim", "outputs", {"metadata": DELETED}, "storage", "outputs is being deleted"),
        ("LocalQueue", "team", {"spec": {"stopPolicy": "HoldAndDrain"}}, "queue", "it is stopped (HoldAndDrain)"),
        ("LocalQueue", "team", {"status": {"conditions": [UNSURE]}}, "queue", "it is not active: Can't submit new"),
    ],
)
def test_what_else_pods_would_wait_for(
    gpus: Place, kind: str, name: str, about: dict[str, Any], line: str, said: str
) -> None:
    if kind == "LocalQueue":
        gpus.cluster.plurals |= {"workloads", "localqueues", "workloadpriorityclasses"}
        gpus.cluster.publish()
        Path("cluster.yaml").write_text(f"{CLUSTER}queue: {{name: team}}\n", encoding="utf-8")
    if "512Gi" in said:
        Path("cluster.yaml").write_text(f"{CLUSTER}resources: {{memory: 512Gi}}\n", encoding="utf-8")
    put(gpus, kind, name, **{"spec": {}, **about})
    found = checks(gpus, 69)[line]
    assert found["state"] == "wrong" and said in found["what"]
    assert said in gpus("submit run.yaml --detach").err


def test_a_claim_that_nothing_makes_a_volume_for(gpus: Place) -> None:
    Path("cluster.yaml").write_text(CLUSTER.replace(", class: shared", ""), encoding="utf-8")
    assert "no storage class is the default" in checks(gpus, 69)["storage"]["what"]
    put(gpus, "PersistentVolumeClaim", "outputs", spec={}, status={"phase": "Pending"})
    found = checks(gpus, 69)["storage"]
    assert "no storage class is the default" in found["what"] and found["fix"].startswith("delete it and give")
    put(gpus, "PersistentVolume", "v", namespace="", spec={}, status={"phase": "Available"})
    assert checks(gpus, 0)["storage"]["state"] == "look"
    gpus.cluster.forbidden |= {("list", "persistentvolumes")}
    assert checks(gpus, 0)["storage"]["state"] == "look"


@pytest.mark.parametrize("group", ["storageclass.kubernetes.io", "storageclass.beta.kubernetes.io"])
def test_the_default_class_makes_a_volume(gpus: Place, group: str) -> None:
    Path("cluster.yaml").write_text(CLUSTER.replace(", class: shared", ""), encoding="utf-8")
    notes = {"annotations": {f"{group}/is-default-class": "true"}}
    put(gpus, "StorageClass", "shared", namespace="", metadata=notes)
    assert checks(gpus, 0)["storage"]["what"].startswith("classes shared (default)")
    put(gpus, "PersistentVolumeClaim", "outputs", spec={}, status={"phase": "Pending"})
    assert checks(gpus, 0)["storage"]["state"] == "ok"


def test_beside_a_smoke_test_that_is_under_way_everything_is_judged(gpus: Place) -> None:
    """Its objects are left alone by a submit, which then judges nothing."""
    assert gpus("submit run.yaml --detach name=rankzero-smoke").code == 0
    gpus.cluster.requests.clear()
    gpus.cluster.forbidden |= {("patch", "jobs")}
    gpus.cluster.store.drop("secrets", "hf-token")
    found = checks(gpus, 77)
    assert found["secrets"]["state"] == found["rights"]["state"] == "wrong"
    assert found["secrets"]["what"] == "hf-token not found"


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("image_pull_secrets: [registry]", "secrets", "hf-token there; registry not found"),
        ("pod_patch: {volumes: [{name: v, persistentVolumeClaim: {claimName: more}}]}", "storage", "more is not there"),
        ("queue: {name: team}", "queue", "no Kueue"),
    ],
)
def test_what_is_not_there_is_not_ok(gpus: Place, more: str, line: str, said: str) -> None:
    Path("cluster.yaml").write_text(f"{CLUSTER}{more}\n", encoding="utf-8")
    found = checks(gpus, 78)[line]
    assert found["state"] == "wrong" and said in found["what"]


def test_what_the_server_warns_of(gpus: Place) -> None:
    """Pod Security judges a Job's pods by a warning alone."""
    why = 'would violate PodSecurity "restricted:latest": hostPath volumes (volume "outputs")'
    gpus.cluster.writes.warnings |= {"Job": why}
    found = checks(gpus, 0)["rights"]
    assert found["state"] == "look" and "Pod Security restricted:latest forbids hostPath volumes" in found["what"]
    assert "storage.<name>.claim" in found["fix"]
    gpus.cluster.writes.warnings |= {"Job": "batch/v1 Job is old"}
    assert "Job/rankzero-doctor: the server warns: batch/v1 Job is old" in checks(gpus, 0)["rights"]["what"]
    assert "the server warns: batch/v1 Job is old" in gpus("submit run.yaml --detach").err


PATCHES = {
    "volume ca": "volumes: [{name: ca, secret: {secretName: s}}]",
    "volume all": "volumes: [{name: all, projected: {sources: [{secret: {name: s}}]}}]",
    "container node": "containers: [{name: node, envFrom: [{secretRef: {name: s}}]}]",
    "container one": "initContainers: [{name: one, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]",
}


@pytest.mark.parametrize("who", PATCHES)
def test_secrets_that_the_patch_brings(gpus: Place, who: str) -> None:
    Path("cluster.yaml").write_text(f"{CLUSTER}pod_patch: {{{PATCHES[who]}}}\n", encoding="utf-8")
    found = checks(gpus, 69)["secrets"]
    assert found["what"] == f"Secret/s: there is no such secret in namespace train, which {who} takes"
    put(gpus, "Secret", "s", data={"k": "eA=="})
    assert checks(gpus, 0)["secrets"]["what"] == "hf-token, s there"
    gpus.cluster.store.drop("secrets", "s")
    optional = (
        PATCHES[who]
        .replace("{name: s", "{optional: true, name: s")
        .replace("{secretName", "{optional: true, secretName")
    )
    Path("cluster.yaml").write_text(f"{CLUSTER}pod_patch: {{{optional}}}\n", encoding="utf-8")
    assert checks(gpus, 0)["secrets"]["what"] == "hf-token there"


def test_without_rights(gpus: Place) -> None:
    gpus.cluster.forbidden |= {("list", "nodes"), ("patch", "jobs")}
    found = checks(gpus, 77)
    assert found["nodes"]["what"] == "may not be read"
    assert found["rights"]["state"] == "wrong" and "jobs" in found["rights"]["what"]
    gpus.cluster.forbidden |= {("get", "persistentvolumeclaims"), ("get", "secrets")}
    found = checks(gpus, 77)
    assert "claim outputs may not be read" in found["storage"]["what"]
    assert found["secrets"]["what"] == "hf-token may not be read"


def test_rights_that_later_commands_use(gpus: Place) -> None:
    gpus.cluster.forbidden |= {("delete", "jobs"), ("watch", "pods"), ("get", "pods/log")}
    done = gpus("doctor --cluster cluster.yaml")
    assert done.code == 0 and gpus.cluster.changes() == []
    for words in ("delete jobs.batch", "watch pods", "get pods/log"):
        assert f"look   rights           not permitted to {words} in namespace train" in done.out
    assert 'the rule {apiGroups: ["batch"], resources: [jobs], verbs: [delete]}' in done.out
    gpus.cluster.reviews = False
    assert checks(gpus, 0)["rights"]["state"] == "ok"


def test_rights_that_the_server_fails_over(gpus: Place) -> None:
    """It is asked once, not for each right and six times over."""
    gpus.cluster.fail("POST", "reviews", times=10**9, status=500, reason="InternalError", message="webhook")
    found = checks(gpus, 0)["rights"]
    assert found["state"] == "look" and found["what"] == "rights could not be looked at (InternalError): webhook"
    assert sum("reviews" in request.path for request in gpus.cluster.requests) == 1


def test_nobody_answers(gpus: Place) -> None:
    gpus.cluster.die()
    found = checks(gpus, 69)
    assert found["api"]["state"] == "wrong" and list(found) == ["cluster.yaml", "api"]


def with_server(place: Place, server: str, **more: Any) -> None:
    """Another address in the kubeconfig."""
    path = place.directory / "kubeconfig"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"] |= {"server": server, **more}
    path.write_text(json.dumps(config), encoding="utf-8")


def with_login(place: Place, script: str, **more: Any) -> None:
    """A login command."""
    command = place.directory / "login"
    command.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    command.chmod(0o755)
    path = place.directory / "kubeconfig"
    config = json.loads(path.read_text(encoding="utf-8"))
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(command), **more}
    config["users"][0]["user"] = {"exec": login}
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("command", ["doctor", "doctor --json", "plan run.yaml", "plan run.yaml --json"])
def test_no_secret_is_shown(gpus: Place, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    with_server(gpus, gpus.cluster.url.replace("//", "//bob:hunter2pw@"))
    monkeypatch.setenv("MY_TOKEN", "supersecretvalue")
    done = gpus(f"{command} --cluster cluster.yaml")
    assert "//bob:[hidden]@127.0.0.1" in "".join(done.out.split()) and "hunter2pw" not in done.out + done.err
    with_login(gpus, 'echo "$MY_TOKEN is refused by https://bob:hunter2pw@idp" >&2; exit 1')
    done = gpus(f"{command} --cluster cluster.yaml")
    assert done.code == 77 and "[hidden]" in done.out
    assert not {"hunter2pw", "supersecretvalue"} & set(done.out.replace("/", " ").replace(":", " ").split())


@pytest.mark.parametrize("path", ["/nodes", "/apis"])
def test_a_server_that_is_no_kubernetes(gpus: Place, path: str) -> None:
    """It answers all in JSON."""
    gpus.cluster.documents |= {"/api/v1/nodes": {"status": "ok"}} if path == "/nodes" else {"/apis": {"status": "ok"}}
    found = checks(gpus, 69)["api"]
    assert found["what"].endswith("the answer is not of Kubernetes; is this the address of a Kubernetes API server?")
    assert "the server of context fake" in found["fix"]


def test_https_where_nobody_speaks_it(gpus: Place) -> None:
    """No try is given twice, and no network blamed."""
    with_server(gpus, gpus.cluster.url.replace("http", "https"), **{"insecure-skip-tls-verify": True})
    done = gpus("doctor --cluster cluster.yaml")
    assert done.code == 69 and "do not agree on TLS" in done.out and "is https right" in done.out
    assert "VPN" not in done.out and "trying again" not in done.err


def test_what_the_server_fails_over_hides_nothing_else(gpus: Place) -> None:
    gpus.cluster.fail("GET", "/storageclasses", times=99, status=500, reason="InternalError", message="etcd")
    found = checks(gpus, 0)
    asked = [one for one in gpus.cluster.requests if "/storageclasses" in one.path]
    assert found["storage"]["state"] == "look" and len(asked) == ATTEMPTS
    assert "storageclasses.storage.k8s.io could not be looked at (500 InternalError): etcd" in found["storage"]["what"]
    assert {one["state"] for name, one in found.items() if name != "storage"} == {"ok"}
    done = gpus("submit run.yaml --detach")
    assert done.code == 0 and "could not be looked at" in done.err


@pytest.mark.parametrize("command", ["doctor", "plan run.yaml model.name=/outputs/m"])
def test_that_something_is_tried_again_is_said(gpus: Place, command: str) -> None:
    gpus.cluster.fail("GET", "/nodes", times=3, status=503, reason="Unavailable", message="busy")
    done = gpus(f"{command} --cluster cluster.yaml")
    assert done.code == 0 and "busy; trying again in" in done.err


def test_a_cluster_file_that_is_wrong(place: Place) -> None:
    Path("cluster.yaml").write_text("image: i\nnum_nods: 2\n", encoding="utf-8")
    done = place("doctor --cluster cluster.yaml")
    assert done.code == 78 and "num_nodes" in done.err
