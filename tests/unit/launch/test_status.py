"""Phases, progress, restarts and the words for them."""

from __future__ import annotations

import copy
import io
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.progress import told
from rankzero.engine import console
from rankzero.errors import DataError
from rankzero.launch.evidence import Evidence
from rankzero.launch.last_words import LastWords, parse_last_words
from rankzero.launch.log_lines import awaited_nodes, last_error, last_progress, last_spoken, time_of
from rankzero.launch.node import client, command, termination
from rankzero.launch.pods import parse_pod
from rankzero.launch.status import RunStatus, as_table, as_text, run_status, summarise
from rankzero.run_dir.goodput import Start, StartLine
from rankzero.run_dir.paths import RunDir
from tests.support.evidence import named, prepared
from tests.support.unreadable import stale

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def _with(evidence: Evidence, change: dict[str, Any]) -> Evidence:
    """The evidence, its training object's spec changed."""
    first = copy.deepcopy(evidence.objects[0])
    first["spec"] |= change
    return replace(evidence, objects=(first, *evidence.objects[1:]))


def _kinds(evidence: Evidence, kind: str) -> Evidence:
    pods = copy.deepcopy(evidence.pods)
    for pod in pods:
        pod["metadata"]["labels"]["rankzero.dev/kind"] = kind
    return replace(evidence, pods=pods)


def test_progress_is_read_as_the_console_writes_it() -> None:
    """The real formatter and the real sentence, not a copy of them."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(console._Redacted())
    console.logger.addHandler(handler)
    level = console.logger.level
    console.logger.setLevel(logging.INFO)
    try:
        with told(console.STEPS, "step", 2000, 119, terminal=None, say=console.logger.info) as advance:
            facts = {"loss": 1.25, "epoch": 0.12, "learning_rate": 1.5e-4, "grad_norm": 0.523}
            advance(1, console.step_in_words({**facts, "peak_memory_bytes": 1_230_000_000}, 12345.4))
    finally:
        console.logger.removeHandler(handler)
        console.logger.setLevel(level)
    line = stream.getvalue()
    assert "loss 1.2500 12,345 tok/s ep 0.12 lr 1.5e-4 |g| 0.52 1.2GB elapsed 0:00 ETA 0:0" in line
    found = last_progress(f"[node 0] {line}", datetime.now(UTC))
    assert found is not None
    assert (found.step, found.total_steps, found.loss, found.tokens_per_second) == (120, 2000, 1.25, 12345)
    assert found.at is not None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12:29:59 [STEP] x", NOW - timedelta(seconds=1)),
        ("23:59:00 [STEP] yesterday", datetime(2026, 11, 20, 23, 59, tzinfo=UTC)),
        ("[rank 1] 12:00:00 [STEP] x", NOW - timedelta(minutes=30)),
        ("2026-11-21T12:00:00.123456789Z 11:11:11 x", datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-11-21T13:00:00+01:00 x", NOW - timedelta(minutes=30)),
        ("no time here", None),
        ("ratio 1:2:3 and 99:99:99 x", None),
    ],
)
def test_time_of_a_line(line: str, expected: datetime | None) -> None:
    assert time_of(line, NOW) == expected
    assert last_spoken(f"{line}\nTraceback\n", NOW) == expected


def test_last_error() -> None:
    found = last_error("error: a: b\n  hint: c\n12:00:00 error: d: e\n  hint: f\nmore\n")
    assert found is not None
    assert (found.text, found.hint) == ("d: e", "f")
    trace = last_error("Traceback (most recent call last):\n  x\n[rank1]: torch.OutOfMemoryError: CUDA out of memory\n")
    assert trace is not None
    assert trace.text == "torch.OutOfMemoryError: CUDA out of memory"
    assert last_error("all is well\n") is None


def test_the_node_command_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its real sentences and messages, not copies of them."""
    said: list[str] = []
    wait = client.Wait(1800, said.append)
    monkeypatch.setattr(client.time, "monotonic", lambda: wait._since + 41)
    wait.speak(f"{command._listed([1, 3])} of 4")
    assert awaited_nodes(f"[NODE] {said[0]}\n") == (1, 3)
    assert awaited_nodes(f"[NODE] {said[0]}\n[NODE] start 1: node 0 of 4, ranks 0 to 7 of 32\n") == ()
    error = DataError("no rows", where="train.jsonl", hint="add some")
    run_dir = RunDir(tmp_path / "run")
    words = parse_last_words(json.dumps(termination.message(3, run_dir, error, str)))
    assert words is not None
    assert (words.outcome, words.exit_code, words.what, words.where) == ("failed", 65, "no rows", "train.jsonl")
    assert (words.run_dir, words.goodput) == (str(run_dir.root), "")
    run_dir.root.mkdir()
    line = StartLine(run_dir.starts, Start(begun=0, updated=0))
    line.write({"step": 75, "model": 25})
    line.close()
    words = parse_last_words(json.dumps(termination.message(3, run_dir, error, str)))
    assert words is not None and words.goodput == "75.0 % of 1:40 in new steps; start-up 0:25"


