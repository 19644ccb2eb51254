"""Trials that a cluster trains, against one that is only a protocol."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rankzero.api.sweeps import SweepResult, run_sweep_on
from rankzero.errors import ConfigError, RankzeroError, StoppedError
from rankzero.launch.backends.kubernetes.streams import Clock
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import RUN as RUN_LABEL
from rankzero.launch.status import RunStatus, run_status
from rankzero.spec.load import load_run_spec
from rankzero.sweep import cluster as there
from rankzero.sweep import run as loop
from tests.support.fake_cluster import FakeCluster, life
from tests.support.fake_cluster.store import KINDS
from tests.support.sweeps import written
from tests.unit.cli.conftest import CLUSTER

RUN = {"model": {"name": "o/m"}, "data": {"train": "rows.jsonl", "eval": {"fraction": 0.5}}, "lora": {"r": 8}}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    cluster = FakeCluster().start()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.api.Clock", partial(Clock, sleep=lambda seconds: None))
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(there, "run_status", later(cluster))
    monkeypatch.setattr(loop, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(loop, "PAUSE_SECONDS", (0.0,))
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", "num_nodes: 1"), encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    yield cluster
    cluster.stop()


def later(cluster: FakeCluster) -> Callable[[Evidence], RunStatus]:
    """A look at a run, before which time has passed there."""

    def look(evidence: Evidence) -> RunStatus:
        with cluster.store.news:
            cluster.world.run_down()
        return run_status(evidence)

    return look


def searched(
    directory: Path, *ranks: int, name: str = "search", trials: int = 6, say: Callable[[str], None] = lambda _: None
) -> SweepResult:
    """Two trials, one after the other."""
    parameters = {"lora.r": {"values": list(ranks or (4, 16))}}
    file = written(directory, RUN, name=name, sampler="grid", parameters=parameters, trials=trials)
    return run_sweep_on(file, cluster=str(directory / "cluster.yaml"), kind="job", say=say)


def changes(cluster: FakeCluster) -> str:
    return "".join(request.body.decode() for request in cluster.requests if request.changes)


def test_each_trial_is_a_run_there_and_says_what_it_scored(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5, "perplexity": 1.6}}))
    result = searched(tmp_path)
    assert [(trial.state, trial.value) for trial in result.trials] == [("complete", 0.5)] * 2
    sent = changes(cluster)
    assert sent.index("search-000") < sent.index("search-001")
    best = load_run_spec(tmp_path / "search-best.yaml", env={}).spec
    assert best.lora is not None and (best.lora.r, best.name, best.data.train) == (4, "search-best", "rows.jsonl")
    cluster.requests.clear()
    assert searched(tmp_path).trials == result.trials
    assert changes(cluster) == ""


class Killed(BaseException):
    """In place of SIGKILL."""


def killed_in_its_second_trial(directory: Path, name: str, patch: pytest.MonkeyPatch) -> None:
    """The first is done, the second has been submitted."""
    look = there.run_status

    def killing(evidence: Evidence) -> RunStatus:
        if evidence.run == f"{name}-001" and evidence.objects:
            raise Killed
        return look(evidence)

    with patch.context() as patched, pytest.raises(Killed):
        patched.setattr(there, "run_status", killing)
        searched(directory, name=name)


def test_a_sweep_with_a_run_under_way_keeps_its_name(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another one the trial would be trained beside itself. When all are over, nothing is trained twice."""
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    killed_in_its_second_trial(tmp_path, "search", monkeypatch)
    first, second = tmp_path / "sweeps/search", tmp_path / "sweeps/other"
    first.rename(second)
    cluster.requests.clear()
    with pytest.raises(ConfigError) as caught:
        searched(tmp_path, name="other")
    (problem,) = caught.value.problems
    assert problem.what == "was search, is other, and runs of the first name are trials that are not over: search-001"
    assert problem.where == f"{second}: sweep: name" and "name: search" in problem.hint
    assert changes(cluster) == ""
    second.rename(first)
    trials = searched(tmp_path).trials
    assert [trial.state for trial in trials] == ["complete"] * 2
    first.rename(second)
    cluster.requests.clear()
    assert searched(tmp_path, name="other").trials == trials and changes(cluster) == ""


