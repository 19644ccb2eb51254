"""Cancelling and deleting: what goes, what stays."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.errors import AccessError, ConfigError, ServiceError
from rankzero.launch.backends.kubernetes import stop
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.kueue import is_queued
from rankzero.launch.backends.kubernetes.resources import name_of
from rankzero.launch.backends.kubernetes.stop import remove
from rankzero.launch.backends.kubernetes.wait import wait_until_gone
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import POD
from rankzero.launch.status import run_status
from rankzero.spec.run_options import SmokeSettings
from tests.support.fake_cluster import Act
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench, objects

KINDS = ["job", "jobset", "trainjob", "pytorchjob", "statefulset"]
CLAIMS = "persistentvolumeclaims"
HOLDING: list[Act] = [("run",), ("log", "training"), ("hold",), ("exit", 0, "")]


def start(bench: Bench, **more: Any) -> list[Manifest]:
    for node in (0, 1):
        bench.cluster.script("node", node, HOLDING)
    manifests = objects(**more)
    bench.submit(manifests, wait=False)
    bench.cluster.world.run_down()
    return manifests


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_stops_pods_and_keeps_objects(bench: Bench, kind: str) -> None:
    start(bench, kind=kind)
    before = [name for name in bench.cluster.names() if not name.startswith("pods/")]
    bench.backend().cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    assert bench.cluster.names("pods") == []
    assert [name for name in bench.cluster.names() if not name.startswith("pods/")] == before
    assert bench.heard("its pods save and leave within 180 s")


@pytest.mark.parametrize("sees", [True, False])
def test_a_statefulset_of_a_queue_is_stopped_by_its_replicas(bench: Bench, sees: bool) -> None:
    """Kueue scales none: it holds its pods back, and keeps its Workload on hold while there are to be none."""
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "gpus"}}
    bench.cluster.plurals |= {"workloads", "localqueues"}
    bench.cluster.publish()
    bench.cluster.store.put(queue)
    manifests = start(bench, kind="statefulset", queue={"name": "gpus"})
    owner = {"uid": bench.cluster.get("statefulsets", "r")["metadata"]["uid"], "kind": "StatefulSet", "name": "r"}
    about = {"name": "statefulset-r", "ownerReferences": [owner]}
    spec = {"queueName": "gpus", "active": True}
    bench.cluster.store.put(
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": about, "spec": spec}
    )
    if not sees:
        bench.cluster.forbidden |= {("list", "workloads"), ("patch", "workloads")}
    bench.backend().cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    there, api = bench.cluster.get("statefulsets", "r"), bench.api()
    assert there["spec"]["replicas"] == 0 and bench.cluster.names("pods") == []
    assert not is_queued(api, Discovery(api), there)
    status = run_status(bench.backend().collect("r"))
    assert status.phase == "Stopped" and not [one for one in status.findings if one.code.startswith("queue-")]
    bench.submit(manifests, replace=False)
    assert bench.cluster.get("statefulsets", "r")["spec"]["replicas"] == 2


class TestKueueFails:
    """Its webhook is down, and with it whatever is asked about Workloads, also for who has nothing to do with it."""

    def down(self, bench: Bench) -> None:
        bench.cluster.plurals |= {"workloads", "localqueues"}
        bench.cluster.publish()
        down = {"status": 500, "reason": "InternalError", "message": "conversion webhook failed: connection refused"}
        bench.cluster.fail("GET", "/workloads", times=999, **down)

    def test_what_is_in_no_queue_is_stopped_and_started_again(self, bench: Bench) -> None:
        manifests = start(bench)
        uid = bench.cluster.get("jobs", "r")["metadata"]["uid"]
        self.down(bench)
        bench.backend().cancel("r", bench.said.append)
        assert bench.cluster.get("jobs", "r")["spec"]["suspend"] is True
        assert bench.heard("list workloads.kueue.x-k8s.io: 500 InternalError: conversion webhook failed")
        assert bench.heard("Job/r names no queue, and is taken to be in none")
        bench.submit(manifests, replace=False)
        assert bench.heard("Job/r started again")
        assert bench.cluster.get("jobs", "r")["metadata"]["uid"] == uid

    def test_a_silence_is_waited_out_as_ever(self, bench: Bench) -> None:
        start(bench)
        bench.backend().cancel("r", bench.said.append)
        bench.cluster.plurals |= {"workloads", "localqueues"}
        bench.cluster.publish()
        bench.cluster.fail("GET", "/workloads", drop="before", times=15)
        api = bench.api()
        assert not is_queued(api, Discovery(api), bench.cluster.get("jobs", "r"))

    def test_what_is_in_one_would_be_started_again_by_kueue(self, bench: Bench) -> None:
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "gpus"}}
        bench.cluster.store.put(queue)
        self.down(bench)
        start(bench, queue={"name": "gpus"})
        changes = bench.cluster.changes()
        with pytest.raises(ServiceError, match="conversion webhook failed"):
            bench.backend().cancel("r", bench.said.append)
        assert bench.cluster.changes() == changes


def test_cancelling_what_has_ended(bench: Bench) -> None:
    bench.submit(objects())
    bench.cluster.world.run_down()
    changes = bench.cluster.changes()
    bench.backend().cancel("r", bench.said.append)
    assert bench.heard("has ended already (complete)")
    assert bench.cluster.changes() == changes


def test_cancelling_a_preparation(bench: Bench) -> None:
    bench.cluster.script("prepare", 0, HOLDING)
    start(bench, prepare="always")
    bench.backend().cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    assert bench.cluster.names("pods") == []


@pytest.mark.parametrize("kind", KINDS)
def test_deleting_leaves_only_the_claims(bench: Bench, kind: str) -> None:
    start(bench, kind=kind, prepare="always")
    removed = bench.backend().delete("r", claims=False, say=bench.said.append)
    assert bench.cluster.names() == ["persistentvolumeclaims/cache", "persistentvolumeclaims/outputs"]
    assert len(removed) == len(set(removed)) >= 3
    assert bench.heard("kept with all that is in them: PersistentVolumeClaim/cache, PersistentVolumeClaim/outputs")


def test_deleting_claims_where_asked(bench: Bench) -> None:
    start(bench)
    removed = bench.backend().delete("r", claims=True, say=bench.said.append)
    assert bench.cluster.names() == []
    assert "PersistentVolumeClaim/outputs" in removed


def test_claims_of_others_stay(bench: Bench) -> None:
    own = {"mount": "/mine", "claim": "given"}
    claim: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "given"}, "spec": {}}
    bench.cluster.store.put(claim)
    start(bench, storage={**STORAGE, "mine": own})
    bench.submit(objects(name="other", storage={"outputs": STORAGE["outputs"]}))
    bench.cluster.world.run_down()
    removed = bench.backend().delete("r", claims=True, say=bench.said.append)
    assert bench.heard("given was not made by rankzero; kept")
    assert bench.heard("outputs is also used by")
    assert [name for name in removed if name.startswith("Persistent")] == ["PersistentVolumeClaim/cache"]
    assert "jobs/other" in bench.cluster.names()


@pytest.mark.parametrize("part", range(6))
def test_a_run_that_is_submitted_while_another_is_deleted_keeps_its_claims(
    bench: Bench, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim takes minutes to go; who notes meanwhile that it uses the next one loses nothing."""
    start(bench)
    parts: list[str] = []
    found: dict[str, str] = {}

    def claims() -> dict[str, str]:
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in bench.cluster.store.of(CLAIMS)}

    def removing(api: Api, manifest: Manifest, *, run: str | None) -> bool:
        parts.append(name_of(manifest))
        if len(parts) == part + 1:
            bench.submit(objects(name="other"), wait=False)
            found.update(claims())
        return remove(api, manifest, run=run)

    monkeypatch.setattr(stop, "remove", removing)
    removed = bench.backend().delete("r", claims=True, say=bench.said.append)
    assert len(found) == 2 and claims() == found, parts
    assert removed == parts[: len(removed)] and len(removed) <= 5, "what was taken from under it is not said to be gone"
    assert not {"jobs/r", "configmaps/r", "services/r"} & set(bench.cluster.names())
    assert bench.heard("outputs is also used by")