def test_scores_that_cannot_be_read_are_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path)

    def said() -> LastWords:
        words = parse_last_words(json.dumps(termination.message(0, run_dir, None, str)))
        assert words is not None
        return words

    assert (said().scores, said().scores_unread) == ({}, "")
    run_dir.report.write_text('{"eval_loss": 1.25, "steps": 30}')
    assert (said().scores, said().scores_unread) == ({"eval_loss": 1.25}, "")
    stale(monkeypatch, run_dir.report)
    assert (said().scores, said().scores_unread) == ({}, "Stale file handle")


class TestPhases:
    def test_suspended_with_pods_is_stopping(self) -> None:
        assert run_status(_with(named("healthy_running").evidence, {"suspend": True})).phase == "Stopping"

    def test_pods_that_all_leave_are_stopping(self) -> None:
        evidence = named("healthy_running").evidence
        pods = copy.deepcopy(evidence.pods)
        for pod in pods:
            pod["metadata"]["deletionTimestamp"] = "2026-11-21T12:31:00Z"
        assert run_status(replace(evidence, pods=pods)).phase == "Stopping"

    def test_statefulset_at_zero_without_outcome_is_stopped(self) -> None:
        evidence = _with(named("healthy_parked").evidence, {})
        del evidence.objects[0]["metadata"]["annotations"]["rankzero.dev/outcome"]
        status = run_status(evidence)
        assert (status.phase, status.exit_code) == ("Stopped", 75)
        assert status.is_over

    def test_failed_outcome_of_a_statefulset(self) -> None:
        evidence = _with(named("healthy_parked").evidence, {})
        note = '{"rankzero": 1, "outcome": "failed", "exit_code": 65, "what": "no rows", "where": "train.jsonl"}'
        evidence.objects[0]["metadata"]["annotations"]["rankzero.dev/outcome"] = note
        status = run_status(evidence)
        assert (status.phase, status.exit_code, status.findings[0].code) == ("Failed", 65, "bad-data")
        assert "train.jsonl: no rows" in status.verdict

    def test_deactivated_workload_is_stopped(self) -> None:
        evidence = named("quota_waiting").evidence
        workload = copy.deepcopy(evidence.workloads[0])
        workload["spec"]["active"] = False
        assert run_status(replace(evidence, workloads=(workload,))).phase == "Stopped"

    def test_running_without_logs(self) -> None:
        """As in a list: it is not asked for logs."""
        assert run_status(replace(named("healthy_running").evidence, logs={})).phase == "Running"

    def test_starting_until_the_first_step(self) -> None:
        evidence = named("healthy_running").evidence
        logs = {name: "12:11:00 [STEP] find the model: Qwen/Qwen3-8B\n" for name in evidence.logs}
        assert run_status(replace(evidence, logs=logs)).phase == "Starting"

    def test_docker_ends_with_its_pods(self) -> None:
        done, failed = named("healthy_succeeded").evidence, named("bad_data").evidence
        assert run_status(replace(_kinds(done, "docker"), objects=())).phase == "Succeeded"
        alone = replace(_kinds(failed, "docker"), objects=())
        for pod in alone.pods:
            pod["metadata"]["annotations"]["rankzero.dev/num-nodes"] = "1"
        assert (run_status(alone).phase, run_status(alone).exit_code) == ("Failed", 65)

    def test_elastic_runs_with_fewer(self) -> None:
        evidence = named("healthy_running").evidence
        elastic = _with(evidence, {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}})
        elastic = replace(elastic, objects=({**elastic.objects[0], "kind": "PyTorchJob"}, *elastic.objects[1:]))
        assert run_status(replace(elastic, pods=elastic.pods[:1])).phase == "Running"
        assert run_status(replace(evidence, pods=evidence.pods[:1])).phase == "Starting"


