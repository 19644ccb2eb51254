"""Submitting to a cluster: checked whole, applied in order, and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.errors import AccessError, ConfigError, ServiceError, StoppedError
from rankzero.launch.backend import AlreadyRunsError, LogQuery
from rankzero.launch.backends.kubernetes.rights import used
from rankzero.launch.backends.preparation import PreparationError
from rankzero.launch.labels import Manifest
from rankzero.launch.status import run_status
from tests.support.fake_cluster import Act, life, plain
from tests.support.fake_cluster.store import KINDS as SERVED
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench, objects

HOLDING: list[Act] = [("run",), ("log", "training"), ("hold",), ("exit", 0, "")]
SECRET: Manifest = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
KINDS = ["job", "jobset", "trainjob", "pytorchjob", "statefulset"]
PLURALS = {
    "job": "jobs",
    "jobset": "jobsets",
    "trainjob": "trainjobs",
    "pytorchjob": "pytorchjobs",
    "statefulset": "statefulsets",
}


def start(bench: Bench, *, kind: str = "job", **more: Any) -> list[Manifest]:
    """A run that trains and does not end."""
    for node in (0, 1):
        bench.cluster.script("node", node, HOLDING)
    manifests = objects(kind=kind, **more)
    bench.submit(manifests)
    bench.cluster.world.run_down()
    return manifests


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_checked_before_anything_is_applied(bench: Bench, kind: str) -> None:
    manifests = objects(kind=kind)
    bench.submit(manifests)
    writes = [request for request in bench.cluster.requests if request.method != "GET"]
    dry = [request for request in writes if not request.changes]
    first_change = next(index for index, request in enumerate(writes) if request.changes)
    assert len(dry) == len(manifests) + (kind == "trainjob")  # judged again once its runtime is there
    assert first_change == len(manifests)
    assert all("fieldValidation=Strict" in request.path for request in dry)
    applied = [line.rpartition("/")[0] for line in bench.cluster.changes()]
    assert applied[-1] == f"PATCH {PLURALS[kind]}"
    assert applied[:2] == ["PATCH secrets", "POST train"], "the Secret of this submission"
    claims = sum(one["kind"] == "PersistentVolumeClaim" for one in manifests)
    notes = claims + 1
    assert len(applied[2:]) == len(manifests) + notes, (
        "on each claim that the run uses it, on the ConfigMap that it did"
    )


def test_every_refusal_is_told_and_nothing_is_applied(bench: Bench) -> None:
    def judge(body: Manifest) -> tuple[int, str, str] | None:
        if body["kind"] == "Service":
            return 422, "Invalid", "bad service"
        if body["kind"] == "Job":
            return 403, "Forbidden", 'pods "r" is forbidden: violates PodSecurity "restricted:latest"'
        return None

    bench.cluster.writes.admission.append(judge)
    with pytest.raises(ConfigError) as caught:
        bench.submit(objects())
    assert [problem.where for problem in caught.value.problems] == ["Service/r", "Job/r"]
    assert "Pod Security restricted:latest" in caught.value.problems[1].what
    assert "pod-security.kubernetes.io/enforce" in caught.value.problems[1].hint
    assert bench.cluster.changes() == []
    assert bench.cluster.names() == []


def test_a_missing_namespace_is_one_problem(bench: Bench) -> None:
    bench.cluster.writes.namespaces.clear()
    with pytest.raises(ConfigError, match="no namespace train") as caught:
        bench.submit(objects())
    assert len(caught.value.problems) == 1
    assert "create namespace train" in caught.value.problems[0].hint


def test_a_kind_that_is_not_served(bench: Bench) -> None:
    bench.cluster.plurals.discard("jobsets")
    bench.cluster.publish()
    with pytest.raises(ConfigError, match="does not serve JobSet") as caught:
        bench.submit(objects(kind="jobset"))
    assert "JobSet (https://jobset.sigs.k8s.io) is not installed" in caught.value.problems[0].hint
    assert "--kind" in caught.value.problems[0].hint
    assert bench.cluster.changes() == []


def test_403_names_the_rule_to_ask_for(bench: Bench) -> None:
    bench.cluster.forbidden.add(("patch", "jobs"))
    with pytest.raises(AccessError, match=r"not permitted to patch jobs.batch in namespace train") as caught:
        bench.submit(objects())
    assert 'apiGroups: ["batch"], resources: [jobs], verbs: [create, patch]' in caught.value.problems[0].hint
    assert bench.cluster.changes() == []


def test_an_object_of_somebody_else_is_not_touched(bench: Bench) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "r", "labels": {}}, "data": {"mine": "1"}}
    bench.cluster.store.put(other)
    with pytest.raises(ConfigError, match="belongs to somebody else"):
        bench.submit(objects())
    assert bench.cluster.changes() == []


def test_existing_claims_are_kept(bench: Bench) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "outputs"}}
    bench.cluster.store.put({**claim, "spec": {"accessModes": ["ReadWriteOnce"]}})
    bench.submit(objects())
    assert bench.heard("outputs exists with ReadWriteOnce where cluster.yaml says ReadWriteMany")
    assert "PATCH persistentvolumeclaims/outputs" not in bench.cluster.changes()
    assert "PATCH persistentvolumeclaims/cache" in bench.cluster.changes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_identical_run_is_left_alone(bench: Bench, kind: str) -> None:
    manifests = start(bench, kind=kind)
    pods = bench.cluster.names("pods")
    before = bench.cluster.get(PLURALS[kind], "r")
    bench.submit(manifests)
    bench.cluster.world.run_down()
    assert bench.heard("runs already")
    assert bench.cluster.names("pods") == pods
    assert bench.cluster.get(PLURALS[kind], "r") == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on(bench: Bench, kind: str) -> None:
    manifests = start(bench, kind=kind)
    uid = bench.cluster.get(PLURALS[kind], "r")["metadata"]["uid"]
    bench.backend().cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    assert bench.cluster.names("pods") == []
    bench.submit(manifests)
    bench.cluster.world.run_down()
    assert len(bench.cluster.names("pods")) == 2
    assert bench.cluster.get(PLURALS[kind], "r")["metadata"]["uid"] == uid


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob"])
def test_a_finished_run_is_made_again(bench: Bench, kind: str) -> None:
    bench.submit(objects(kind=kind))
    bench.cluster.world.run_down()
    uid = bench.cluster.get(PLURALS[kind], "r")["metadata"]["uid"]
    bench.submit(objects(kind=kind))
    assert bench.cluster.get(PLURALS[kind], "r")["metadata"]["uid"] != uid
    assert bench.heard("has ended")


@pytest.mark.parametrize("state", ["ended", "suspended", "gone"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_can_be_given_another_number_of_restarts(bench: Bench, kind: str, state: str) -> None:
    """Of which a TrainingRuntime keeps what it was made with."""
    start(bench, kind=kind, max_restarts=3)
    bench.backend().cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    if state == "gone":
        bench.cluster.store.drop(PLURALS[kind], "r")
    elif state == "ended" and kind != "statefulset":
        condition = {"type": "Failed", "status": "True"}
        bench.cluster.get(PLURALS[kind], "r")["status"] = {"conditions": [condition]}
    bench.submit(objects(kind=kind, max_restarts=5))
    there = bench.cluster.get(PLURALS[kind], "r")
    assert not there["metadata"].get("deletionTimestamp")
    if kind == "trainjob":
        runtime = bench.cluster.get("trainingruntimes", "r")
        assert runtime["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] == 5
        assert not runtime["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob"])
def test_another_setting_of_a_finished_run_is_refused_here_and_not_by_its_pods(bench: Bench, kind: str) -> None:
    bench.submit(objects(kind=kind))
    bench.cluster.world.run_down()
    changes = bench.cluster.changes()
    with pytest.raises(ConfigError) as caught:
        bench.submit(objects(kind=kind, steps=20))
    head, change = caught.value.problems
    assert head.what == "the run r has finished, and this is another setting of it"
    assert "name=r-" in head.hint and "resume=continue" in head.hint
    assert (change.where, change.hint) == ("train.max_steps", "set it back, or pass --allow-change train.max_steps")
    assert bench.cluster.changes() == changes
    bench.submit(objects(kind=kind, steps=20, allow_changes=("train.max_steps",)))
    assert bench.cluster.changes() != changes


@pytest.mark.parametrize("resume", ["new", "continue"])
def test_what_becomes_of_another_setting_can_be_said_beforehand(bench: Bench, resume: str) -> None:
    bench.submit(objects())
    bench.cluster.world.run_down()
    bench.submit(objects(steps=20, run={"resume": resume}))
    assert f"resume: {resume}" in bench.cluster.get("configmaps", "r")["data"]["run.yaml"]


def test_a_run_that_took_a_directory_beside_keeps_nobody_from_the_one_of_its_name(bench: Bench) -> None:
    """What is in that one, only pods know: here the setting that was there before."""
    for steps, resume in ((10, "refuse"), (20, "new"), (10, "refuse")):
        bench.submit(objects(steps=steps, run={"resume": resume}))
        bench.cluster.world.run_down()
    assert "max_steps: 10" in bench.cluster.get("configmaps", "r")["data"]["run.yaml"]


def test_a_parked_statefulset_is_made_again(bench: Bench) -> None:
    manifests = start(bench, kind="statefulset")
    parked = bench.cluster.get("statefulsets", "r")
    parked["metadata"]["annotations"]["rankzero.dev/outcome"] = "{}"
    parked["spec"]["replicas"] = 0
    bench.cluster.store.put(parked)
    bench.submit(manifests)
    assert bench.cluster.get("statefulsets", "r")["metadata"]["uid"] != parked["metadata"]["uid"]
    assert bench.cluster.get("statefulsets", "r")["spec"]["replicas"] == 2


@pytest.mark.parametrize("outcome", ["done", "failed", "stopped"])
def test_another_setting_of_a_parked_statefulset_is_refused_only_where_the_run_finished(
    bench: Bench, outcome: str
) -> None:
    start(bench, kind="statefulset")
    parked = bench.cluster.get("statefulsets", "r")
    said = {"rankzero": 1, "outcome": outcome, "exit_code": {"done": 0, "failed": 65, "stopped": 75}[outcome]}
    parked["metadata"]["annotations"]["rankzero.dev/outcome"] = json.dumps(said)
    parked["spec"]["replicas"] = 0
    bench.cluster.store.put(parked)
    bench.backend().cancel("r", bench.said.append)
    assert bench.heard(f"has ended already ({'complete' if outcome == 'done' else 'failed'})")
    corrected = objects(kind="statefulset", steps=20)
    if outcome == "done":
        with pytest.raises(ConfigError, match="the run r has finished, and this is another setting of it"):
            bench.submit(corrected)
    else:
        bench.submit(corrected)
        assert bench.cluster.get("statefulsets", "r")["spec"]["replicas"] == 2


def test_a_changed_run_waits_for_the_old_pods_to_go(bench: Bench) -> None:
    start(bench)
    bench.submit(objects(steps=20))
    kinds = [line for line in bench.cluster.changes() if "jobs/" in line]
    assert kinds == ["PATCH jobs/r", "DELETE jobs/r", "PATCH jobs/r"]
    changes = bench.cluster.changes()
    assert changes.index("DELETE jobs/r") < len(changes) - 1 - changes[::-1].index("PATCH configmaps/r")
    assert "max_steps: 20" in bench.cluster.get("configmaps", "r")["data"]["run.yaml"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prepare", ["never", "always"])
def test_a_run_that_is_under_way_is_not_ended_unasked(bench: Bench, kind: str, prepare: str) -> None:
    start(bench, kind=kind, prepare=prepare, submitter="ada@laptop")
    changes = bench.cluster.changes()
    for other in (objects(kind=kind, prepare=prepare, steps=20), objects(kind="job" if kind != "job" else "jobset")):
        with pytest.raises(AlreadyRunsError, match=r"is under way with another spec \(submitted by ada@laptop at 2026"):
            bench.submit(other, replace=False)
    assert bench.cluster.changes() == changes
    bench.submit(objects(kind=kind, prepare=prepare, submitter="bob@desk"), replace=False)
    assert bench.heard("runs already"), "the same spec asks nobody, whoever sends it"


def test_a_cancelled_run_may_be_changed(bench: Bench) -> None:
    start(bench)
    bench.backend().cancel("r", bench.said.append)
    bench.submit(objects(steps=20), replace=False)
    assert "max_steps: 20" in bench.cluster.get("configmaps", "r")["data"]["run.yaml"]


def test_another_kind_replaces_the_one_before(bench: Bench) -> None:
    start(bench)
    bench.submit(objects(kind="jobset"))
    assert bench.cluster.store.find("jobs", "r") is None
    assert bench.cluster.names("jobsets") == ["jobsets/r"]


class TestLeftovers:
    """Of the rendering before, which this one has no place for."""

    SERVICE: Manifest = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None"}}

    def owned(self, bench: Bench, manifest: Manifest, plural: str) -> None:
        """An object named r that a controller made for the one named r."""
        owner = bench.cluster.get(plural, "r")
        reference = {"kind": owner["kind"], "name": "r", "uid": owner["metadata"]["uid"], "controller": True}
        reference |= {"apiVersion": owner["apiVersion"], "blockOwnerDeletion": True}
        bench.cluster.store.put({**manifest, "metadata": {"name": "r", "ownerReferences": [reference]}})

    @pytest.mark.parametrize("kind", ["jobset", "trainjob"])
    def test_a_service_goes_where_a_controller_makes_its_own(self, bench: Bench, kind: str) -> None:
        """JobSet makes none where one of the name exists, and what the Service of a Job selects is no pod of it."""
        start(bench)
        bench.submit(objects(kind=kind))
        assert bench.cluster.names("services") == []
        changes = bench.cluster.changes()
        assert changes.index("DELETE jobs/r") < changes.index("DELETE services/r")
        assert changes.index("DELETE services/r") < changes.index(f"PATCH {PLURALS[kind]}/r")
        assert bench.heard("Service/r is not needed any more; removing it")

    @pytest.mark.parametrize("kind", ["job", "statefulset"])
    @pytest.mark.parametrize("before", ["jobset", "trainjob"])
    @pytest.mark.parametrize("rights", [True, False])
    def test_a_service_that_goes_with_the_object_before_is_nobody_elses(
        self, bench: Bench, kind: str, before: str, rights: bool
    ) -> None:
        """It may be collected later than its owner, and must not take ours with it."""
        start(bench, kind=before)
        if before == "trainjob":
            spec = bench.cluster.get("trainingruntimes", "r")["spec"]["template"]["spec"]
            made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {**spec, "suspend": True}}
            self.owned(bench, made, "trainjobs")
        self.owned(bench, self.SERVICE, "jobsets")
        theirs = bench.cluster.get("services", "r")["metadata"]["uid"]
        if not rights:
            bench.cluster.forbidden.add(("delete", "services"))
        bench.submit(objects(kind=kind))
        bench.cluster.world.run_down()
        service = bench.cluster.get("services", "r")
        assert service["metadata"]["uid"] != theirs and "ownerReferences" not in service["metadata"]
        assert bench.cluster.names("jobsets", "trainjobs", "trainingruntimes") == []
        assert bench.heard("Service/r created")

    def test_a_jobset_that_a_trainjob_made_gives_way_to_one_of_our_own(self, bench: Bench) -> None:
        start(bench, kind="trainjob")
        spec = bench.cluster.get("trainingruntimes", "r")["spec"]["template"]["spec"]
        made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {**spec, "suspend": True}}
        self.owned(bench, made, "trainjobs")
        bench.submit(objects(kind="jobset"))
        assert "ownerReferences" not in bench.cluster.get("jobsets", "r")["metadata"]
        assert bench.cluster.names("trainjobs", "trainingruntimes") == []

    def test_a_service_of_a_jobset_of_somebody_else_is_not_touched(self, bench: Bench) -> None:
        other = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "r"}}
        bench.cluster.store.put({**other, "spec": {"suspend": True, "replicatedJobs": [{"template": {"spec": {}}}]}})
        self.owned(bench, self.SERVICE, "jobsets")
        with pytest.raises(ConfigError, match="Service/r: it exists already and belongs to somebody else"):
            bench.submit(objects())
        assert bench.cluster.changes() == []

    def test_a_preparation_that_is_wanted_no_more_goes(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, [("wait", "ImagePullBackOff", "no such image")])
        bench.submit(objects(prepare="always"), wait=False)
        with pytest.raises(AlreadyRunsError):
            bench.submit(objects(prepare="never"), replace=False)
        bench.submit(objects(prepare="never"))
        bench.cluster.world.run_down()
        assert bench.cluster.names("jobs") == ["jobs/r"]
        assert not [name for name in bench.cluster.names("pods") if "prepare" in name]

    def test_what_only_the_settings_before_had_goes_after_their_pods(self, bench: Bench) -> None:
        bench.cluster.plurals.add("podgroups")
        bench.cluster.publish()
        start(bench, kind="statefulset", network_policy=True, scheduler="volcano")
        claims = bench.cluster.names("persistentvolumeclaims")
        bench.submit(objects())
        kinds = ("networkpolicies", "roles", "rolebindings", "serviceaccounts", "podgroups")
        assert bench.cluster.names(*kinds) == []
        assert bench.cluster.names("persistentvolumeclaims", "services") == [*claims, "services/r"]
        changes = bench.cluster.changes()
        assert all(changes.index("DELETE statefulsets/r") < changes.index(f"DELETE {kind}/r") for kind in kinds)

    def test_what_somebody_else_has_given_the_run_stays(self, bench: Bench) -> None:
        """A rule of a site for a run's pods, say, that is to be found with the run."""
        mine = {"labels": {"rankzero.dev/run": "r"}}
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {}}
        bench.cluster.store.put({**policy, "metadata": {"name": "ours", **mine}})
        bench.submit(objects())
        assert bench.cluster.names("networkpolicies") == ["networkpolicies/ours"]

    def test_what_may_not_be_removed_is_said_and_stops_nothing(self, bench: Bench) -> None:
        start(bench, network_policy=True)
        bench.cluster.forbidden.add(("delete", "networkpolicies"))
        bench.submit(objects())
        assert bench.heard("not permitted to remove NetworkPolicy/r, which this run does not need any more; it stays")
        assert bench.cluster.names("jobs") == ["jobs/r"]