def test_deleting_another_runs_prefix_touches_nothing_else(bench: Bench) -> None:
    start(bench)
    bench.submit(objects(name="r-2"))
    bench.backend().delete("r", claims=False, say=bench.said.append)
    assert {"jobs/r-2", "configmaps/r-2", "services/r-2"} <= set(bench.cluster.names())


def test_deleting_twice(bench: Bench) -> None:
    start(bench)
    bench.backend().delete("r", claims=False, say=bench.said.append)
    assert bench.backend().delete("r", claims=False, say=bench.said.append) == []


def test_what_may_not_be_listed_is_said(bench: Bench) -> None:
    start(bench, kind="statefulset")
    bench.cluster.forbidden.add(("list", "rolebindings"))
    bench.backend().delete("r", claims=False, say=bench.said.append)
    assert bench.heard("not permitted to look for rolebindings.rbac.authorization.k8s.io")
    assert "rolebindings/r" in bench.cluster.names()


def test_403_on_delete(bench: Bench) -> None:
    start(bench)
    bench.cluster.forbidden.add(("delete", "jobs"))
    with pytest.raises(AccessError, match="not permitted to delete jobs.batch in namespace train"):
        bench.backend().delete("r", claims=False, say=bench.said.append)
    assert "configmaps/r" in bench.cluster.names()


