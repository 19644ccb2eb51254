"""Trials that a cluster trains, against one that is only a protocol."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from rankzero.api.sweeps import SweepResult, run_sweep_on
from rankzero.errors import ConfigError, Problem, RankzeroError, ServiceError, StoppedError
from rankzero.launch.backend import Backend
from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
from rankzero.launch.backends.kubernetes.streams import Clock
from rankzero.launch.backends.preparation import PreparationError
from rankzero.launch.evidence import Evidence, Refusal
from rankzero.launch.labels import RUN as RUN_LABEL
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import make_plan
from rankzero.launch.silence import SilentError
from rankzero.launch.status import RunStatus, run_status
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_load import Sweep
from rankzero.sweep import cluster as there
from rankzero.sweep import run as loop
from rankzero.sweep.record import Record
from rankzero.sweep.trainer import Known, TrialStart
from tests.support.fake_cluster import FakeCluster, life
from tests.support.fake_cluster.store import KINDS
from tests.support.sweeps import sweep_of, written
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


THREE = (4, 16, 32)
BAD = life("bad", code=65, words={"what": "row 3 has no messages"})
SCORED = life(words={"step": 4, "scores": {"eval_loss": 0.5}})


def killed_in_its_second_trial(
    directory: Path, name: str, patch: pytest.MonkeyPatch, *, submitted: bool = True, trials: int = 6
) -> None:
    """The first is over; the second has been submitted, or is about to be."""
    look = there.run_status

    def killing(evidence: Evidence) -> RunStatus:
        if evidence.run == f"{name}-001" and bool(evidence.objects) == submitted:
            raise Killed
        return look(evidence)

    with patch.context() as patched, pytest.raises(Killed):
        patched.setattr(there, "run_status", killing)
        searched(directory, *THREE, name=name, trials=trials)


def renamed(directory: Path, before: str, now: str) -> None:
    (directory / "sweeps" / before).rename(directory / "sweeps" / now)


def unnoted(directory: Path, name: str) -> None:
    """The record as a version has it that noted no names."""
    with closing(sqlite3.connect(directory / "sweeps" / name / "study.db")) as record, record:
        record.execute("DELETE FROM trial_user_attributes WHERE key = 'run'")


def submitted(cluster: FakeCluster) -> list[str]:
    """Runs whose training object was applied, each once, in order."""
    made = (re.search(r"/jobs/([^?]+)\?.*force=true", one.path) for one in cluster.requests if one.changes)
    return list(dict.fromkeys(found[1] for found in made if found))


NAMES = [("search", "search"), ("search", "other"), ("other", "search"), ("other", "other"), ("other", "third")]


@pytest.mark.parametrize("meanwhile", ["runs", "is finished", "has failed"])
@pytest.mark.parametrize(("second", "third"), NAMES)
def test_a_trial_keeps_the_name_of_its_run_whatever_the_sweep_is_called_since(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, meanwhile: str, second: str, third: str
) -> None:
    """Under another one it would be trained beside itself, and without its checkpoints. What comes after it has the
    sweep's name at that time."""
    cluster.script("node", 0, SCORED)
    searched(tmp_path, *THREE, trials=1)
    renamed(tmp_path, "search", second)
    if meanwhile == "has failed":
        cluster.script("node", 0, BAD, SCORED)
    killed_in_its_second_trial(tmp_path, second, monkeypatch, trials=2)
    if meanwhile != "runs":
        with cluster.store.news:
            cluster.world.run_down()
    cluster.script("node", 0, SCORED)
    renamed(tmp_path, second, third)
    result = searched(tmp_path, *THREE, name=third)
    assert [trial.run for trial in result.trials] == ["search-000", f"{second}-001", f"{third}-002"]
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert submitted(cluster) == ["search-000", f"{second}-001", f"{third}-002"]
    assert result.to_json()["trials"][1]["run"].endswith(f"/{second}-001")


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_trial_that_was_never_submitted_has_the_name_of_its_sweep(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    cluster.script("node", 0, SCORED)
    killed_in_its_second_trial(tmp_path, "search", monkeypatch, submitted=False)
    if not is_noted:
        unnoted(tmp_path, "search")
    renamed(tmp_path, "search", "other")
    result = searched(tmp_path, *THREE, name="other")
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert submitted(cluster) == ["search-000", "other-001", "other-002"]


def test_a_trial_is_noted_before_it_is_submitted(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between leaves a name under which nothing is there, and under which it is submitted then."""
    cluster.script("node", 0, SCORED)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(KubernetesBackend, "submit", killed)
        searched(tmp_path, *THREE)
    renamed(tmp_path, "search", "other")
    assert [trial.state for trial in searched(tmp_path, *THREE, name="other").trials] == ["complete"] * 3
    assert submitted(cluster) == ["search-000", "other-001", "other-002"]


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_trial_that_failed_goes_on_under_its_name(tmp_path: Path, cluster: FakeCluster, is_noted: bool) -> None:
    """From what it saved there."""
    cluster.script("node", 0, BAD, SCORED)
    with pytest.raises(RankzeroError, match="no trial has a result"):
        searched(tmp_path)
    if not is_noted:
        unnoted(tmp_path, "search")
    renamed(tmp_path, "search", "other")
    assert [trial.state for trial in searched(tmp_path, name="other").trials] == ["complete"] * 2
    assert submitted(cluster) == ["search-000", "search-001"]


@pytest.mark.parametrize("meanwhile", ["runs", "is finished", "has failed"])
@pytest.mark.parametrize("second", ["search", "other"])
def test_a_trial_of_a_version_that_noted_no_names_is_found_under_either(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, meanwhile: str, second: str
) -> None:
    cluster.script("node", 0, SCORED)
    searched(tmp_path, *THREE, trials=1)
    renamed(tmp_path, "search", second)
    if meanwhile == "has failed":
        cluster.script("node", 0, BAD, SCORED)
    killed_in_its_second_trial(tmp_path, second, monkeypatch, trials=2)
    if meanwhile != "runs":
        with cluster.store.news:
            cluster.world.run_down()
    cluster.script("node", 0, SCORED)
    unnoted(tmp_path, second)
    if second != "other":
        renamed(tmp_path, second, "other")
    result = searched(tmp_path, *THREE, name="other")
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert submitted(cluster) == ["search-000", f"{second}-001", "other-002"]
    assert result.trials[1].run == f"{second}-001"


@pytest.mark.parametrize("meanwhile", ["runs", "is finished", "has failed"])
@pytest.mark.parametrize("name", ["search", "other"])
def test_a_trial_is_its_own_run_also_where_cluster_yaml_has_changed(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, meanwhile: str, name: str
) -> None:
    """One that runs is followed as it is, one that is finished has scored; one that has stopped goes on as changed."""
    cluster.script("node", 0, SCORED)
    searched(tmp_path, *THREE, trials=1)
    if meanwhile == "has failed":
        cluster.script("node", 0, BAD, SCORED)
    killed_in_its_second_trial(tmp_path, "search", monkeypatch, trials=2)
    if meanwhile != "runs":
        with cluster.store.news:
            cluster.world.run_down()
    cluster.script("node", 0, SCORED)
    changed(tmp_path)
    if name != "search":
        renamed(tmp_path, "search", name)
    result = searched(tmp_path, *THREE, name=name)
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert submitted(cluster) == ["search-000", "search-001", f"{name}-002"]


def changed(directory: Path) -> None:
    """cluster.yaml, so that no rendering is as before."""
    file = directory / "cluster.yaml"
    file.write_text(re.sub(r"image: .*", "image: example.org/other:2", file.read_text()))


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
    renamed(tmp_path, "search", "other")  # the hint
    assert [trial.run for trial in searched(tmp_path, 32, 64, name="other").trials] == ["other-000", "other-001"]


@pytest.mark.parametrize("hint", ["another name", "removed"])
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_trial_whose_name_another_sweep_has_taken_meanwhile_gets_on_by_the_hint(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, hint: str, is_noted: bool
) -> None:
    cluster.script("node", 0, SCORED)
    killed_in_its_second_trial(tmp_path, "search", monkeypatch)
    if not is_noted:
        unnoted(tmp_path, "search")
    removed(cluster, "search-000")
    removed(cluster, "search-001")
    renamed(tmp_path, "search", "aside")
    searched(tmp_path, 2, 64)
    shutil.rmtree(tmp_path / "sweeps/search")
    renamed(tmp_path, "aside", "search")
    with pytest.raises(ConfigError, match="is finished already, with another spec") as caught:
        searched(tmp_path, *THREE)
    assert "another name" in caught.value.problems[0].hint and "delete search-001" in caught.value.problems[0].hint
    name = "other" if hint == "another name" else "search"
    if hint == "removed":
        removed(cluster, "search-001")
    else:
        renamed(tmp_path, "search", name)
    cluster.requests.clear()
    result = searched(tmp_path, *THREE, name=name)
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert submitted(cluster) == [f"{name}-001", f"{name}-002"]


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


def test_a_trial_whose_nodes_could_not_read_what_it_scored_says_so_anew(tmp_path: Path, cluster: FakeCluster) -> None:
    """It was recorded for ever as one whose loss is no finite number."""
    unread = life(words={"step": 4, "scores": {}, "scores_unread": "Stale file handle"})
    cluster.script("node", 0, unread, SCORED)
    said: list[str] = []
    result = searched(tmp_path, say=said.append)
    assert [(trial.state, trial.value) for trial in result.trials] == [("complete", 0.5)] * 2
    assert any("its nodes could not read what it scored (Stale file handle)" in line for line in said)
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


class Place:
    """A backend with runs that only become what tests say, and that does not answer at times."""

    def __init__(self) -> None:
        self.silent, self.asked, self.error = 0, 0, SilentError("Socket timed out", hint="is it up?")
        self.submitted: list[str] = []
        self.told: list[str] = []
        self.all_told = threading.Event()
        self.refuses = ""
        self.refused: tuple[Refusal, ...] = ()

    def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
        self.asked += 1
        if self.silent:
            self.silent -= 1
            raise self.error
        return Evidence(run=run, now=datetime.now(UTC), refused=self.refused)

    def submit(self, objects: Sequence[Manifest], say: Callable[[str], None], *, replace: bool = False) -> None:
        if self.silent:
            self.silent -= 1
            raise self.error
        self.submitted.append(objects[0]["metadata"]["name"])

    def cancel(self, run: str, say: Callable[[str], None]) -> None:
        self.told.append(run)
        if len(self.told) == 2:
            self.all_told.set()
        assert self.all_told.wait(60), "the other is told when this one has ended"
        if run == self.refuses:
            raise ServiceError("Slurm does not answer")


def trial_there(place: Place, name: str, said: list[str]) -> there._Submitted:
    run = resolve(load_run_spec(None, [f"name={name}", "model.name=o/m", "data.train=o/d"], env={}).spec)
    plan = make_plan(
        run,
        load_cluster_spec(None, ["num_nodes=1", "image=i", "storage.outputs={mount: /outputs, claim: c}"], env={}).spec,
    )
    return there._Submitted(cast("Backend", place), plan, said.append)


def test_a_look_that_is_not_answered_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    place, said = Place(), list[str]()
    trial = trial_there(place, "a", said)
    place.silent = 2
    assert [trial.running() for _ in range(3)] == [True, True, False] and len(said) == 1
    clock = itertools.count(0, 100)
    monkeypatch.setattr(there.time, "monotonic", lambda: next(clock))
    place.silent = 9
    trial = trial_there(place, "a", said)
    with pytest.raises(ServiceError, match="timed out"):
        [trial.running() for _ in range(9)]


def test_a_trial_that_may_not_be_looked_at_is_not_said_to_be_deleted() -> None:
    place, said = Place(), list[str]()
    trial = trial_there(place, "a", said)
    assert not trial.running() and "somebody has deleted it" in str(trial.failure())
    for verb, hidden in (("list pods", True), ("list jobs.batch", True), ("list events", False)):
        place.refused = (Refusal(verb, 403, "Forbidden", "no"),)
        trial = trial_there(place, "a", said)
        assert not trial.running()
        failure = trial.failure()
        assert failure is not None and failure.exit_code == 69
        assert (f"not permitted to {verb}" in str(failure)) == hidden


def test_a_trial_that_is_not_answered_is_borne_no_longer_for_what_others_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    clock = itertools.count(0, 100)
    monkeypatch.setattr(there.time, "monotonic", lambda: next(clock))
    said = list[str]()
    mute, other = Place(), Place()
    mute.silent = 99
    trials = [trial_there(place, name, said) for place, name in ((mute, "a"), (other, "b"))]
    with pytest.raises(SilentError):
        [trial._look() for _ in range(9) for trial in trials]


def test_what_can_never_be_answered_is_not_waited_for() -> None:
    place, said = Place(), list[str]()
    place.silent, place.error = 1, ServiceError("there is no squeue command on this machine", hint="a login node")
    with pytest.raises(ServiceError, match="login node"):
        trial_there(place, "a", said).running()
    assert not said


def starter(place: Place, directory: Path, said: list[str]) -> Callable[[str], object]:
    """Starts trials by their names."""
    settings = ["num_nodes=1", "image=i", "storage.outputs={mount: /outputs, claim: c}"]
    cluster = load_cluster_spec(None, settings, env={}).spec
    trainer = there.OnCluster(cast("Backend", place), cluster, directory, "me", said.append)

    def start(name: str) -> object:
        spec = resolve(load_run_spec(None, [f"name={name}", "model.name=o/m", "data.train=o/d"], env={}).spec)
        return trainer.start(spec, 0, Known(None, False, (), lambda _name, _digest: None))

    return start


def test_a_trial_whose_start_is_not_answered_is_started_at_another_look(tmp_path: Path) -> None:
    place, said = Place(), list[str]()
    start = starter(place, tmp_path, said)
    assert start("a") is not None
    place.silent, before = 1, place.asked
    assert start("b") is None and len(said) == 1
    assert start("b") is None and place.asked == before + 1, "not at once"


def test_a_place_that_has_answered_nothing_yet_is_said_at_once(tmp_path: Path) -> None:
    place, said = Place(), list[str]()
    place.silent = 1
    with pytest.raises(ServiceError, match="is it up"):
        starter(place, tmp_path, said)("a")


def test_a_submit_that_is_not_answered_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    place, said = Place(), list[str]()
    start = starter(place, tmp_path, said)
    collect = place.collect

    def answered(run: str, *, log_lines: int = 50) -> Evidence:
        silent, place.silent = place.silent, 0
        found = collect(run, log_lines=log_lines)
        place.silent = silent
        return found

    monkeypatch.setattr(place, "collect", answered)
    place.silent = 1
    assert start("a") is None and not place.submitted
    assert start("a") is not None and place.submitted == ["a"]


def test_all_trials_are_told_to_stop_before_one_is_waited_for() -> None:
    place, said = Place(), list[str]()
    trials = [trial_there(place, name, said) for name in ("a", "b")]
    place.refuses = "a"
    for trial in trials:
        trial.stop()
        trial.stop()
    for trial in trials:
        assert trial._stopping is not None
        trial._stopping.join()
    assert sorted(place.told) == ["a", "b"] and len(said) == 1 and "a cannot be asked to stop" in said[0]
    assert not trials[0].running() and isinstance(trials[0].failure(), StoppedError)


def on_a_claim(directory: Path, kind: str = "job") -> ClusterSpec:
    settings = [f"kind={kind}", "num_nodes=1", "image=i", f"storage.outputs={{mount: {directory}, claim: c}}"]
    return load_cluster_spec(None, settings, env={}).spec


def recorded(directory: Path) -> tuple[Record, Sweep]:
    """A sweep of three trials that has not begun."""
    sweep = sweep_of(directory, parameters={"lora.r": {"values": [2, 4, 8]}}, sampler="grid", trials=3)
    sweep.directory.mkdir(parents=True, exist_ok=True)
    return Record(sweep, sweep.directory / "study.db"), sweep


@pytest.mark.parametrize("when", ["it is looked at", "another is started"])
def test_a_place_that_fails_while_a_sweep_is_stopped_is_told_to_stop_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A program that asks it may have ended of the same signal."""
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(there, "run_status", lambda evidence: replace(run_status(evidence), phase="Running"))
    place, said = Place(), list[str]()
    place.all_told.set()
    count = 2 if when == "it is looked at" else 3

    def fail() -> None:
        place.collect = place.submit = failing  # type: ignore[method-assign, assignment]
        os.kill(os.getpid(), signal.SIGTERM)

    def failing(*_given: object, **_options: object) -> Evidence:
        raise ServiceError("docker ps was ended by SIGINT")

    class Trainer(there.OnCluster):
        def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
            if slot == 2:
                fail()
            started = super().start(spec, slot, known)
            if slot == 1 and count == 2:
                fail()
            return started

    trainer = Trainer(cast("Backend", place), on_a_claim(tmp_path), tmp_path, "me", said.append)
    record, sweep = recorded(tmp_path)
    with pytest.raises(ServiceError, match="ended by SIGINT"):
        loop.SweepRun(sweep, record, trainer, count, said.append).to_its_end()
    assert sorted(place.told) == sorted(place.submitted) and len(place.told) == 2
    assert [trial.state for trial in record.trials] == ["running"] * count


@pytest.mark.parametrize("submits", ["it is prepared", "it fails of that", "it had not begun"])
def test_a_stop_is_heard_while_a_trial_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submits: str
) -> None:
    """Downloads take as long as they take; the cancel of a run ends its preparation, and with it the submit."""
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(there, "run_status", lambda evidence: replace(run_status(evidence), phase="Stopped"))
    said, cancelled = list[str](), threading.Semaphore(0)

    class Preparing(Place):
        def submit(self, objects: Sequence[Manifest], say: Callable[[str], None], *, replace: bool = False) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(3 if submits == "it had not begun" else 1):
                assert cancelled.acquire(timeout=60), "nobody cancels it"
            if submits != "it is prepared":
                raise PreparationError(Problem("the preparation failed with exit code 143"))

        def cancel(self, run: str, say: Callable[[str], None]) -> None:
            say(f"nothing of {run} runs here")
            self.told.append(run)
            cancelled.release()

    place = Preparing()
    trainer = there.OnCluster(cast("Backend", place), on_a_claim(tmp_path, "docker"), tmp_path, "me", said.append)
    record, sweep = recorded(tmp_path)
    with pytest.raises(StoppedError, match="0 of 3 trials are over"):
        loop.SweepRun(sweep, record, trainer, 2, said.append).to_its_end()
    assert set(place.told) == {"trial-000"} and [trial.state for trial in record.trials] == ["running"] * 2
    assert any("exit code 143" in line for line in said) == (submits != "it is prepared")
    if submits == "it had not begun":
        assert len(place.told) >= 3 and said.count("nothing of trial-000 runs here") == 1


def test_a_stop_before_a_submit_is_heard_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are hashed, say, and the place is asked what it has of that name."""
    monkeypatch.setattr(there, "run_status", lambda evidence: replace(run_status(evidence), phase="Stopped"))
    said = list[str]()

    class Asked(Place):
        def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().collect(run, log_lines=log_lines)

    place = Asked()
    trainer = there.OnCluster(cast("Backend", place), on_a_claim(tmp_path, "docker"), tmp_path, "me", said.append)
    record, sweep = recorded(tmp_path)
    with pytest.raises(StoppedError, match="0 of 3 trials are over"):
        loop.SweepRun(sweep, record, trainer, 1, said.append).to_its_end()
    assert place.submitted == place.told == [] and record.trials[0].state == "running"


def test_a_stop_is_not_for_a_run_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trial's name, with another spec, under way: the submit is refused, and a stop meanwhile cancels nothing."""
    monkeypatch.setattr(there, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(there, "run_status", lambda evidence: replace(run_status(evidence), phase="Running"))
    monkeypatch.setattr(there.JoinedEvidence, "annotation", lambda _self, _name: "another's")

    class Refusing(Place):
        def submit(self, objects: Sequence[Manifest], say: Callable[[str], None], *, replace: bool = False) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            self.all_told.wait(0.2)  # a cancel would come now
            raise ConfigError("is under way with another spec")

        def cancel(self, run: str, say: Callable[[str], None]) -> None:
            self.told.append(run)
            self.all_told.set()

    place = Refusing()
    trainer = there.OnCluster(
        cast("Backend", place), on_a_claim(tmp_path, "docker"), tmp_path, "me", lambda _line: None
    )
    record, sweep = recorded(tmp_path)
    with pytest.raises((ConfigError, StoppedError)):
        loop.SweepRun(sweep, record, trainer, 1, lambda _line: None).to_its_end()
    assert place.told == []


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