def test_pods_that_never_leave_are_named(bench: Bench) -> None:
    start(bench)
    bench.cluster.world.immortal = True
    bench.cluster.ends_idle_watches = True
    with pytest.raises(ServiceError, match="still there") as caught:
        bench.submit(objects(steps=20))
    assert "Job/r" in str(caught.value)
    assert bench.ticks.seconds >= 300  # its grace period and more


def test_409_is_read_again(bench: Bench) -> None:
    bench.cluster.fail(
        "PATCH", "/jobs/r?", status=409, reason="Conflict", message="the object has been modified", dry=False
    )
    bench.submit(objects())
    assert bench.cluster.names("jobs") == ["jobs/r"]


def test_409_for_ever_is_an_error_that_names_what_was_done(bench: Bench) -> None:
    bench.cluster.fail("PATCH", "/jobs/r?", status=409, reason="Conflict", message="modified", times=99, dry=False)
    with pytest.raises(ConfigError) as caught:
        bench.submit(objects())
    assert "applied: Secret/r-submission, ConfigMap/r" in str(caught.value)
    assert "not applied: Job/r" in str(caught.value)


def test_429_is_waited_out_as_long_as_the_server_says(bench: Bench) -> None:
    bench.cluster.fail("PATCH", "/configmaps/r", status=429, message="slow down", headers={"Retry-After": "7"}, times=2)
    bench.submit(objects())
    assert [seconds for seconds in bench.ticks.slept if seconds >= 7] == [7, 7]


