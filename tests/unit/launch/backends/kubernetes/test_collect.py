"""Looking at runs: what is collected, with how many calls, and what is not permitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rankzero.launch.backend import LogQuery
from rankzero.launch.silence import SilentError
from rankzero.launch.status import run_status
from tests.support.fake_cluster import Act, life, make_pods
from tests.unit.launch.backends.kubernetes.runs import Bench, objects


def event(name: str, about: str, *, kind: str = "Pod", uid: str = "gone", **more: str) -> dict[str, Any]:
    """An event about an object."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": kind, "name": about, "uid": uid},
        "reason": "Because",
        **more,
    }


def running(bench: Bench, **more: Any) -> None:
    """A run in mid-training."""
    for node in (0, 1):
        bench.cluster.script("node", node, [("run",), ("log", f"line of {node}"), ("hold",), ("exit", 0, "")])
    bench.submit(objects(**more))
    bench.cluster.world.run_down()


def kinds(manifests: tuple[dict[str, Any], ...]) -> list[str]:
    return sorted(f"{one['kind']}/{one['metadata']['name']}" for one in manifests)


def test_everything_of_one_run_and_nothing_of_another(bench: Bench) -> None:
    running(bench)
    bench.submit(objects(name="other", storage={"outputs": {"mount": "/outputs", "claim": "theirs", "size": "1Gi"}}))
    store = bench.cluster.store
    store.put(event("a", "r", kind="Job", uid=bench.cluster.get("jobs", "r")["metadata"]["uid"]))
    store.put(event("a2", "r", kind="Job"))  # an older one
    store.put(event("a3", "r-2", kind="Job"))
    store.put(event("a4", "r-prepare", kind="Job"))
    store.put(event("b", "r-0-zzzzz"))
    store.put(event("c", "r-prepare-abcde"))
    store.put(event("d", "other-0-zzzzz"))
    store.put(event("e", "r2-0-zzzzz"))
    claim = bench.cluster.get("persistentvolumeclaims", "outputs")["metadata"]["uid"]
    store.put(event("f", "outputs", kind="PersistentVolumeClaim", uid=claim))
    store.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}, "")
    store.put({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}}, "")
    evidence = bench.backend().collect("r")
    assert kinds(evidence.objects) == [
        "ConfigMap/r",
        "Job/r",
        "PersistentVolumeClaim/cache",
        "PersistentVolumeClaim/outputs",
        "Service/r",
    ]
    assert len(evidence.pods) == 2
    assert all(pod["kind"] == "Pod" and pod["apiVersion"] == "v1" for pod in evidence.pods)
    assert sorted(one["metadata"]["name"] for one in evidence.events) == ["a", "b", "c", "f"]
    assert evidence.nodes is not None and kinds(evidence.nodes) == ["Node/n1"]
    assert evidence.storage_classes == ("fast",)
    assert spoken(evidence.logs) == [["line of 0"], ["line of 1"]]
    assert evidence.refused == ()
    assert "data" not in next(one for one in evidence.objects if one["kind"] == "ConfigMap")


@pytest.mark.parametrize("about", ["r", "r-2"])
@pytest.mark.parametrize("there", [True, False])
def test_a_run_is_not_blamed_for_what_others_were_refused(bench: Bench, about: str, there: bool) -> None:
    """An older object of its name, and another run whose name begins alike."""
    bench.cluster.script("node", 0, [("hold",)])
    if there:
        bench.submit(objects())
    said = 'Error creating: pods "x" is forbidden: failed quota: q: must specify limits.cpu'
    bench.cluster.store.put(event("e", about, kind="Job", reason="FailedCreate", message=said))
    status = run_status(bench.backend().collect("r"))
    assert [one.code for one in status.findings if one.code == "request-missing"] == []
    assert "limits.cpu" not in status.verdict
    if there:
        mine = bench.cluster.get("jobs", "r")["metadata"]["uid"]
        bench.cluster.store.put(event("f", "r", kind="Job", uid=mine, reason="FailedCreate", message=said))
        assert "limits.cpu" in run_status(bench.backend().collect("r")).verdict


@pytest.mark.parametrize("kind", ["pytorchjob", "statefulset"])
def test_a_pod_is_not_blamed_for_what_its_namesake_met(bench: Bench, kind: str) -> None:
    """Pods of these kinds keep their names when they are made anew."""
    running(bench, kind=kind)
    pod = bench.cluster.store.of("pods")[-1]["metadata"]
    said = 'Failed to pull image "i": rpc error: code = NotFound desc = failed to pull and unpack image "i": not found'
    for name, uid in (("before", "gone"), ("now", pod["uid"])):
        bench.cluster.store.put(event(name, pod["name"], uid=uid, reason="Failed", message=said))
    assert [one["metadata"]["name"] for one in bench.backend().collect("r").events] == ["now"]


