"""`rankzero.submit` and `rankzero.status`, against a cluster that is only a protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import rankzero
from rankzero.launch.backends.kubernetes.streams import Clock
from tests.support.fake_cluster import FakeCluster, life
from tests.unit.cli.conftest import CLUSTER, RUN


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    cluster = FakeCluster().start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.api.Clock", partial(Clock, sleep=lambda seconds: None))
    Path("run.yaml").write_text(RUN, encoding="utf-8")
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    yield cluster
    cluster.stop()


def test_submit_and_status(cluster: FakeCluster) -> None:
    words = {"what": "row 3 has no messages", "where": "t.jsonl:3", "hint": "see the format"}
    cluster.script("node", 0, life("bad", code=65, words=words))
    run = rankzero.submit("run.yaml", overrides={"train.max_steps": 7}, cluster_overrides={"num_nodes": 1})
    assert (run.name, run.namespace, run.run_dir) == ("r", "train", "/outputs/runs/r")
    sent = "".join(request.body.decode() for request in cluster.requests if request.changes)
    assert "max_steps: 7" in sent
    for _ in run.backend.logs(run.name, _following()):
        pass
    for status in (run.status(), rankzero.status("r", "cluster.yaml"), rankzero.status("run.yaml")):
        assert status.phase == "Failed" and "row 3 has no messages" in json.dumps(status.to_json())


def _following() -> object:
    from rankzero.launch.backend import LogQuery

    return LogQuery(follow=True)


def test_problems_of_both_files_come_before_anything_is_sent(cluster: FakeCluster) -> None:
    with pytest.raises(rankzero.ConfigError, match="pods have nothing at /nowhere"):
        rankzero.submit("run.yaml", overrides={"data.train": "/nowhere/t.jsonl"})
    with pytest.raises(rankzero.UsageError, match="no such run"):
        rankzero.status("other")
    assert not [request for request in cluster.requests if request.changes]