def test_a_server_that_stays_overloaded(bench: Bench) -> None:
    bench.cluster.fail("*", "/configmaps/r", status=503, message="etcd is slow", times=99)
    with pytest.raises(ServiceError, match="etcd is slow"):
        bench.submit(objects())
    assert bench.heard("trying again")
    assert bench.cluster.changes() == []


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_broken_connection_is_made_again(bench: Bench, drop: str) -> None:
    for plural in ("configmaps", "jobs"):
        bench.cluster.fail("PATCH", f"/{plural}/r", drop=drop, dry=False)
    bench.submit(objects())
    assert bench.cluster.names("jobs", "configmaps") == ["jobs/r", "configmaps/r"]


def test_a_slow_server_is_asked_again(bench: Bench) -> None:
    import threading

    held = bench.cluster.fail("PATCH", "/configmaps/r", hold=threading.Event())
    bench.backend(read_timeout=0.3).submit(objects(), bench.said.append)
    assert held.times == 0
    assert bench.cluster.names("jobs") == ["jobs/r"]


@pytest.mark.parametrize("drop", ["", "before", "after"])
@pytest.mark.parametrize("plural", ["configmaps", "services", "jobs"])
def test_a_server_that_dies_in_between(bench: Bench, plural: str, drop: str) -> None:
    """Whatever is there afterwards was named as applied, or as perhaps applied; whatever is not there was not."""
    manifests = objects()
    bench.cluster.fail("PATCH", f"/{plural}/r", die=True, drop=drop, dry=False)
    if plural == "jobs" and not drop:
        bench.submit(manifests)  # it died after everything was done
        return
    with pytest.raises(ServiceError) as caught:
        bench.submit(manifests)
    account = caught.value.problems[-1]
    assert account.hint == "the same command continues where this one stopped"
    named = {part.partition(": ")[0]: set(part.partition(": ")[2].split(", ")) for part in account.what.split("; ")}
    there = {f"{one['kind']}/{one['metadata']['name']}" for one in bench.cluster.store.objects.values()}
    certain = named.get("applied", set())
    assert certain <= there <= certain | named.get("perhaps applied", set())
    assert not there & named.get("not applied", set())
    everything = {f"{one['kind']}/{one['metadata']['name']}" for one in manifests}
    assert set().union(*named.values()) == {*everything, "Secret/r-submission"}