def test_a_node_that_is_lost(bench: Bench) -> None:
    start(bench)
    bench.cluster.world.immortal = True
    bench.cluster.ends_idle_watches = True
    with pytest.raises(ServiceError, match="still there") as caught:
        bench.backend().delete("r", claims=False, say=bench.said.append)
    assert "Job/r" in str(caught.value)
    assert "host is lost" in caught.value.problems[0].hint


def test_what_is_printed_to_delete_names_the_cluster(bench: Bench) -> None:
    """kubectl may be set to another one, which has a pod of that name too."""
    start(bench)
    pod = bench.cluster.store.of("pods")[0]["metadata"]
    selector = {"labelSelector": "rankzero.dev/run=r"}
    bench.cluster.ends_idle_watches = True
    with pytest.raises(ServiceError) as caught:
        wait_until_gone(bench.api(), POD, selector, {pod["uid"]}, 60)
    assert f"kubectl --context fake delete pod {pod['name']} -n train --force" in caught.value.problems[0].hint
    pod["deletionTimestamp"] = "2026-11-21T07:00:00Z"
    (stuck,) = [one for one in run_status(bench.backend().collect("r")).findings if one.code == "stuck-terminating"]
    assert f"`kubectl --context fake delete pod {pod['name']} --force`" in stuck.fix


def test_a_server_that_dies_while_deleting(bench: Bench) -> None:
    start(bench)
    backend = bench.backend()
    bench.cluster.fail("DELETE", "/services/r", die=True, drop="after")
    with pytest.raises(ServiceError, match="removed: Job/r, ConfigMap/r"):
        backend.delete("r", claims=False, say=bench.said.append)


@pytest.mark.parametrize("status", [403, 404])
def test_kinds_that_this_user_may_not_see_are_none_that_were_seen(bench: Bench, status: int) -> None:
    """Kubeflow is installed, and this user has rights for Jobs in a namespace: nothing of Kubeflow's is theirs."""
    for plural in ("trainjobs", "trainingruntimes", "pytorchjobs", "jobsets", "statefulsets"):
        if status == 403:
            bench.cluster.forbidden.add(("list", plural))
        else:  # its controller was removed after discovery was asked
            bench.cluster.fail("GET", f"/{plural}?", status=404, reason="NotFound", message="gone", times=99)
    start(bench)
    assert [evidence.run for evidence in bench.backend().runs()] == ["r"]
    bench.backend().cancel("r", bench.said.append)
    assert bench.heard("Job/r is told to stop")
    bench.backend().delete("r", claims=True, say=bench.said.append)
    assert bench.cluster.names() == []
    assert not bench.heard("not permitted to look for trainingruntimes")