class TestGone:
    """Neither what trains nor a pod of it is left: cancelled where that removes it, or cleaned up after its end."""

    def left(self, *more: dict[str, Any], kind: str = "job") -> Evidence:
        evidence = named("healthy_running").evidence
        metadata = copy.deepcopy(evidence.objects[0]["metadata"])
        metadata["labels"]["rankzero.dev/kind"] = kind
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return replace(evidence, objects=(config, *more), pods=(), logs={}, events=())

    def prepared(self, ended: str) -> dict[str, Any]:
        own = {"rankzero.dev/role": "prepare", "rankzero.dev/kind": "job"}
        condition = {"type": "Complete", "status": "True", "lastTransitionTime": ended}
        metadata = {"name": "alpaca-qwen3-8b-prepare", "labels": own}
        status = {"conditions": [condition]}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}, "status": status}

    @pytest.mark.parametrize("ended", [None, "2026-11-21T12:00:00Z"])
    def test_how_it_ended_is_not_known(self, ended: str | None) -> None:
        status = run_status(self.left(*([self.prepared(ended)] if ended else [])))
        assert (status.phase, status.exit_code, status.is_over, status.kind) == ("Gone", None, True, "job")
        assert "was cancelled, or was removed after its end" in status.verdict
        assert "/outputs/runs/alpaca-qwen3-8b" in status.verdict
        assert status.to_json()["phase"] == "Gone" and "Gone" in as_text(status, 80)

    def test_in_a_list_it_is_the_same(self) -> None:
        """Which asks for no ConfigMap: what prepared it is all that is seen."""
        alone = self.left(self.prepared("2026-11-21T12:00:00Z"))
        (row,) = summarise([replace(alone, objects=alone.objects[1:])])
        assert row.phase == "Gone"

    def test_what_is_prepared_just_now_is_about_to_be_applied(self) -> None:
        status = run_status(self.left(self.prepared("2026-11-21T12:29:30Z")))
        assert (status.phase, status.is_over) == ("Pending", False)

    def test_what_is_being_prepared_is_not_gone(self) -> None:
        assert run_status(named("healthy_preparing").evidence).phase == "Preparing"

    def test_nothing_at_all_is_unknown(self) -> None:
        status = run_status(replace(self.left(), objects=()))
        assert (status.phase, status.is_over) == ("Unknown", False)

    def test_a_job_of_slurm_has_no_object_there(self) -> None:
        assert run_status(self.left(kind="slurm")).phase == "Stopped"


@pytest.mark.parametrize(("told", "named_by_pods"), [("/outputs/runs/r-6097e6", True), (".", False), ("", False)])
def test_the_results_are_where_the_pods_say(told: str, named_by_pods: bool) -> None:
    """With `resume: new` that may be a directory beside the one that run.yaml names. A pod that could not read its spec
    knows none."""
    evidence = named("healthy_succeeded").evidence
    pods = copy.deepcopy(evidence.pods)
    for pod in pods:
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        ended["message"] = json.dumps({"rankzero": 1, "outcome": "done", "exit_code": 0, "run_dir": told})
    status = run_status(replace(evidence, pods=pods))
    place = told if named_by_pods else "/outputs/runs/alpaca-qwen3-8b"
    assert status.run_dir == place and status.verdict.endswith(f"in {place}")


def test_newest_pod_counts_and_older_ones_are_restarts() -> None:
    status = run_status(named("healthy_after_restart").evidence)
    assert [(node.node, node.state, node.restarts, node.host) for node in status.nodes] == [
        (0, "Running", 0, "gpu-a"),
        (1, "Running", 1, "gpu-c"),
    ]