def test_the_same_command_continues_after_that(bench: Bench) -> None:
    bench.cluster.fail("PATCH", "/services/r", status=500, message="boom", times=6, dry=False)
    with pytest.raises(ServiceError):
        bench.submit(objects())
    assert bench.cluster.names("jobs") == []
    bench.submit(objects())
    assert bench.cluster.names("jobs") == ["jobs/r"]


def test_a_trainjob_that_its_webhook_refuses_leaves_nothing_behind(bench: Bench) -> None:
    def judge(body: Manifest) -> tuple[int, str, str] | None:
        ready = bench.cluster.store.find("trainingruntimes", "r") is not None
        return (403, "Forbidden", "denied: no such queue") if body["kind"] == "TrainJob" and ready else None

    bench.cluster.writes.admission.append(judge)
    with pytest.raises(ConfigError, match="no such queue"):
        bench.submit(objects(kind="trainjob"))
    assert bench.cluster.names() == []


class TestPreparation:
    """The preparation Job goes first."""

    def test_training_waits_for_it(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, [("wait", "ImagePullBackOff", "no such image"), ("hold",), *life("fetched")])
        bench.cluster.ends_idle_watches = True
        bench.said.reactions["ImagePullBackOff"] = bench.cluster.world.release
        bench.submit(objects(prepare="always"))
        assert bench.heard("waits: ImagePullBackOff: no such image") and bench.heard(
            "`rankzero status r` says what to do"
        )
        assert bench.heard("prepared")
        assert bench.cluster.get("jobs", "r-prepare")["status"]["conditions"][0]["type"] == "Complete"
        assert bench.cluster.changes()[-1] == "PATCH jobs/r"

    def test_detached_it_does_not(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, HOLDING)
        bench.submit(objects(prepare="always"), wait=False)
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]

    @pytest.mark.parametrize("given", [False, True])
    def test_a_cache_that_only_one_node_can_have_is_prepared_first_even_so(self, bench: Bench, given: bool) -> None:
        """Else the pod that trains may take the volume first, and wait for the preparation, which waits for it."""
        access = {"accessModes": ["ReadWriteOnce"]}
        cache = {"mount": "/cache", "claim": "cache"} | ({} if given else {"size": "1Gi", "access": "ReadWriteOnce"})
        if given:
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}, "spec": access}
            bench.cluster.store.put(claim)
        storage = {"outputs": STORAGE["outputs"], "cache": cache}
        bench.submit(objects(prepare="always", num_nodes=1, storage=storage), wait=False)
        assert bench.heard("PersistentVolumeClaim/cache can be on one host at a time")
        assert bench.cluster.get("jobs", "r-prepare")["status"]["conditions"][0]["type"] == "Complete"
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]

    def test_its_failure_is_the_commands(self, bench: Bench) -> None:
        words = {"what": "o/m is gated", "where": "model.name", "hint": "accept the licence"}
        bench.cluster.script("prepare", 0, life("fetching", code=77, words=words))
        with pytest.raises(PreparationError, match="o/m is gated") as caught:
            bench.submit(objects(prepare="always"))
        assert caught.value.exit_code == 77
        assert caught.value.problems[0].hint == "accept the licence"
        assert bench.cluster.store.find("jobs", "r") is None

    def test_a_failed_one_is_made_again(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, life(code=77), life("fetched"))
        with pytest.raises(PreparationError):
            bench.submit(objects(prepare="always"))
        bench.submit(objects(prepare="always"))
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]

    def test_one_that_is_under_way_is_waited_for(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, HOLDING)
        bench.submit(objects(prepare="always"), wait=False)
        bench.cluster.store.drop("jobs", "r")  # as if only the preparation had been applied
        bench.cluster.world.run_down()
        uid = bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"]
        bench.cluster.world.release()
        bench.submit(objects(prepare="always"))
        assert bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"] == uid

    def image_of_preparation(self, bench: Bench) -> str:
        job = bench.cluster.get("jobs", "r-prepare")
        return str(job["spec"]["template"]["spec"]["containers"][0]["image"])

    @pytest.mark.parametrize("wait", [True, False])
    def test_one_that_cannot_start_is_made_again_as_cluster_yaml_has_it_now(self, bench: Bench, wait: bool) -> None:
        """What is corrected is in no ConfigMap: an image, a pull secret, a user, a queue."""

        def leave() -> None:
            raise KeyboardInterrupt

        def waits_again() -> None:
            raise AssertionError("it is the one of before")

        bench.cluster.script("prepare", 0, [("wait", "ImagePullBackOff", "no such image"), ("hold",)], life("fetched"))
        if wait:
            bench.cluster.ends_idle_watches = True
            bench.said.reactions["ImagePullBackOff"] = leave
            with pytest.raises(KeyboardInterrupt):
                bench.submit(objects(prepare="always", image="wrong"))
        else:
            bench.submit(objects(prepare="always", image="wrong"), wait=False)
        bench.cluster.world.run_down()
        with pytest.raises(AlreadyRunsError, match="Job/r"):
            bench.submit(objects(prepare="always", image="right"), replace=False)
        bench.said.reactions["ImagePullBackOff"] = waits_again
        bench.submit(objects(prepare="always", image="right"), wait=wait)
        bench.cluster.world.run_down()
        assert self.image_of_preparation(bench) == "right"
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]

    @pytest.mark.parametrize("other", [{"kind": "jobset"}, {"submitter": "bob@desk"}, {"resources": {"cpu": 7}}])
    def test_one_that_runs_is_kept_where_nothing_of_it_has_changed(self, bench: Bench, other: dict[str, Any]) -> None:
        bench.cluster.script("prepare", 0, HOLDING)
        place: dict[str, Any] = {"prepare": "always", "submitter": "ada@laptop", "resources": {"cpu": 8}}
        bench.submit(objects(**place), wait=False)
        bench.cluster.store.drop("jobs", "r")  # as if only the preparation had been applied
        uid = bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"]
        bench.submit(objects(**{**place, **other}), wait=False, replace=False)
        assert bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"] == uid

    def test_one_of_a_version_that_noted_no_hash_is_kept_as_before(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, HOLDING)
        bench.submit(objects(prepare="always"), wait=False)
        bench.cluster.store.drop("jobs", "r")
        job = bench.cluster.get("jobs", "r-prepare")
        job["metadata"]["annotations"] = {}
        bench.cluster.store.put(job)
        bench.submit(objects(prepare="always"), wait=False, replace=False)
        assert bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"] == job["metadata"]["uid"]

    @pytest.mark.parametrize(
        ("refusal", "words"),
        [
            ("failed quota: q: must specify limits.cpu for: prepare", "ResourceQuota q wants every container to say"),
            ("a rule that nobody has heard of", 'cannot make its pod: Error creating: pods "r-prepare" is forbidden'),
        ],
    )
    def test_that_its_pod_is_refused_is_said_once(self, bench: Bench, refusal: str, words: str) -> None:
        of_before = {"kind": "Job", "name": "r-prepare", "uid": "older"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "FailedCreate"}
        bench.cluster.store.put({**event, "involvedObject": of_before, "message": "what an older one was told"})
        bench.cluster.world.refused = refusal
        bench.cluster.ends_idle_watches = True
        bench.said.reactions[words] = lambda: setattr(bench.cluster.world, "refused", "")
        bench.submit(objects(prepare="always"))
        assert sum(words in line for line in bench.said) == 1 and bench.heard("Job/r-prepare cannot make its pod")
        assert not bench.heard("an older one") and bench.heard("prepared")

    def test_one_that_is_cancelled_is_not_waited_for(self, bench: Bench) -> None:
        pulled: list[Act] = [("wait", "ImagePullBackOff", "no such image"), ("hold",)]
        bench.cluster.script("prepare", 0, pulled, life("fetched"))
        bench.cluster.ends_idle_watches = True
        bench.said.reactions["ImagePullBackOff"] = lambda: bench.backend().cancel("r", bench.said.append)
        with pytest.raises(StoppedError, match="it was stopped before") as caught:
            bench.submit(objects(prepare="always"))
        assert caught.value.problems[0].where == "Job/r-prepare" and caught.value.exit_code == 75
        assert "not applied: Job/r" in str(caught.value)
        bench.submit(objects(prepare="always"))
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]

    def test_a_server_that_is_silent_meanwhile_is_waited_for(self, bench: Bench) -> None:
        bench.cluster.fail("GET", "/pods?", drop="before", times=15)
        bench.submit(objects(prepare="always"))
        assert bench.heard("prepared") and sum("what runs goes on" in line for line in bench.said) == 1

    def test_who_may_not_read_events_waits_all_the_same(self, bench: Bench) -> None:
        bench.cluster.forbidden.add(("list", "events"))
        bench.submit(objects(prepare="always"))
        assert bench.heard("prepared")

    def test_a_watch_that_drops_and_a_history_that_ends(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, life(*(f"line {number}" for number in range(5))))
        bench.cluster.fail("GET", "jobs?watch=true", drop="cut")
        bench.cluster.fail("GET", "jobs?watch=true", status=410, reason="Expired", message="too old", skip=1)
        bench.cluster.fail("GET", "jobs?watch=true", drop="before")
        bench.submit(objects(prepare="always"))
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]


