"""Which node of the run a pod is, as each kind's platform says it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rankzero.launch import labels
from rankzero.launch.evidence import Evidence
from rankzero.launch.kinds import kind_of, node_index
from rankzero.launch.status import run_status
from tests.unit.launch.backends.kubernetes.runs import objects

INDEX = "batch.kubernetes.io/job-completion-index"


def pod(name: str, kind: str, role: str = labels.NODE_ROLE, **marks: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {labels.KIND: kind, labels.ROLE: role, **marks}}}


@pytest.mark.parametrize(
    ("seen", "node"),
    [
        (pod("r-3-24587", "job", **{INDEX: "3"}), 3),
        (pod("r-node-0-3-x", "trainjob", **{INDEX: "3"}), 3),
        (pod("r-3", "statefulset"), 3),
        (pod("r-3", "docker", **{"rankzero.dev/node": "3"}), 3),
        (pod("r-3", "slurm", **{"rankzero.dev/node": "3"}), 3),
        (pod("r-24587", "job"), 0),
        (pod("r-prepare-24587", "statefulset", labels.PREPARE_ROLE), 0),
        (pod("r-3", "of another release", **{INDEX: "3"}), 3),
    ],
)
def test_the_index_is_where_the_platform_writes_it(seen: dict[str, Any], node: int) -> None:
    assert node_index(seen) == node


@pytest.mark.parametrize(("kind", "first", "node"), [("worker", "1", 3), ("worker", "0", 2), ("master", "1", 0)])
def test_worker_0_is_node_1_beside_a_master(kind: str, first: str, node: int) -> None:
    replica = {"training.kubeflow.org/replica-type": kind, "rankzero.dev/first-worker": first}
    replica["training.kubeflow.org/replica-index"] = "0" if kind == "master" else "2"
    assert node_index(pod("r", "pytorchjob", **replica)) == node


def test_what_trains_nothing_is_of_no_kind() -> None:
    assert kind_of({"kind": "ConfigMap"}) is None
    assert kind_of({}) is None


@pytest.mark.parametrize(("restarts", "backoff"), [(0, 1), (1, 1), (3, 3)])
def test_a_pytorchjob_bears_pods_that_were_only_stopped(restarts: int, backoff: int) -> None:
    """With a backoffLimit of 0 its operator fails it at the first pod that leaves, also with 75 or evicted; the node
    command counts what counts."""
    job = objects(kind="pytorchjob", max_restarts=restarts)[-1]
    assert job["spec"]["runPolicy"]["backoffLimit"] == backoff
    said = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed", "message": "reached backoff limit"}
    job["status"] = {"conditions": [said]}
    verdict = run_status(Evidence(run="r", now=datetime.now(UTC), objects=(job,))).verdict
    told = {0: "max_restarts is 0, so", 1: "the one restart that max_restarts", 3: "all 3 restarts that max_restarts"}
    assert told[restarts] in verdict
