"""`rankzero submit` as a user types it, against a cluster that is only a protocol."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
from rankzero.launch.backends.kubernetes.logs import Following, _Seen
from rankzero.launch.backends.kubernetes.resources import TRAINING
from rankzero.launch.resource import JOB, POD
from tests.support.fake_cluster import life
from tests.unit.cli.conftest import Place


def test_to_the_end(place: Place) -> None:
    place.cluster.script("node", 0, life("from node 0"))
    done = place("submit run.yaml")
    assert done.code == 0, done.err
    assert "[node 0] from node 0" in done.err
    assert "[node 1] hello from node 1" in done.err
    assert done.out.startswith("Succeeded")


def test_the_exit_code_is_the_workers(place: Place) -> None:
    words = {"what": "row 3 has no messages", "where": "t.jsonl:3", "hint": "see the format"}
    place.cluster.script("node", 0, life("bad", code=65, words=words))
    done = place("submit run.yaml --json")
    assert done.code == 65, done.err
    verdict = json.loads(done.out)
    assert verdict["phase"] == "Failed" and verdict["exit_code"] == 65
    assert "row 3 has no messages" in verdict["verdict"]


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob"])
@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (65, "Failed")])
def test_how_a_run_ended_is_known_that_its_cluster_removes_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, phase: str
) -> None:
    """With what it said, seen while it was followed: node 0 begins when all is watched."""
    words = {"what": "row 3 has no messages", "where": "t.jsonl:3", "hint": "see the format"} if code else {}
    place.cluster.script("node", 0, [("hold",), *life("from node 0", code=code, words=words)])
    take, watched = Following._take, {POD, JOB, TRAINING[kind]}

    def taken(self: Following, seen: _Seen) -> None:
        take(self, seen)
        if set(self._objects) == watched:
            place.cluster.world.release()

    monkeypatch.setattr(Following, "_take", taken)
    done = place(f"submit run.yaml --kind {kind} cluster.ttl_seconds_after_finished=0 --json")
    assert place.cluster.names(f"{kind}s", "pods") == []
    verdict = json.loads(done.out)
    assert (done.code, verdict["exit_code"], verdict["phase"]) == (code, code, phase), done.err
    assert ("row 3 has no messages" in verdict["verdict"]) is (code == 65)


def test_dry_run_is_what_render_prints_and_needs_no_cluster(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a dry run connected to something")

    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    dry, rendered = place("submit run.yaml --dry-run"), place("render run.yaml")
    assert dry.code == rendered.code == 0
    assert dry.out == rendered.out and len(list(yaml.safe_load_all(dry.out))) == 4


def test_what_is_sent_is_what_dry_run_prints(place: Place) -> None:
    printed = list(yaml.safe_load_all(place("submit run.yaml --dry-run").out))
    assert place("submit run.yaml --detach").code == 0
    changes = [request for request in place.cluster.requests if request.changes]
    secrets = [request for request in changes if "/secrets" in request.path]
    assert secrets, "what pods know each other by is printed nowhere"
    sent = [json.loads(request.body) for request in changes if request not in secrets]
    assert "@" in sent[-1]["metadata"]["annotations"].pop("rankzero.dev/submitted-by")
    notes = [body for body in sent if "used-by" in str(body) or "claims-noted" in str(body)]
    assert all(set(body) == {"metadata"} for body in notes), "on claims, of who uses them, and that it is done"
    assert [body for body in sent if body not in notes] == printed


def test_without_a_namespace_it_is_the_contexts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kubectl: who has chosen a namespace does not write it into every cluster.yaml."""
    spec = Path("cluster.yaml")
    spec.write_text(spec.read_text().replace("namespace: train\n", ""))
    config = json.loads(Path("kubeconfig").read_text())
    config["contexts"][0]["context"]["namespace"] = "train"
    other = {"name": "other", "context": {"cluster": "fake", "user": "me"}}
    config["contexts"].append(other)
    Path("kubeconfig").write_text(json.dumps(config))
    assert json.loads(place("submit run.yaml --detach --json").out)["namespace"] == "train"
    assert "namespace: train" in place("render run.yaml").out
    assert "namespace: mine" in place("render run.yaml cluster.namespace=mine").out
    assert "namespace: default" in place("render run.yaml cluster.context=other").out
    Path("kubeconfig").write_text("no kubeconfig")
    assert "namespace: default" in place("render run.yaml").out, "rendering needs no cluster"