def suspended_by_kueue(body: Manifest) -> None:
    """What Kueue's webhook does with what has a queue's label."""
    if body["kind"] == "Job" and "kueue.x-k8s.io/queue-name" in body["metadata"]["labels"]:
        body["spec"]["suspend"] = True


class TestKueue:
    """Kueue says when a run starts; suspending is its language."""

    def submit(self, bench: Bench) -> list[Manifest]:
        bench.cluster.plurals.add("workloads")
        bench.cluster.publish()
        manifests = start(bench, queue={"name": "gpus"})
        job = bench.cluster.get("jobs", "r")
        owner = {"kind": "Job", "name": "r", "uid": job["metadata"]["uid"], "controller": True}
        workload = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True}}
        bench.cluster.store.put({**workload, "metadata": {"name": "job-r", "ownerReferences": [owner]}})
        bench.cluster.store.put({**job, "spec": {**job["spec"], "suspend": True}})
        return manifests

    def test_cancelling_takes_it_out_of_the_queue(self, bench: Bench) -> None:
        self.submit(bench)
        bench.backend().cancel("r", bench.said.append)
        assert bench.cluster.get("workloads", "job-r")["spec"]["active"] is False
        assert bench.cluster.changes()[-1] == "PATCH workloads/job-r"

    def test_submitting_again_puts_it_back_and_leaves_suspend_alone(self, bench: Bench) -> None:
        manifests = self.submit(bench)
        bench.backend().cancel("r", bench.said.append)
        bench.submit(manifests)
        assert bench.heard("back in its queue")
        assert bench.cluster.get("workloads", "job-r")["spec"]["active"] is True
        assert bench.cluster.get("jobs", "r")["spec"]["suspend"] is True

    @pytest.mark.parametrize("verb", ["patch", "list"])
    def test_with_kueues_own_user_role_the_job_goes_and_comes_back(self, bench: Bench, verb: str) -> None:
        """Its batch-user role may view Workloads, and what else suspends an admitted Job, Kueue takes back."""
        manifests = self.submit(bench)
        bench.cluster.forbidden.add((verb, "workloads"))
        bench.backend().cancel("r", bench.said.append)
        bench.cluster.world.run_down()
        assert bench.cluster.names("jobs", "configmaps") == ["configmaps/r"]
        assert bench.heard("Kueue starts again what is suspended")
        seen = run_status(bench.backend().collect("r"))
        assert (seen.phase, seen.exit_code, seen.is_over) == ("Gone", None, True)
        bench.submit(manifests)
        assert bench.cluster.names("jobs") == ["jobs/r"]

    def test_what_somebody_else_has_put_aside_is_made_again(self, bench: Bench) -> None:
        manifests = self.submit(bench)
        bench.backend().cancel("r", bench.said.append)
        uid = bench.cluster.get("jobs", "r")["metadata"]["uid"]
        bench.cluster.forbidden.add(("patch", "workloads"))
        bench.submit(manifests)
        assert bench.cluster.get("jobs", "r")["metadata"]["uid"] != uid

    def test_one_that_waits_in_its_queue_is_left_there(self, bench: Bench) -> None:
        manifests = self.submit(bench)
        bench.cluster.forbidden.add(("patch", "workloads"))
        bench.submit(manifests)
        assert bench.heard("waits in its queue")
        assert "PATCH jobs/r" not in bench.cluster.changes()[-1:]

    def test_one_whose_workload_nobody_may_see_keeps_its_place_in_the_queue(self, bench: Bench) -> None:
        """To make it again would put it behind all others. Kueue's own admission has set it aside, as far as one sees;
        where somebody has, cancelling it and the same command have it made again."""
        manifests = self.submit(bench)
        uid = bench.cluster.get("jobs", "r")["metadata"]["uid"]
        bench.cluster.forbidden.add(("list", "workloads"))
        bench.submit(manifests, replace=False)
        job = bench.cluster.get("jobs", "r")
        assert (job["metadata"]["uid"], job["spec"]["suspend"]) == (uid, True)
        assert bench.heard("waits in its queue") and bench.heard("spec.active") and bench.heard("rankzero cancel r")
        bench.backend().cancel("r", bench.said.append)
        bench.cluster.world.run_down()
        bench.submit(manifests, replace=False)
        assert bench.cluster.get("jobs", "r")["metadata"]["uid"] != uid

    def test_one_that_names_no_queue_goes_on_where_no_workload_may_be_seen(self, bench: Bench) -> None:
        bench.cluster.plurals.add("workloads")
        bench.cluster.publish()
        bench.cluster.forbidden.add(("list", "workloads"))
        manifests = start(bench)
        uid = bench.cluster.get("jobs", "r")["metadata"]["uid"]
        bench.backend().cancel("r", bench.said.append)
        assert bench.cluster.get("jobs", "r")["spec"]["suspend"] is True
        bench.submit(manifests)
        assert bench.cluster.get("jobs", "r")["metadata"]["uid"] == uid and bench.heard("started again")

    def test_one_that_was_cancelled_may_be_changed(self, bench: Bench) -> None:
        """It is suspended as one that waits is, but its Workload is not active: it waits for nothing."""
        self.submit(bench)
        with pytest.raises(AlreadyRunsError):
            bench.submit(objects(queue={"name": "gpus"}, steps=20), replace=False)
        bench.backend().cancel("r", bench.said.append)
        bench.submit(objects(queue={"name": "gpus"}, steps=20), replace=False)
        assert "max_steps: 20" in bench.cluster.get("configmaps", "r")["data"]["run.yaml"]

    def queue(self, bench: Bench) -> None:
        """One that a preparation comes into."""
        bench.cluster.plurals |= {"workloads", "localqueues"}
        bench.cluster.publish()
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "gpus"}}
        bench.cluster.store.put(queue)
        bench.cluster.writes.admission.append(suspended_by_kueue)

    def test_a_preparation_that_is_taken_out_of_the_queue_is_not_waited_for(self, bench: Bench) -> None:
        """Nothing of its Job changes: it was suspended already."""
        self.queue(bench)
        bench.cluster.ends_idle_watches = True

        def cancel() -> None:
            uid = bench.cluster.get("jobs", "r-prepare")["metadata"]["uid"]
            metadata = {"name": "job-r-prepare", "ownerReferences": [{"uid": uid}]}
            workload = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True}}
            bench.cluster.store.put({**workload, "metadata": metadata})
            bench.backend().cancel("r", bench.said.append)

        bench.said.reactions["waits in queue gpus"] = cancel
        with pytest.raises(StoppedError, match="it was stopped before"):
            bench.submit(objects(prepare="always", queue={"name": "gpus"}))

    @pytest.mark.parametrize("readable", [True, False])
    def test_a_preparation_waits_in_the_queue_too(self, bench: Bench, readable: bool) -> None:
        """Kueue suspends it, and takes it back where others need the room: neither is its failure."""
        self.queue(bench)
        if not readable:
            bench.cluster.forbidden.add(("list", "workloads"))
        bench.cluster.script("prepare", 0, life("fetched"))

        def admit() -> None:
            seen = run_status(bench.backend().collect("r"))
            assert (seen.phase, seen.is_over) == ("Queued", False), seen
            job = bench.cluster.get("jobs", "r-prepare")
            assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
            bench.cluster.store.put({**job, "spec": {**job["spec"], "suspend": False}})

        bench.said.reactions["waits in queue gpus"] = admit
        bench.submit(objects(prepare="always", queue={"name": "gpus"}))
        assert bench.heard("prepared")
        assert bench.cluster.names("jobs") == ["jobs/r", "jobs/r-prepare"]