def test_who_may_see_nothing_at_all_is_told(bench: Bench) -> None:
    for plural in ("pods", "jobs", "trainjobs", "pytorchjobs", "jobsets", "statefulsets"):
        bench.cluster.forbidden.add(("list", plural))
    with pytest.raises(AccessError, match="not permitted to list"):
        bench.backend().runs()
    with pytest.raises(AccessError, match="not permitted to list"):
        bench.backend().cancel("r", bench.said.append)


class TestClaimsOfRunsThatAreOver:
    """Their results outlive the objects that mounted a claim, so who uses it is noted on the claim."""

    def finished(self, bench: Bench, name: str, **more: Any) -> None:
        bench.submit(objects(name=name, **more))
        bench.cluster.world.run_down()

    def clean_up(self, bench: Bench, name: str) -> None:
        """What ttl_seconds_after_finished does."""
        for pod in list(bench.cluster.store.of("pods")):
            if pod["metadata"]["labels"]["rankzero.dev/run"] == name:
                bench.cluster.store.drop("pods", pod["metadata"]["name"])
        bench.cluster.store.drop("jobs", name)

    def users(self, bench: Bench, claim: str) -> set[str]:
        return {
            key.partition("/")[2]
            for key in bench.cluster.get("persistentvolumeclaims", claim)["metadata"].get("annotations", {})
            if key.startswith("used-by.rankzero.dev/")
        }

    @pytest.mark.parametrize("how", ["ttl", "delete"])
    def test_claims_with_results_of_another_run_stay(self, bench: Bench, how: str) -> None:
        self.finished(bench, "a", ttl_seconds_after_finished=60)
        if how == "ttl":
            self.clean_up(bench, "a")
        else:
            bench.backend().delete("a", claims=False, say=bench.said.append)
        self.finished(bench, "b")
        removed = bench.backend().delete("b", claims=True, say=bench.said.append)
        assert bench.cluster.names("persistentvolumeclaims") == [
            "persistentvolumeclaims/cache",
            "persistentvolumeclaims/outputs",
        ]
        assert not [name for name in removed if name.startswith("Persistent")]
        assert bench.heard("outputs is also used by the run a, whose results may be on it; kept (")
        assert bench.heard("`kubectl --context fake delete pvc outputs -n train` removes it all the same")
        assert self.users(bench, "outputs") == {"a"}, "b's results were given up"
        bench.backend().delete("a", claims=True, say=bench.said.append)
        assert bench.cluster.names() == []

    def test_who_uses_a_claim_is_noted_beside_who_did(self, bench: Bench) -> None:
        """Each by a key of its own, that two who submit at once lose nothing of each other."""
        name = f"a-run-{'x' * 94}"
        self.finished(bench, name)
        bench.cluster.script("prepare", 0, HOLDING)
        bench.submit(objects(name="b", prepare="always"), wait=False)
        assert {one[:5] for one in self.users(bench, "outputs")} == {"b", "a-run"}
        bodies = [one.body for one in bench.cluster.requests if one.changes and b"used-by" in one.body]
        assert len(bodies) == 4 and all(body.count(b"used-by") == 1 for body in bodies)
        assert all(len(key.partition("/")[2]) <= 63 for key in self.users(bench, "outputs"))
        bench.submit(objects(name="b", prepare="always"), wait=False)
        assert len([one for one in bench.cluster.requests if b"used-by" in one.body]) == 4, "once"

    def test_a_claim_that_only_another_run_s_yaml_gives_a_size_is_noted_too(self, bench: Bench) -> None:
        self.finished(bench, "a")
        given = {name: {"mount": one["mount"], "claim": one["claim"]} for name, one in STORAGE.items()}
        self.finished(bench, "b", storage=given)
        self.clean_up(bench, "b")
        bench.backend().delete("a", claims=True, say=bench.said.append)
        assert self.users(bench, "outputs") == {"b"}

    def test_claims_of_a_run_that_was_cleaned_up_are_known_as_its_own(self, bench: Bench) -> None:
        self.finished(bench, "a")
        self.clean_up(bench, "a")
        bench.backend().delete("a", claims=False, say=bench.said.append)
        assert bench.heard("kept with all that is in them: PersistentVolumeClaim/cache, PersistentVolumeClaim/outputs")
        self.finished(bench, "a")
        self.clean_up(bench, "a")
        bench.backend().delete("a", claims=True, say=bench.said.append)
        assert bench.cluster.names() == []

    def test_of_a_run_that_was_never_noted_all_claims_stay(self, bench: Bench) -> None:
        """It was submitted by a version that noted none, and all that is left of it is its ConfigMap."""
        bench.cluster.forbidden.add(("patch", "persistentvolumeclaims"))
        for claim in ("outputs", "cache"):
            own = {"app.kubernetes.io/managed-by": "rankzero"}
            put: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {}}
            bench.cluster.store.put({**put, "metadata": {"name": claim, "labels": own}})
        self.finished(bench, "a")
        assert bench.heard("not permitted to note on PersistentVolumeClaim/outputs that this run uses it")
        self.clean_up(bench, "a")
        bench.cluster.forbidden.clear()
        self.finished(bench, "b")
        bench.backend().delete("b", claims=True, say=bench.said.append)
        assert bench.heard("outputs may be used by the run a, of which only its ConfigMap is left; kept")
        bench.backend().delete("a", claims=False, say=bench.said.append)
        self.finished(bench, "b")
        bench.backend().delete("b", claims=True, say=bench.said.append)
        assert bench.cluster.names() == []

    def test_who_may_not_see_which_runs_there_were_keeps_all_claims(self, bench: Bench) -> None:
        """What keeps them may be a run that noted nothing, of which only its ConfigMap is left."""
        self.finished(bench, "b")
        bench.cluster.forbidden.add(("list", "configmaps"))
        bench.backend().delete("b", claims=True, say=bench.said.append)
        assert bench.cluster.names(CLAIMS) == [f"{CLAIMS}/cache", f"{CLAIMS}/outputs"]
        assert bench.heard("outputs may be used by other runs, whose ConfigMaps you are not permitted to list; kept")
        assert bench.heard("kubectl --context fake delete pvc outputs -n")

    def test_who_may_not_see_claims_is_told_that_they_stay(self, bench: Bench) -> None:
        self.finished(bench, "a")
        self.clean_up(bench, "a")
        bench.cluster.forbidden.add(("list", CLAIMS))
        bench.backend().delete("a", claims=True, say=bench.said.append)
        assert bench.heard("not permitted to look for persistentvolumeclaims; any that the run has stay")

    @pytest.mark.parametrize(
        "more",
        [
            {"smoke": SmokeSettings()},
            {"storage": {"outputs": {"mount": "/outputs", "host_path": "/nfs/outputs"}}},
            {"storage": {"outputs": {"mount": "/outputs", "url": "s3://bucket/runs"}}, "num_nodes": 1},
            {"storage": {"outputs": {"mount": "/outputs", "claim": "given"}}},
        ],
        ids=["smoke test", "host_path", "url", "a claim of somebody else"],
    )
    def test_a_run_that_has_nothing_to_note_keeps_no_claim_of_another(self, bench: Bench, more: dict[str, Any]) -> None:
        """Its ConfigMap is left when its Job was cleaned up, and says that it had its say."""
        given: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {}}
        bench.cluster.store.put({**given, "metadata": {"name": "given"}})
        self.finished(bench, "s", **more)
        self.clean_up(bench, "s")
        assert "configmaps/s" in bench.cluster.names("configmaps")
        self.finished(bench, "a")
        bench.backend().delete("a", claims=True, say=bench.said.append)
        assert bench.cluster.names(CLAIMS) == [f"{CLAIMS}/given"], bench.said

    def test_a_run_that_could_note_before_and_no_longer_can_is_not_said_to_have(self, bench: Bench) -> None:
        storage = {"outputs": STORAGE["outputs"]}
        self.finished(bench, "a", storage=storage)
        bench.cluster.forbidden.add(("patch", CLAIMS))
        own = {"app.kubernetes.io/managed-by": "rankzero"}
        put: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {}}
        bench.cluster.store.put({**put, "metadata": {"name": "cache", "labels": own}})
        self.finished(bench, "a")  # with a second claim
        bench.cluster.forbidden.clear()
        self.clean_up(bench, "a")
        self.finished(bench, "b")
        bench.backend().delete("b", claims=True, say=bench.said.append)
        assert bench.heard("cache may be used by the run a, of which only its ConfigMap is left; kept")

    def test_a_smoke_test_leaves_no_results(self, bench: Bench) -> None:
        self.finished(bench, "a")
        self.finished(bench, "s", smoke=SmokeSettings())
        assert self.users(bench, "outputs") == {"a"}

    def test_a_claim_that_takes_no_more_notes_stops_no_run(self, bench: Bench) -> None:
        """All annotations of an object together have 256 KiB at most."""

        def judge(body: Manifest) -> tuple[int, str, str] | None:
            if body["kind"] == "PersistentVolumeClaim" and len(body["metadata"].get("annotations") or {}) > 1:
                return 422, "Invalid", "metadata.annotations: Too long: may not be more than 262144 bytes"
            return None

        bench.cluster.writes.admission.append(judge)
        self.finished(bench, "a")
        self.finished(bench, "b")
        assert bench.heard("could not note on PersistentVolumeClaim/outputs that this run uses it")
        assert "jobs/b" in bench.cluster.names("jobs")


