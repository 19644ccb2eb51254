"""Runs on a real cluster, for every kind that it serves: to the end, interrupted, refused, removed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.node.settings import WARM_DIR
from rankzero.launch.status import RunStatus
from rankzero.run_dir.atomic import verify_directory
from tests.cluster.conftest import CLAIM, LONG, PATIENCE_SECONDS, SHORT, Cluster, Done
from tests.support.in_container import SLOW_DOWN, SUSPEND
from tests.support.jupyter import forwarding, said_by_kernel, token_of

KINDS = ["job", "jobset", "statefulset", "trainjob", "pytorchjob"]


def need(kind: str, served: set[str]) -> None:
    if kind not in served:
        pytest.skip(f"the cluster serves no {kind}")


def losses(metrics: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in metrics if "loss" in line]


def steps(metrics: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in metrics if "loss" in line]


def running(seen: RunStatus) -> bool:
    return (seen.step or 0) >= 6


def ended(seen: RunStatus) -> bool:
    return seen.phase in ("Succeeded", "Failed")


@pytest.mark.parametrize("kind", KINDS)
def test_to_the_end(kind: str, cluster: Cluster, served_kinds: set[str], local_losses: dict[int, list[float]]) -> None:
    need(kind, served_kinds)
    run, place = f"end-{kind}", cluster.cluster_yaml(kind)
    done = cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, timeout=1200)
    assert done.code == 0, f"{done.out[-3000:]}\n{done.err[-3000:]}"
    seen = cluster.until(run, place, ended, "ended")
    assert seen["phase"] == "Succeeded", seen
    assert losses(cluster.metrics(run)) == pytest.approx(local_losses[SHORT], abs=1e-4)

    logs = cluster.rankzero("logs", run, "--cluster", place)
    if kind != "statefulset":  # its pods are gone when it has ended
        assert logs.code == 0, logs.err
        for node in (0, 1):
            assert any(line.startswith(f"[node {node}]") for line in logs.out.splitlines()), logs.out[:2000]

    removed = cluster.rankzero("delete", run, "--cluster", place, "--yes")
    assert removed.code == 0, removed.err
    assert_nothing_is_left(cluster, run)


@pytest.mark.parametrize("kind", ["job", "statefulset"])
def test_a_smoke_test_and_the_doctor(kind: str, cluster: Cluster, served_kinds: set[str]) -> None:
    need(kind, served_kinds)
    place = cluster.cluster_yaml(kind)
    found = cluster.rankzero("doctor", "--cluster", place)
    assert found.code == 0, found.out
    done = cluster.rankzero("smoke", "--cluster", place, timeout=1200)
    assert done.code == 0, f"{done.out[-3000:]}\n{done.err[-3000:]}"
    assert "all-to-all of 16 MiB" in done.err and "weights are equal on all ranks" in done.err
    assert_nothing_is_left(cluster, "rankzero-smoke")


def test_a_result_is_pulled_from_the_claim(cluster: Cluster) -> None:
    place, run = cluster.cluster_yaml("job"), "pulled"
    done = cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, timeout=1200)
    assert done.code == 0, done.err
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0
    pulled = cluster.folder / "pulled"
    words = ("pull", run, "--cluster", place, "--output", str(pulled), "--checkpoints", "last")
    done = cluster.rankzero(*words, may_all=True)  # its rights go beyond those of submitting
    assert done.code == 0, done.err
    verify_directory(pulled / "final")
    verify_directory(pulled / "checkpoints" / f"step-{SHORT}")
    assert losses([json.loads(line) for line in (pulled / "metrics.jsonl").read_text().splitlines()])
    again = json.loads(cluster.rankzero(*words, "--json", may_all=True).out)
    assert again["fetched"] == 0 and again["kept"] > 5
    left = cluster.rankzero("list", "--cluster", place, "--json")
    assert run not in left.out
    assert_nothing_is_left(cluster, run)


def test_another_setting_trains_beside_the_first(cluster: Cluster) -> None:
    place, run = cluster.cluster_yaml("job"), "beside"
    words = ("submit", cluster.run_yaml(run), "--cluster", place)
    assert cluster.rankzero(*words, timeout=1200).code == 0
    first = cluster.read(f"/outputs/runs/{run}/metrics.jsonl")
    done = cluster.rankzero(*words, "train.learning_rate=0.02", "resume=new", timeout=1200)
    assert done.code == 0, done.err
    there = cluster.until(run, place, ended, "ended")["run_dir"]
    assert there.startswith(f"/outputs/runs/{run}-") and f"the results are in {there}" in done.out
    assert cluster.read(f"{there}/metrics.jsonl") != first == cluster.read(f"/outputs/runs/{run}/metrics.jsonl")
    done = cluster.rankzero(*words, timeout=1200)
    assert done.code == 0 and f"the results are in /outputs/runs/{run}\n" in done.out, done.out + done.err
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_warm_pods(cluster: Cluster, local_losses: dict[int, list[float]]) -> None:
    place, project = cluster.cluster_yaml("job"), cluster.folder / "project"
    project.mkdir()
    script = "import os, sys\nprint('rank', os.environ['NODE_RANK'])\nsys.exit(3 * int(os.environ['NODE_RANK']))\n"
    (project / "train.py").write_text(script, encoding="utf-8")
    (project / "train_like.py").write_text("ANSWER = 42\n", encoding="utf-8")

    def dev(verb: str, *more: str, timeout: float = PATIENCE_SECONDS) -> Done:  # rights beyond those of submitting
        return cluster.rankzero("dev", verb, "--cluster", place, *more, timeout=timeout, may_all=True)

    assert dev("up").out.split() == ["dev-0", "dev-1"]
    try:
        done = dev("run", "--from", str(project), "--", "python", "train.py")
        assert done.code == 3, done.err
        assert {"[dev-0] rank 0", "[dev-1] rank 1"} <= set(done.out.splitlines())
        assert dev("sync", "--from", str(project)).out.count("up to date") == 2
        trained = dev("run", "--no-sync", cluster.run_yaml("warm"), timeout=1200)
        assert trained.code == 0, trained.out + trained.err
        assert losses(cluster.metrics("warm")) == pytest.approx(local_losses[SHORT], abs=1e-4)
        with forwarding("--cluster", place, cwd=cluster.folder) as url:
            code = "import os, train_like; print(train_like.ANSWER, os.path.isdir('/outputs/runs/warm'), os.getcwd())"
            assert said_by_kernel(url, f"{WARM_DIR}/work", code).split() == ["42", "True", f"{WARM_DIR}/work"]
        assert dev("run", "--no-sync", "--", "true").code == 0
        with forwarding("--cluster", place, cwd=cluster.folder) as again:
            assert token_of(again) == token_of(url)
    finally:
        removed = dev("down")
    assert removed.code == 0, removed.err
    assert_nothing_is_left(cluster, "dev")


@pytest.mark.parametrize("kind", ["job", "jobset", "statefulset"])
def test_an_evicted_pod_does_not_cost_the_run(
    kind: str, cluster: Cluster, served_kinds: set[str], local_losses: dict[int, list[float]]
) -> None:
    need(kind, served_kinds)
    place = cluster.cluster_yaml(kind)
    run = f"evict-{kind}"
    spec = cluster.run_yaml(run, max_steps=LONG)
    done = cluster.rankzero("submit", spec, "--cluster", place, "--detach")
    assert done.code == 0, done.err
    cluster.until(run, place, running, "at step 6")
    evict(cluster, run, node=1)
    seen = cluster.until(run, place, ended, "ended")
    assert seen["phase"] == "Succeeded", seen
    metrics = cluster.metrics(run)
    assert steps(metrics) == list(range(1, LONG + 1))
    assert losses(metrics) == pytest.approx(local_losses[LONG], abs=1e-4)
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_an_eviction_while_it_loads_does_not_cost_the_run(
    cluster: Cluster, local_losses: dict[int, list[float]]
) -> None:
    place, run = cluster.cluster_yaml("job"), "evict-loading"
    assert cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, "--detach").code == 0
    seen = cluster.until(run, place, lambda seen: seen.running == 2, "on two nodes")
    assert seen["step"] is None, "it has only begun"
    evict(cluster, run, node=1)
    seen = cluster.until(run, place, ended, "ended")
    assert seen["phase"] == "Succeeded", seen
    assert losses(cluster.metrics(run)) == pytest.approx(local_losses[SHORT], abs=1e-4)
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_a_suspended_rank_is_ended_and_the_run_goes_on(cluster: Cluster, local_losses: dict[int, list[float]]) -> None:
    place, run = cluster.cluster_yaml("job"), "suspended"
    assert cluster.rankzero("submit", cluster.run_yaml(run, max_steps=LONG), "--cluster", place, "--detach").code == 0
    cluster.until(run, place, running, "at step 6")
    assert cluster.in_run(run, 1, SUSPEND).wait(300) == 0
    seen = cluster.until(run, place, ended, "ended")
    assert seen["phase"] == "Succeeded", seen
    metrics = cluster.metrics(run)
    assert steps(metrics) == list(range(1, LONG + 1))
    assert losses(metrics) == pytest.approx(local_losses[LONG], abs=1e-4)
    stacks = cluster.in_pod(["sh", "-c", f"cat /outputs/runs/{run}/logs/hang-step-*/rank-1.txt"])
    assert "suspended" in stacks
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_a_slow_rank_is_named_with_its_pod(cluster: Cluster) -> None:
    place, run = cluster.cluster_yaml("job"), "slow"
    spec = cluster.run_yaml(run, max_steps=2 * LONG)  # of which the first pass before the program is in its pod
    assert cluster.rankzero("submit", spec, "--cluster", place, "--detach").code == 0
    cluster.until(run, place, running, "at step 6")
    slow = cluster.pod_of(run, 1)
    with cluster.in_run(run, 1, SLOW_DOWN):
        seen = cluster.until(run, place, ended, "ended")
    assert seen["phase"] == "Succeeded", seen
    named = [row["straggler"] for row in cluster.metrics(run) if "straggler" in row]
    assert named and slow.startswith(named[-1].split()[3]) and named[-1].startswith("rank 1 on slow-1"), named[-1:]
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_a_directory_that_belongs_to_root_is_told_with_the_fix(cluster: Cluster) -> None:
    cluster.in_pod(["python", "-c", "import os; os.mkdir('/outputs/roots', 0o755)"], user=0)
    place, run = cluster.cluster_yaml("job"), "roots"
    done = cluster.rankzero("submit", cluster.run_yaml(run, output_dir="roots"), "--cluster", place)
    assert done.code == 77, done.err
    seen = cluster.until(run, place, ended, "ended")
    assert "belongs to user 0" in str(seen["findings"]) and "chown 1000 /outputs/roots" in str(seen["findings"])
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


def test_cancelled_and_submitted_again(cluster: Cluster, served_kinds: set[str]) -> None:
    place, run = cluster.cluster_yaml("job"), "cancelled"
    spec = cluster.run_yaml(run, max_steps=LONG)
    assert cluster.rankzero("submit", spec, "--cluster", place, "--detach").code == 0
    cluster.until(run, place, running, "at step 6")
    assert cluster.rankzero("cancel", run, "--cluster", place).code == 0
    seen = cluster.until(run, place, lambda seen: seen.phase == "Stopped", "stopped")
    assert seen["phase"] == "Stopped"
    done = cluster.rankzero("submit", spec, "--cluster", place, timeout=1200)
    assert done.code == 0, done.err
    assert steps(cluster.metrics(run)) == list(range(1, LONG + 1))
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0


NO_CLASS = {"mount": "/outputs", "claim": "wrong-class", "size": "1Gi", "class": "no-such-class"}
IMPOSSIBLE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gpus": ({"gpu": True, "nproc_per_node": 64}, ("nvidia.com/gpu",)),
    "image": ({"image": "registry.invalid/nothing:0"}, ("registry.invalid/nothing:0",)),
    "storage": ({"storage": {"outputs": NO_CLASS}}, ("no-such-class",)),
}
MISSING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "secret": (
        {"secrets": {"HF_TOKEN": {"name": "no-such-secret", "key": "token"}}},
        ("Secret/no-such-secret", "HF_TOKEN"),
    ),
    "storage": ({"storage": {"outputs": NO_CLASS}}, ("no-such-class",)),
    "account": ({"service_account": {"name": "no-such-account"}}, ("ServiceAccount/no-such-account",)),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_found_before_anything_is_created(what: str, cluster: Cluster) -> None:
    changes, words = MISSING[what]
    place, run = cluster.cluster_yaml("job", **changes), f"missing-{what}"
    done = cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, "--detach", may_all=True)
    assert done.code == 78, done.err
    assert all(word in done.err for word in words), done.err
    assert_nothing_is_left(cluster, run)


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_the_verdict_names_cause_and_fix(what: str, cluster: Cluster) -> None:
    changes, words = IMPOSSIBLE[what]
    place, run = cluster.cluster_yaml("job", **changes), f"bad-{what}"
    cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, "--detach")
    seen = cluster.until(
        run,
        place,
        lambda seen: any(all(word in str(finding) for word in words) for finding in seen.findings),
        f"explained with {words}",
    )
    assert all(finding["cause"] and finding["fix"] for finding in seen["findings"])
    assert cluster.rankzero("delete", run, "--cluster", place, "--claims", "--yes", may_all=True).code == 0
    assert_nothing_is_left(cluster, run)


def test_a_refused_object_leaves_nothing(cluster: Cluster) -> None:
    place, run = cluster.cluster_yaml("job", pod_patch={"containers": [{"name": "node", "image": ""}]}), "refused"
    done = cluster.rankzero("submit", cluster.run_yaml(run), "--cluster", place, "--detach")
    assert done.code != 0
    assert_nothing_is_left(cluster, run)


def test_a_secret_of_somebody_else_stays_and_a_run_s_own_is_renewed(cluster: Cluster) -> None:
    from lightkube.resources.core_v1 import Secret

    place, run, name = cluster.cluster_yaml("job"), "secret", "secret-submission"
    words = ("submit", cluster.run_yaml(run, max_steps=LONG), "--cluster", place, "--detach")
    theirs = {"metadata": {"name": name, "labels": {"app": "other"}}, "data": {"token": "bXkgb3du"}}
    there = cluster.api.create(Secret.from_dict(theirs))
    done = cluster.rankzero(*words)
    assert done.code == 78, done.err
    assert f"Secret/{name}: it exists already and belongs to somebody else" in done.err
    assert cluster.api.get(Secret, name) == there
    assert_nothing_is_left(cluster, run)
    cluster.api.delete(Secret, name)

    done = cluster.rankzero(*words)
    assert done.code == 0, done.err
    first = cluster.api.get(Secret, name).data
    done = cluster.rankzero(*words, "--replace", "train.learning_rate=0.02")
    assert done.code == 0, done.err
    second = cluster.api.get(Secret, name).data
    assert first and second and first.keys() == second.keys() == {"token"} and first != second

    cluster.api.delete(Secret, name)
    there = cluster.api.create(Secret.from_dict(theirs))
    assert cluster.rankzero("delete", run, "--cluster", place, "--yes").code == 0
    assert_nothing_is_left(cluster, run)
    assert cluster.api.get(Secret, name) == there
    cluster.api.delete(Secret, name)


OWN = {"rankzero.dev/run": "whose"}


@pytest.mark.parametrize("data", [None, {"jupyter": "bXkgb3du"}, {"token": "bXkgb3du"}])
@pytest.mark.parametrize("labels", [OWN, {"rankzero.dev/run": "other"}, {"app": "other"}, None])
def test_the_server_itself_looks_whose_a_secret_is(
    labels: dict[str, str] | None, data: dict[str, str] | None, cluster: Cluster
) -> None:
    from lightkube.resources.core_v1 import Secret

    name = "whose-submission"
    there = cluster.api.create(Secret.from_dict({"metadata": {"name": name, "labels": labels}, "data": data}))
    try:
        if labels is OWN:
            assert cluster.put_submission_secret("whose", "new") == "updated"
            assert cluster.api.get(Secret, name).data == {**(data or {}), "token": "bmV3"}
        else:
            with pytest.raises(ConfigError, match="it exists already and belongs to somebody else"):
                cluster.put_submission_secret("whose", "new")
            assert cluster.api.get(Secret, name) == there
    finally:
        cluster.api.delete(Secret, name)


def evict(cluster: Cluster, run: str, node: int) -> None:
    """As a node that is drained does it."""
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import PodEviction

    name = cluster.pod_of(run, node)
    cluster.api.create(PodEviction(metadata=ObjectMeta(name=name)), name)


def assert_nothing_is_left(cluster: Cluster, run: str) -> None:
    """No object with the run's label but claims."""
    from lightkube.resources.apps_v1 import StatefulSet
    from lightkube.resources.batch_v1 import Job
    from lightkube.resources.core_v1 import ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount
    from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding

    deadline = time.monotonic() + 300
    kinds = (StatefulSet, Job, ConfigMap, Pod, Secret, Service, ServiceAccount, Role, RoleBinding)
    while True:
        left = [
            f"{kind.__name__} {item.metadata.name}"
            for kind in kinds
            for item in cluster.api.list(kind, labels={"rankzero.dev/run": run})
        ]
        if not left:
            break
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(left)}")
        time.sleep(1)
    claims = [claim.metadata.name for claim in cluster.api.list(PersistentVolumeClaim)]
    assert CLAIM in claims
