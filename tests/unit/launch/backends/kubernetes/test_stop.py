"""Cancelling and deleting: what goes, what stays."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.errors import AccessError, ServiceError
from rankzero.launch.labels import Manifest
from tests.support.fake_cluster import Act
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench, objects

KINDS = ["job", "jobset", "trainjob", "pytorchjob", "statefulset"]
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