class TestSubmissionSecret:
    """What the pods of one submission know each other by: new for new pods, in no output, gone with the run."""

    def token(self, bench: Bench) -> str:
        return plain(bench.cluster.get("secrets", "r-submission"))["token"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_container_refers_to_it(self, bench: Bench, kind: str) -> None:
        manifests = start(bench, kind=kind, prepare="always")
        token = self.token(bench)
        assert len(token) == 64
        assert token not in str(manifests) + "".join(bench.said)
        for pod in bench.cluster.store.of("pods"):
            (variable,) = [one for one in pod["spec"]["containers"][0]["env"] if "SUBMISSION" in one["name"]]
            assert variable["valueFrom"]["secretKeyRef"] == {"name": "r-submission", "key": "token", "optional": True}

    def test_a_run_that_goes_on_keeps_it_and_a_new_one_does_not(self, bench: Bench) -> None:
        manifests = start(bench)
        first = self.token(bench)
        bench.submit(manifests)
        assert self.token(bench) == first
        bench.submit(objects(steps=20))
        assert self.token(bench) != first

    def test_a_preparation_that_is_kept_keeps_its_own(self, bench: Bench) -> None:
        bench.cluster.script("prepare", 0, HOLDING)
        bench.submit(objects(prepare="always"), wait=False)
        first = self.token(bench)
        bench.cluster.store.drop("jobs", "r")
        bench.submit(objects(prepare="always"), wait=False)
        assert self.token(bench) == first, "its marker is of that submission"

    def test_it_goes_with_the_run(self, bench: Bench) -> None:
        start(bench)
        bench.cluster.store.put(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s-submission"}, "data": {}}
        )
        bench.backend().delete("r", claims=True, say=bench.said.append)
        assert bench.cluster.names() == ["secrets/s-submission"]

    def test_one_of_another_submission_is_renewed_by_who_may_not_read_it(self, bench: Bench) -> None:
        bench.cluster.forbidden.add(("get", "secrets"))
        start(bench)
        first = self.token(bench)
        bench.submit(objects(steps=20))
        assert self.token(bench) != first

    @pytest.mark.parametrize("readable", [True, False])
    @pytest.mark.parametrize("data", [None, {"jupyter": "bXkgb3du"}])
    def test_one_that_lacks_the_key_gets_it_beside_what_it_has(
        self, bench: Bench, data: dict[str, str] | None, readable: bool
    ) -> None:
        """The API drops a map that is empty, and into none that is missing can a JSON Patch add a key."""
        ours = {**SECRET, "metadata": {"name": "r-submission", "labels": {"rankzero.dev/run": "r"}}}
        bench.cluster.store.put(ours if data is None else {**ours, "data": data})
        if not readable:
            bench.cluster.forbidden.add(("get", "secrets"))
        bench.submit(objects())
        assert len(self.token(bench)) == 64
        kept = bench.cluster.get("secrets", "r-submission")["data"]
        assert kept == {**(data or {}), "token": kept["token"]}

    @pytest.mark.parametrize("data", [{}, {"data": {"token": "bXkgb3du"}}])
    def test_who_refuses_to_have_one_changed_is_heard(self, bench: Bench, data: Manifest) -> None:
        def refuse(body: Manifest) -> tuple[int, str, str] | None:
            words = 'admission webhook "vault.example.com" denied the request: keep tokens in the vault'
            return (422, "Invalid", words) if body["kind"] == "Secret" else None

        bench.cluster.store.put(
            {**SECRET, "metadata": {"name": "r-submission", "labels": {"rankzero.dev/run": "r"}}, **data}
        )
        bench.cluster.writes.admission.append(refuse)
        with pytest.raises(ConfigError, match="keep tokens in the vault") as caught:
            bench.submit(objects())
        assert "belongs to somebody else" not in str(caught.value)
        assert bench.cluster.names("jobs") == []

    def of_somebody_else(self, bench: Bench) -> Manifest:
        """With what is called as ours is."""
        metadata = {"name": "r-submission", "labels": {"app": "kaggle"}}
        return bench.cluster.store.put({**SECRET, "metadata": metadata, "data": {"token": "bXkgb3du"}})

    def test_one_that_is_somebody_else_s_is_refused_and_stays(self, bench: Bench) -> None:
        theirs = self.of_somebody_else(bench)
        with pytest.raises(ConfigError, match="it exists already and belongs to somebody else") as caught:
            bench.submit(objects())
        assert [problem.where for problem in caught.value.problems] == ["Secret/r-submission"]
        assert bench.cluster.changes() == []
        bench.backend().delete("r", claims=True, say=bench.said.append)
        assert bench.cluster.get("secrets", "r-submission") == theirs

    def test_who_may_not_read_it_or_sees_it_too_late_writes_over_nothing_either(self, bench: Bench) -> None:
        theirs = self.of_somebody_else(bench)
        bench.cluster.forbidden.add(("get", "secrets"))
        bench.cluster.fail("PATCH", "/secrets/", status=404, reason="NotFound", message="not yet")
        with pytest.raises(ConfigError, match="it exists already and belongs to somebody else"):
            bench.submit(objects())
        assert bench.cluster.get("secrets", "r-submission") == theirs
        assert bench.cluster.names("jobs", "configmaps") == []

    @pytest.mark.parametrize("readable", [True, False])
    def test_a_submit_that_is_refused_late_takes_back_only_one_that_it_made(self, bench: Bench, readable: bool) -> None:
        def refuse(body: Manifest) -> tuple[int, str, str] | None:
            ready = bench.cluster.store.find("trainingruntimes", "r") is not None
            return (403, "Forbidden", "not this one") if body["kind"] == "TrainJob" and ready else None

        if not readable:
            bench.cluster.forbidden.add(("get", "secrets"))
        bench.cluster.writes.admission.append(refuse)
        for there in (False, True):
            if there:
                metadata = {"name": "r-submission", "labels": {"rankzero.dev/run": "r"}}
                bench.cluster.store.put({**SECRET, "metadata": metadata, "data": {"token": "bXkgb3du"}})
            with pytest.raises(ConfigError, match="not this one"):
                bench.submit(objects(kind="trainjob"))
            kept = there or not readable
            assert bench.cluster.names("secrets") == ["secrets/r-submission"] * kept
            assert bench.cluster.names("trainingruntimes") == []
        assert bench.heard("not permitted to look for Secret/r-submission; it stays") is not readable

    def test_without_the_right_to_make_one_the_run_starts_all_the_same(self, bench: Bench) -> None:
        bench.cluster.forbidden |= {("patch", "secrets"), ("get", "secrets")}
        bench.submit(objects())
        assert bench.heard("not permitted to make a Secret")
        assert bench.cluster.names("jobs") == ["jobs/r"]
        bench.backend().delete("r", claims=True, say=bench.said.append)
        assert bench.cluster.names() == []


@pytest.mark.parametrize(
    ("kind", "plural", "group"),
    [
        ("jobset", "jobsets", "jobset.x-k8s.io/v1alpha2"),
        ("trainjob", "trainingruntimes", "trainer.kubeflow.org/v1alpha1"),
    ],
)
class TestOlderJobSet:
    """JobSet before 0.10 and Trainer 2.0 know no onJobFailureMessagePatterns, and would refuse the whole object."""

    def rules(self, bench: Bench, plural: str) -> tuple[list[Any], list[Any]]:
        spec = bench.cluster.get(plural, "r")["spec"]
        spec = spec.get("template", {}).get("spec", spec)
        job = spec["replicatedJobs"][0]["template"]["spec"]
        return spec["failurePolicy"]["rules"], job["podFailurePolicy"]["rules"]

    def test_one_that_knows_them_gets_them(self, bench: Bench, kind: str, plural: str, group: str) -> None:
        served = {"components": {"schemas": {"Rule": {"properties": {"onJobFailureMessagePatterns": {}}}}}}
        bench.cluster.documents[f"/openapi/v3/apis/{group}"] = served
        bench.submit(objects(kind=kind))
        of_set, of_job = self.rules(bench, plural)
        assert [rule["name"] for rule in of_set] == ["neverRetried", "stoppedOrDisrupted"]
        assert len(of_job) == 3
        assert not bench.heard("onJobFailureMessagePatterns")

    @pytest.mark.parametrize("readable", [True, False])
    def test_one_that_does_not_ends_what_can_never_succeed_and_charges_the_rest(
        self, bench: Bench, kind: str, plural: str, group: str, readable: bool
    ) -> None:
        if readable:
            bench.cluster.documents[f"/openapi/v3/apis/{group}"] = {"components": {"schemas": {}}}
        bench.submit(objects(kind=kind))
        of_set, of_job = self.rules(bench, plural)
        failed = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"], "name": "neverRetried"}
        assert of_set == [failed], "whatever no rule is about restarts all pods, and is charged"
        assert [rule["action"] for rule in of_job] == ["FailJob"] and of_job[0]["onExitCodes"]["values"] == [
            2,
            65,
            77,
            78,
        ]
        assert bench.heard("stopped and evicted pods count against max_restarts")


def test_who_may_not_bind_any_role_submits_a_stateful_set(bench: Bench) -> None:
    """The server looks up the Role to see what it grants, and while it is not there says that it is not."""

    def judge(body: Manifest) -> tuple[int, str, str] | None:
        if body["kind"] != "RoleBinding" or bench.cluster.store.find("roles", "r") is not None:
            return None
        return 404, "NotFound", 'rolebindings.rbac.authorization.k8s.io "r" not found'

    bench.cluster.writes.admission.append(judge)
    bench.submit(objects(kind="statefulset"))
    assert bench.cluster.names("roles", "rolebindings", "statefulsets") == [
        "roles/r",
        "rolebindings/r",
        "statefulsets/r",
    ]


def test_the_rights_that_the_page_asks_for_are_enough(bench: Bench) -> None:
    """Of everything else that the cluster serves nothing may be read or written."""
    page = (Path(__file__).parents[5] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    role = yaml.safe_load(page.partition("### Rights")[2].partition("```yaml")[2].partition("```")[0])
    granted = {
        (group, plural.partition("/")[0], verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(*about, verb) for about, verbs in used(objects()).items() for verb in verbs} == {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    for plural, (api, _) in SERVED.items():
        group = api.rpartition("/")[0]
        for verb in ("get", "list", "watch", "create", "patch", "delete"):
            if (group, plural, verb) not in granted:
                bench.cluster.forbidden.add((verb, plural))
    bench.cluster.script("prepare", 0, life("fetched"))
    start(bench, prepare="always")
    backend = bench.backend()
    assert [one.run for one in backend.runs()] == ["r"]
    assert run_status(backend.collect("r")).running == 2
    assert any(line.text == "training" for line in backend.logs("r", LogQuery()))
    backend.cancel("r", bench.said.append)
    bench.cluster.world.run_down()
    backend.delete("r", claims=False, say=bench.said.append)
    assert [name for name in bench.cluster.names() if "claim" not in name] == []


@pytest.mark.parametrize("kind", KINDS)
def test_rights_on_jobs_are_asked_for_whatever_kind_trains(bench: Bench, kind: str) -> None:
    """`doctor --cluster` looks by a run that prepares nothing; `cancel` and `delete` look for Jobs all the same, and
    the runs to come are prepared by one."""
    manifests = objects(kind=kind, prepare="never")
    assert set(used(manifests)["batch", "jobs"]) == {"get", "list", "watch", "create", "patch", "delete"}
    bench.cluster.forbidden.add(("list", "jobs"))
    assert any("not permitted to list jobs.batch" in doubt.what for doubt in bench.backend().survey(manifests).doubts)


class TestVolcano:
    """Its own controller makes groups of one for pods that name none, which is no gang."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_pods_of_every_kind_are_placed_together(self, bench: Bench, kind: str) -> None:
        bench.cluster.plurals.add("podgroups")
        bench.cluster.publish()
        bench.submit(objects(kind=kind, scheduler="volcano", annotations={"scheduling.volcano.sh/queue-name": "ml"}))
        assert bench.cluster.get("podgroups", "r")["spec"] == {"minMember": 2, "queue": "ml"}
        bench.cluster.world.run_down()
        pods = bench.cluster.store.of("pods")
        assert {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in pods} == {"r"}
        assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
        bench.backend().delete("r", claims=False, say=bench.said.append)
        assert bench.cluster.names("podgroups") == []

    def test_the_preparation_is_a_group_of_its_own(self, bench: Bench) -> None:
        rendered = objects(prepare="always", scheduler="volcano")
        job = next(one for one in rendered if one["metadata"]["name"] == "r-prepare")
        assert "scheduling.k8s.io/group-name" not in job["spec"]["template"]["metadata"]["annotations"]

    def test_where_it_is_not_installed(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="does not serve PodGroup") as caught:
            bench.submit(objects(scheduler="volcano"))
        assert "Volcano is not installed" in caught.value.problems[0].hint
        assert bench.cluster.names() == []


def test_a_network_policy_where_asked(bench: Bench) -> None:
    bench.submit(objects(network_policy=True))
    policy = bench.cluster.get("networkpolicies", "r")["spec"]
    assert policy["podSelector"] == policy["ingress"][0]["from"][0]["podSelector"]
    assert policy["podSelector"]["matchLabels"] == {"rankzero.dev/run": "r"}
    bench.backend().delete("r", claims=True, say=bench.said.append)
    assert bench.cluster.names() == []


def test_logs_of_a_run_that_was_submitted(bench: Bench) -> None:
    bench.submit(objects())
    lines = list(bench.backend().logs("r", LogQuery(follow=True)))
    assert sorted(line.text for line in lines) == ["hello from node 0", "hello from node 1"]