def test_detached(place: Place) -> None:
    done = place("submit run.yaml --detach --json --cluster cluster.yaml")
    assert done.code == 0
    assert json.loads(done.out) == {"run": "r", "kind": "job", "namespace": "train", "run_dir": "/outputs/runs/r"}
    assert "rankzero logs r --follow --cluster cluster.yaml" in done.err
    done = place("submit run.yaml name=beside resume=new --detach --json")
    assert json.loads(done.out)["run_dir"] is None, "its pods choose it"


def test_another_kind(place: Place) -> None:
    assert place("submit run.yaml --kind jobset").code == 0
    assert place.cluster.names("jobsets", "jobs") == ["jobsets/r"]


def test_ctrl_c_leaves_the_run_going(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: KubernetesBackend, run: str, query: LogQuery) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KubernetesBackend, "logs", interrupted)
    done = place("submit run.yaml")
    assert done.code == 130
    assert "the run goes on; rankzero logs r --follow" in done.err
    assert "rankzero cancel r" in done.err
    assert place.cluster.names("jobs") == ["jobs/r"]


def test_ctrl_c_while_applying_names_what_was_done(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankzero.launch.backends.kubernetes.apply.wait_until_prepared", interrupted)
    cache = "storage.cache={mount: /cache, claim: cache, size: 1Gi}"
    done = place(f"submit run.yaml cluster.prepare=always 'cluster.{cache}'")
    assert done.code == 130
    assert "not applied: Job/r" in done.err and "the same command continues" in done.err


def test_a_failed_preparation_tells_its_cause(place: Place) -> None:
    words = {"what": "o/m is gated", "where": "model.name", "hint": "accept the licence"}
    place.cluster.script("prepare", 0, life("fetching", code=77, words=words))
    cache = "storage.cache={mount: /cache, claim: cache, size: 1Gi}"
    done = place(f"submit run.yaml cluster.prepare=always 'cluster.{cache}'")
    assert done.code == 77
    assert "o/m is gated" in done.err and "accept the licence" in done.err
    assert place.cluster.names("jobs") == ["jobs/r-prepare"]


def test_refusals_are_told_together(place: Place) -> None:
    place.cluster.writes.namespaces.clear()
    done = place("submit run.yaml")
    assert done.code == 78
    assert "there is no namespace train" in done.err and "create namespace train" in done.err


def test_local_checks_come_first(place: Place) -> None:
    Path("run.yaml").write_text("model: {nam: x}\n", encoding="utf-8")
    done = place("submit run.yaml")
    assert done.code == 78
    assert place.cluster.requests == []


def test_which_cluster(place: Place) -> None:
    Path("cluster.yaml").unlink()
    done = place("submit run.yaml")
    assert done.code == 2
    assert "--cluster" in done.err and "RANKZERO_CLUSTER" in done.err


def test_another_run_of_this_name_is_ended_only_where_that_is_said(place: Place) -> None:
    for node in (0, 1):
        place.cluster.script("node", node, [("run",), ("hold",)])
    assert place("submit run.yaml --detach").code == 0
    done = place("submit run.yaml train.max_steps=7 --detach")
    assert done.code == 78
    assert "is under way with another spec (submitted by " in done.err and "--replace" in done.err
    assert place("submit run.yaml train.max_steps=7 --detach --replace").code == 0
    assert "max_steps: 7" in place.cluster.get("configmaps", "r")["data"]["run.yaml"]