class TestAKindThatCannotBeSeen:
    """What trains is not there for who may not look for it, and goes on all the same."""

    def hide(self, bench: Bench, how: str) -> None:
        if how != "unserved":  # servers refuse to list even a kind that they do not serve
            bench.cluster.forbidden |= {(verb, "jobsets") for verb in ("get", "list", "watch", "patch", "delete")}
        if how != "forbidden":
            bench.cluster.plurals.remove("jobsets")
            bench.cluster.publish()

    def give(self, bench: Bench, verb: str) -> None:
        backend = bench.backend()
        if verb == "cancel":
            backend.cancel("r", bench.said.append)
        else:
            backend.delete("r", claims=False, say=bench.said.append)

    @pytest.mark.parametrize("verb", ["cancel", "delete"])
    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ("forbidden", "not permitted to list jobsets.jobset.x-k8s.io"),
            ("unserved", "does not serve the JobSet"),
            ("unserved and forbidden", "does not serve the JobSet"),
        ],
    )
    def test_of_a_run_with_pods_nothing_is_touched(self, bench: Bench, verb: str, how: str, words: str) -> None:
        start(bench, kind="jobset", prepare="always")
        self.hide(bench, how)
        bench.cluster.forbidden.add(("list", "configmaps"))
        changes = bench.cluster.changes()
        with pytest.raises(AccessError if how == "forbidden" else ConfigError, match=words):
            self.give(bench, verb)
        assert bench.cluster.changes() == changes

    @pytest.mark.parametrize("verb", ["cancel", "delete"])
    def test_one_without_pods_may_wait_in_a_queue(self, bench: Bench, verb: str) -> None:
        start(bench, kind="jobset")
        bench.backend().cancel("r", bench.said.append)
        bench.cluster.world.run_down()
        assert bench.cluster.names("pods") == []
        self.hide(bench, "forbidden")
        changes = bench.cluster.changes()
        with pytest.raises(AccessError, match="not permitted to list jobsets"):
            self.give(bench, verb)
        assert bench.cluster.changes() == changes

    @pytest.mark.parametrize("how", ["unserved", "unserved and forbidden"])
    def test_what_is_left_of_a_kind_that_was_uninstalled_can_be_removed(self, bench: Bench, how: str) -> None:
        start(bench, kind="jobset")
        self.hide(bench, how)
        lost, over = bench.cluster.store.of("pods")
        gone = {**lost["metadata"], "deletionTimestamp": "2026-11-21T07:00:00Z"}
        bench.cluster.store.put({**lost, "metadata": gone})
        bench.cluster.store.put({**over, "status": {**over["status"], "phase": "Failed"}})
        self.give(bench, "cancel")
        assert bench.heard("nothing of r runs or waits here")
        self.give(bench, "delete")
        assert "configmaps/r" not in bench.cluster.names()

    def test_one_that_was_uninstalled_since_discovery_is_left_alike(self, bench: Bench) -> None:
        start(bench, kind="jobset")
        bench.backend().cancel("r", bench.said.append)
        bench.cluster.world.run_down()
        bench.cluster.fail("GET", "/jobsets?", status=404, reason="NotFound", message="gone", times=99)
        self.give(bench, "delete")
        assert "configmaps/r" not in bench.cluster.names()

    def test_what_is_not_there_is_said_to_be_nothing(self, bench: Bench) -> None:
        start(bench, ttl_seconds_after_finished=60)
        bench.cluster.store.drop("jobs", "r")
        bench.cluster.world.run_down()
        self.give(bench, "cancel")
        assert bench.heard("nothing of r runs or waits here")

    def test_who_sees_no_sign_of_it_is_told_what_was_not_looked_at(self, bench: Bench) -> None:
        start(bench, kind="jobset")
        self.hide(bench, "forbidden")
        bench.cluster.forbidden |= {("list", "pods"), ("list", "configmaps")}
        changes = bench.cluster.changes()
        self.give(bench, "cancel")
        assert bench.heard("nothing that you may see of r runs or waits here; not permitted to look for")
        assert bench.heard(" for configmaps, jobsets.jobset.x-k8s.io, pods")
        assert bench.cluster.changes() == changes

    @pytest.mark.parametrize("sign", ["pods", "configmaps"])
    def test_who_sees_all_that_trains_needs_no_signs_of_it(self, bench: Bench, sign: str) -> None:
        bench.cluster.forbidden.add(("list", sign))
        self.give(bench, "cancel")
        assert bench.heard("nothing of r runs or waits here")

    def test_who_sees_that_there_are_no_signs_needs_no_rights_for_every_kind(self, bench: Bench) -> None:
        self.hide(bench, "forbidden")
        self.give(bench, "cancel")
        assert bench.heard("nothing of r runs or waits here")

    def test_no_run_of_another_kind_is_started_beside_it(self, bench: Bench) -> None:
        """Once its pods have ended, the other may continue what it saved."""
        start(bench, kind="jobset")
        self.hide(bench, "forbidden")
        changes = bench.cluster.changes()
        with pytest.raises(AccessError, match="not permitted to list jobsets"):
            bench.submit(objects())
        assert bench.cluster.changes() == changes
        for pod in list(bench.cluster.store.of("pods")):
            bench.cluster.store.put({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
        bench.submit(objects())
        assert bench.cluster.names("jobs") == ["jobs/r"]

    def test_who_may_read_one_by_its_name_submits_it_again(self, bench: Bench) -> None:
        manifests = start(bench, kind="jobset")
        bench.cluster.forbidden.add(("list", "jobsets"))
        bench.submit(manifests)
        assert bench.heard("JobSet/r runs already")