KINDS = ["job", "jobset", "trainjob", "pytorchjob", "statefulset"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_not_blamed_for_what_pods_of_another_meet(bench: Bench, kind: str, there: bool) -> None:
    """Those of `r-2` begin as those of `r` do, also when they are gone."""
    if there:
        running(bench, kind=kind)
    for other in KINDS:
        running(bench, name="r-2", kind=other)
    for number, pod in enumerate(bench.cluster.store.of("pods")):
        metadata = pod["metadata"]
        if metadata["labels"]["rankzero.dev/run"] == "r-2":
            about = {"uid": metadata["uid"], "reason": "OOMKilling", "message": "Memory cgroup out of memory"}
            bench.cluster.store.put(event(f"e{number}", metadata["name"], **about))
    for name in ("r-2-0-zzzzz", "r-2-node-0-1-zzzzz", "r-2-prepare-zzzzz", "r-2-worker-0", "r-2-0"):
        bench.cluster.store.put(event(name, name, reason="OOMKilling", message="Memory cgroup out of memory"))
    assert bench.backend().collect("r").events == ()


@pytest.mark.parametrize("kind", KINDS)
def test_what_pods_met_that_are_gone_is_the_run_s(bench: Bench, kind: str) -> None:
    """Also where its object is gone with them."""
    running(bench, kind=kind)
    names = [pod["metadata"]["name"] for pod in bench.cluster.store.of("pods")]
    bench.backend().delete("r", claims=False, say=bench.said.append)
    for name in (*names, "r-prepare-zzzzz"):
        bench.cluster.store.put(event(name, name))
    found = bench.backend().collect("r").events
    assert {one["metadata"]["name"] for one in found} == {*names, "r-prepare-zzzzz"}


def test_a_run_that_was_deleted_is_told_from_its_last_events(bench: Bench) -> None:
    bench.cluster.store.put(event("e", "r", kind="Job", reason="Completed", message="Job completed"))
    assert [one.code for one in run_status(bench.backend().collect("r")).findings] == ["removed"]
    bench.cluster.store.drop("events", "e")
    bench.cluster.store.put(event("f", "r-2", kind="Job", reason="Completed", message="Job completed"))
    assert bench.backend().collect("r").events == ()


def test_what_was_followed_to_its_end_is_known_until_there_is_another(bench: Bench) -> None:
    """Its cluster removes it as it is told to. What trains under its name since, or was deleted, is judged as it is."""
    bench.submit(objects())
    bench.cluster.world.run_down()
    backend, store = bench.backend(), bench.cluster.store
    list(backend.logs("r", LogQuery(follow=True)))
    for plural in ("jobs", "pods"):
        for one in store.of(plural):
            store.drop(plural, one["metadata"]["name"])
    assert run_status(backend.collect("r")).exit_code == 0
    assert run_status(bench.backend().collect("r")).phase == "Gone"
    running(bench)
    assert run_status(backend.collect("r")).phase == "Starting"
    backend.delete("r", claims=False, say=bench.said.append)
    assert run_status(backend.collect("r")).phase == "Unknown"


def test_what_may_not_be_read_is_noted(bench: Bench) -> None:
    running(bench)
    bench.cluster.forbidden |= {("list", "nodes"), ("list", "storageclasses"), ("list", "events")}
    evidence = bench.backend().collect("r")
    assert evidence.nodes is None
    assert evidence.storage_classes is None
    assert sorted(one.verb for one in evidence.refused) == [
        "list events",
        "list nodes",
        "list storageclasses.storage.k8s.io",
    ]
    assert len(evidence.pods) == 2


DOWN = {"status": 500, "reason": "InternalError", "message": "conversion webhook failed", "times": 99}


@pytest.mark.parametrize("plural", ["workloads", "nodes", "storageclasses"])
def test_what_the_run_is_judged_without_hides_nothing_where_the_server_fails_over_it(bench: Bench, plural: str) -> None:
    bench.cluster.plurals.add("workloads")
    bench.cluster.publish()
    running(bench)
    bench.cluster.fail("GET", f"/{plural}", **DOWN)
    status = run_status(bench.backend().collect("r"))
    assert status.running == 2
    (finding,) = [one for one in status.findings if one.code == "not-seen"]
    assert finding.severity == "info"
    assert finding.cause.startswith(plural) and "could not be looked at (500 InternalError)" in finding.cause


@pytest.mark.parametrize("plural", ["pods", "jobs"])
def test_a_server_that_fails_over_the_run_itself_has_not_shown_it(bench: Bench, plural: str) -> None:
    running(bench)
    bench.cluster.fail("GET", f"/{plural}?", **DOWN)
    with pytest.raises(SilentError, match="conversion webhook failed"):
        bench.backend().collect("r")


def test_a_run_that_is_not_there(bench: Bench) -> None:
    evidence = bench.backend().collect("r")
    assert evidence.objects == evidence.pods == ()


def test_an_unhealthy_pods_last_words(bench: Bench) -> None:
    crash: list[Act] = [("run",), ("log", "about to fail"), ("restart", 1), ("log", "again"), ("hold",)]
    bench.cluster.script("node", 1, crash)
    bench.cluster.script("node", 0, [("wait", "ImagePullBackOff", "no")])
    bench.submit(objects())
    bench.cluster.world.run_down()
    logs = bench.backend().collect("r").logs
    assert spoken(logs) == [["about to fail", "again"]]


def test_kueues_workloads_of_the_run(bench: Bench) -> None:
    bench.cluster.plurals.add("workloads")
    bench.cluster.publish()
    running(bench)
    uid = bench.cluster.get("jobs", "r")["metadata"]["uid"]
    for name, owner in (("mine", uid), ("theirs", "uid-x")):
        metadata = {"name": name, "ownerReferences": [{"uid": owner}]}
        bench.cluster.store.put({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata})
    assert kinds(bench.backend().collect("r").workloads) == ["Workload/mine"]


def test_a_thousand_pods_are_paged_lists_and_one_pass(bench: Bench) -> None:
    bench.submit(objects())
    make_pods(bench.cluster.store, "r", ["Running"] * 900 + ["Failed"] * 100)
    bench.cluster.requests.clear()
    evidence = bench.backend().collect("r")
    assert len(evidence.pods) == 1000
    calls = [urlsplit(request.path) for request in bench.cluster.requests]
    pages = [parse_qs(call.query) for call in calls if call.path.endswith("/pods")]
    assert [page["limit"] for page in pages] == [["500"], ["500"]]
    assert len(calls) < 60
    assert len({call.geturl() for call in calls}) == len(calls)


def test_a_list_that_ages_while_it_is_read(bench: Bench) -> None:
    make_pods(bench.cluster.store, "r", ["Pending"] * 700)
    bench.cluster.fail("GET", "continue=500", status=410, reason="Expired", message="token too old")
    assert len(bench.backend().collect("r").pods) == 700


def test_all_runs_cheaply(bench: Bench) -> None:
    running(bench)
    bench.submit(objects(name="other", kind="jobset"))
    bench.cluster.requests.clear()
    found = {one.run: one for one in bench.backend().runs()}
    assert sorted(found) == ["other", "r"]
    assert kinds(found["r"].objects) == ["Job/r"]
    assert len(found["r"].pods) == 2
    assert not any("/log" in request.path or "/events" in request.path for request in bench.cluster.requests)


def test_a_dead_server(bench: Bench) -> None:
    backend = bench.backend()
    bench.cluster.die()
    with pytest.raises(SilentError, match="does not answer") as caught:
        backend.collect("r")
    assert bench.cluster.url in str(caught.value)


def test_the_log_of_a_pod_whose_kubelet_is_away(bench: Bench) -> None:
    running(bench)
    bench.cluster.fail("GET", "/log?", status=502, message="no route to kubelet")
    evidence = bench.backend().collect("r")
    assert len(evidence.logs) == 1
    assert [one.verb for one in evidence.refused] == ["get pods/log"]


def test_finished_pods_speak_too(bench: Bench) -> None:
    bench.cluster.script("node", 1, life("bad data", code=65))
    bench.submit(objects())
    bench.cluster.world.run_down()
    assert ["bad data"] in spoken(bench.backend().collect("r").logs)


def spoken(logs: Mapping[str, str]) -> list[list[str]]:
    """The lines of each pod; that each has the kubelet's time, which no pod's clock can move, is checked."""
    lines = [[line.partition(" ") for line in log.splitlines() if line] for log in logs.values()]
    assert all(stamp.endswith("Z") and stamp.startswith("2026-11-21T07:") for each in lines for stamp, _, _ in each)
    return [[text for _, _, text in each] for each in lines]


@pytest.mark.parametrize(("date", "expected"), [("Sat, 21 Nov 2026 08:06:00 GMT", 8 * 60 + 6), ("nonsense", 8 * 60)])
def test_ages_are_by_the_servers_clock(bench: Bench, date: str, expected: int) -> None:
    """This machine's says 08:00; six minutes off, a healthy run would look silent."""
    bench.cluster.date = date
    bench.submit(objects())
    for now in (bench.backend().collect("r").now, bench.backend().runs()[0].now):
        assert now.hour * 60 + now.minute == expected


def test_only_the_nodes_that_pods_are_on_are_read(bench: Bench) -> None:
    bench.submit(objects())
    for name in ("n1", "n2", "n3"):
        bench.cluster.store.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, "")
    bench.cluster.world.run_down()
    for number, pod in enumerate(bench.cluster.store.of("pods")):
        bench.cluster.store.put({**pod, "spec": {**pod["spec"], "nodeName": ("n1", "n3")[number]}})
    evidence = bench.backend().collect("r")
    assert evidence.nodes is not None and kinds(evidence.nodes) == ["Node/n1", "Node/n3"]
    assert not any("/nodes?" in request.path for request in bench.cluster.requests)


@pytest.mark.parametrize(("count", "seen"), [(500, 500), (501, None)])
def test_a_pod_without_a_node_has_a_page_of_them_looked_at(bench: Bench, count: int, seen: int | None) -> None:
    bench.cluster.script("node", 0, [("hold",)])
    bench.submit(objects(num_nodes=1))
    for number in range(count):
        bench.cluster.store.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}}, "")
    bench.cluster.world.run_down()
    nodes = bench.backend().collect("r").nodes
    assert (None if nodes is None else len(nodes)) == seen
    assert sum("/nodes?" in request.path for request in bench.cluster.requests) == 1