def test_a_sweep_goes_by_the_name_that_it_had_last(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed while no trial is open, it has runs of both names; those that are under way are of the second."""
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    searched(tmp_path, trials=1)
    first, second = tmp_path / "sweeps/search", tmp_path / "sweeps/other"
    first.rename(second)
    killed_in_its_second_trial(tmp_path, "other", monkeypatch)
    second.rename(first)
    with pytest.raises(ConfigError, match="was other, is search, .* not over: other-001"):
        searched(tmp_path)
    first.rename(second)
    assert [trial.state for trial in searched(tmp_path, name="other").trials] == ["complete"] * 2


def test_of_a_sweep_that_noted_no_name_it_is_said_what_may_be_trained_twice(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version let it be renamed, so its runs may have either name."""
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    killed_in_its_second_trial(tmp_path, "search", monkeypatch)
    file = tmp_path / "sweeps/other/sweep.json"
    (tmp_path / "sweeps/search").rename(file.parent)
    record = json.loads(file.read_text())
    record.pop("runs_named", None)
    file.write_text(json.dumps(record))
    said: list[str] = []
    assert [trial.state for trial in searched(tmp_path, name="other", say=said.append).trials] == ["complete"] * 2
    assert [line for line in said if "search-001" in line and "rankzero cancel" in line]
    assert json.loads(file.read_text())["runs_named"] == "other"
    said.clear()
    searched(tmp_path, name="other", say=said.append)
    assert not said


def test_a_trial_that_fails_there_is_recorded_with_its_cause(tmp_path: Path, cluster: FakeCluster) -> None:
    words = {"what": "row 3 has no messages", "where": "rows.jsonl:3", "hint": "see the format"}
    cluster.script("node", 0, life("bad", code=65, words=words))
    with pytest.raises(RankzeroError, match="no trial has a result") as caught:
        searched(tmp_path)
    assert caught.value.exit_code == 65
    assert "row 3 has no messages" in json.dumps([problem.what for problem in caught.value.problems])


def test_trials_that_failed_there_are_submitted_again_when_their_cause_is_mended(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    cluster.script("node", 0, life("bad", code=65, words={"what": "row 3 has no messages"}))
    with pytest.raises(RankzeroError, match="no trial has a result"):
        searched(tmp_path)
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    again = searched(tmp_path)
    assert [(trial.state, trial.value) for trial in again.trials] == [("complete", 0.5)] * 2


def test_a_trial_that_the_cluster_cannot_run_is_a_failed_one(tmp_path: Path, cluster: FakeCluster) -> None:
    """Three processes would share passes, and there is one; the trials after it are tried all the same."""
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    parameters = {"train.context_parallel": {"values": [3, 1]}}
    file = written(tmp_path, RUN, name="search", sampler="grid", parameters=parameters)
    config = str(tmp_path / "cluster.yaml")
    for _ in range(2):  # no start is kept from the others by it
        result = run_sweep_on(file, cluster=config, kind="job", say=lambda _: None)
        assert [trial.state for trial in result.trials] == ["failed", "complete"]
        assert "cannot be divided into groups of 3" in result.trials[0].cause
    assert "search-000" not in changes(cluster)


def test_a_score_that_is_no_number_is_a_failed_trial(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": math.nan}}))
    with pytest.raises(RankzeroError, match="eval_loss of its result is not a finite number"):
        searched(tmp_path)


def test_another_sweeps_finished_run_is_no_trial_of_this_one(tmp_path: Path, cluster: FakeCluster) -> None:
    """Nor is its object replaced: what it says may be all that there is of it."""
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    searched(tmp_path)
    shutil.rmtree(tmp_path / "sweeps")
    cluster.requests.clear()
    with pytest.raises(ConfigError, match="is finished already, with another spec") as caught:
        searched(tmp_path, 32, 64)
    (problem,) = caught.value.problems
    assert problem.where == "run search-000" and "another name" in problem.hint
    assert changes(cluster) == ""


def test_a_finished_trial_whose_pods_are_gone_is_asked_again(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.script("node", 0, life(words={"step": 4, "scores": {"eval_loss": 0.5}}))
    searched(tmp_path)
    shutil.rmtree(tmp_path / "sweeps")
    removed(cluster, "search-000", "pods")
    again = searched(tmp_path)
    assert [(trial.state, trial.value) for trial in again.trials] == [("complete", 0.5)] * 2


@pytest.mark.parametrize(
    ("phase", "plurals"), [("Running", ()), ("Running", ("jobs", "pods")), ("Succeeded", ("pods",))]
)
def test_a_trial_whose_run_is_removed_meanwhile_goes_on(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, phase: str, plurals: tuple[str, ...]
) -> None:
    """All of it while it runs, or what trains, as somebody's `cancel` does it in a queue; or its pods before they were
    heard."""
    once = [*life()[:2], ("hold",)] if phase == "Running" else life(words={"scores": {"eval_loss": 0.1}})
    cluster.script("node", 0, once, life(words={"scores": {"eval_loss": 0.5}}))
    look, looks, gone = there.run_status, 0, set()

    def removing(evidence: Evidence) -> RunStatus:
        nonlocal looks
        looks += 1
        assert looks < 50, "it waits for ever"
        with cluster.store.news:
            cluster.world.run_down()
            if evidence.run not in gone and [pod for pod in evidence.pods if pod["status"]["phase"] == phase]:
                gone.add(evidence.run)
                removed(cluster, evidence.run, *plurals)
                left = [one for one in evidence.objects if plurals and not (one["kind"] == "Job" and "jobs" in plurals)]
                return run_status(replace(evidence, objects=tuple(left), pods=()))
        return look(evidence)

    monkeypatch.setattr(there, "run_status", removing)
    said: list[str] = []
    result = searched(tmp_path, say=said.append)
    assert [(trial.state, trial.value) for trial in result.trials] == [("complete", 0.5)] * 2
    assert "[TRIAL 0] is started again, 1 of 3" in said


def test_a_trial_that_its_own_sweep_has_cancelled_is_stopped_also_where_that_removes_it(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a queue of Kueue's whose Workloads this user may not change."""
    cluster.script("node", 0, [*life()[:2], ("hold",)])
    look = there.run_status
    said: list[str] = []

    def stopping(evidence: Evidence) -> RunStatus:
        with cluster.store.news:
            cluster.world.run_down()
        if evidence.pods:
            monkeypatch.setattr(there, "run_status", gone)
            os.kill(os.getpid(), signal.SIGTERM)
        return look(evidence)

    def gone(evidence: Evidence) -> RunStatus:
        removed(cluster, evidence.run, "jobs", "pods")
        left = tuple(one for one in evidence.objects if one["kind"] != "Job")
        return run_status(replace(evidence, objects=left, pods=()))

    monkeypatch.setattr(there, "run_status", stopping)
    with pytest.raises(StoppedError):
        searched(tmp_path, say=said.append)
    assert not [line for line in said if "started again" in line]


def test_runs_that_are_removed_at_their_end_are_refused(tmp_path: Path, cluster: FakeCluster) -> None:
    with (tmp_path / "cluster.yaml").open("a") as file:
        file.write("ttl_seconds_after_finished: 0\n")
    with pytest.raises(ConfigError, match="is removed before it is asked what it scored"):
        searched(tmp_path)
    assert changes(cluster) == ""


def removed(cluster: FakeCluster, run: str, *plurals: str) -> None:
    """Objects of a run, by somebody else."""
    for plural in plurals or KINDS:
        for one in cluster.store.of(plural):
            if (one["metadata"].get("labels") or {}).get(RUN_LABEL) == run:
                cluster.store.drop(plural, one["metadata"]["name"])