def test_a_restarted_container_is_no_trouble_while_it_runs() -> None:
    evidence = named("healthy_running").evidence
    pods = copy.deepcopy(evidence.pods)
    state = pods[1]["status"]["containerStatuses"][0]
    state |= {"restartCount": 2, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    status = run_status(replace(evidence, pods=pods))
    assert (status.phase, status.restarts) == ("Running", 2)
    assert [(finding.code, finding.severity) for finding in status.findings] == [("oom-limit", "info")]


@pytest.mark.parametrize(("code", "expected"), [(203, 75), (202, 74), (198, 70), (137, 137), (65, 65), (193, 193)])
def test_offset_of_a_pytorchjob(code: int, expected: int) -> None:
    pod = copy.deepcopy(named("pytorchjob_storage_full").evidence.pods[0])
    pod["status"]["containerStatuses"][0]["state"]["terminated"] = {"exitCode": code, "reason": "Error"}
    ended = parse_pod(pod).ended
    assert ended is not None
    assert ended.code == expected


def test_missing_nodes_are_listed() -> None:
    evidence = named("healthy_running").evidence
    status = run_status(replace(evidence, pods=evidence.pods[1:]))
    assert [node.state for node in status.nodes] == ["No pod", "Running"]


class TestText:
    @pytest.mark.parametrize("one", prepared(), ids=lambda one: one.name)
    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_width(self, one: Any, width: int) -> None:
        """Only a word that is longer than the line may stick out."""
        for line in as_text(run_status(one.evidence), width).splitlines():
            assert len(line) <= width or len(line.split()[-1]) > width - 24, line

    def test_order(self) -> None:
        text = as_text(run_status(named("oom_limit").evidence), 80)
        places = [text.index(word) for word in ("Failed", "\nfix", "\nstep", "\nnodes")]
        assert places == sorted(places)
        assert places[0] == 0

    def test_colour_is_only_paint(self) -> None:
        status = run_status(named("oom_limit").evidence)
        painted = as_text(status, 80, colour=True)
        assert "\x1b[1;31mFailed" in painted
        for code in ("31", "32", "33", "36", "2"):
            painted = painted.replace(f"\x1b[1;{code}m", "")
        assert painted.replace("\x1b[0m", "") == as_text(status, 80)

    def test_many_nodes_show_the_unhealthy(self) -> None:
        status = run_status(named("healthy_running").evidence)
        node = status.nodes[0]
        nodes = tuple(replace(node, node=index, pod=f"p-{index}") for index in range(30))
        sick = tuple(replace(one, state="ImagePullBackOff") if one.node in (3, 17) else one for one in nodes)
        text = as_text(replace(status, nodes=sick), 80)
        assert "28 Running, 2 ImagePullBackOff" in text
        assert "p-17" in text
        assert "p-4" not in text

    def test_whole(self) -> None:
        status = run_status(named("image_slow").evidence)
        assert as_text(status, 60) == (
            "Starting  host gpu-b has been pulling image\n"
            "          registry.example/ml/rankzero:1.0 for 12 min (1 pod\n"
            "          waits for it)\n"
            "fix       wait; for the next time choose a smaller image or\n"
            "          a registry near the cluster (image in\n"
            "          cluster.yaml)\n"
            "seen      Pulling image registry.example/ml/rankzero:1.0\n"
            "\n"
            "run       alpaca-qwen3-8b (job), 20 min old\n"
            "results   /outputs/runs/alpaca-qwen3-8b\n"
            "\n"
            "nodes     1 Running, 1 ContainerCreating\n"
            "        0 Running            20 min  alpaca-qwen3-8b-0-xk2pq\n"
            "        1 ContainerCreating  20 min  alpaca-qwen3-8b-1-tz8lm\n"
        )


class TestList:
    def _rows(self) -> Any:
        running, sick = named("healthy_running").evidence, named("bad_data").evidence
        return summarise([replace(sick, run="b"), replace(running, run="a")])

    def test_rows(self) -> None:
        rows = self._rows()
        assert [(row.run, row.phase, row.running, row.num_nodes) for row in rows] == [
            ("a", "Running", 2, 2),
            ("b", "Failed", 0, 2),
        ]
        assert rows[0].to_json()["verdict"].startswith("step 120 of 1,000")

    def test_table(self) -> None:
        table = as_table(self._rows(), 60).splitlines()
        assert table[0].split() == ["RUN", "PHASE", "NODES", "AGE", "VERDICT"]
        assert all(len(line) <= 60 for line in table)
        assert as_table((), 60) == "no runs\n"


def test_json_has_everything() -> None:
    status: RunStatus = run_status(named("oom_limit").evidence)
    value = status.to_json()
    assert value["phase"] == "Failed"
    assert value["findings"][0]["code"] == "oom-limit"
    assert value["nodes"][1]["state"] == "OOMKilled"
    assert value["exit_code"] == 137
