"""A volume read through a pod that is there meanwhile: its life, its commands, what goes wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.errors import AccessError, ConfigError, ServiceError
from rankzero.launch.labels import Manifest
from rankzero.launch.render.reader import reader_pod
from rankzero.persist import pulling
from rankzero.persist.pulling import pull
from rankzero.persist.sources import CommandSource
from rankzero.run_dir.atomic import commit_directory, verify_directory
from rankzero.run_dir.paths import RunDir
from rankzero.spec.cluster_spec import ClusterSpec
from tests.support.volume import run_python
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench

NAME = "rankzero-pull-1"
RUNS = {"phase": "Running", "containerStatuses": [{"name": "read", "state": {"running": {}}, "restartCount": 0}]}
RUNS["containerStatuses"][0]["state"]["running"]["startedAt"] = "2026-11-21T08:00:00Z"  # type: ignore[index]


@pytest.fixture(autouse=True)
def claim(bench: Bench) -> None:
    """Of the volume that is read."""
    bench.cluster.store.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "outputs"}})


def pod(**changes: object) -> Manifest:
    place = {"image": "i", "namespace": "train", "num_nodes": 2, "storage": STORAGE, **changes}
    return reader_pod(ClusterSpec.model_validate(place), NAME)


def starts(bench: Bench, *states: Manifest) -> None:
    """The pod is in one state after the other, each time that somebody waits for it."""
    left = list(states)
    sleep = bench.ticks.sleep

    def slept(seconds: float) -> None:
        sleep(seconds)
        if left and (there := bench.cluster.store.find("pods", NAME)) is not None:
            bench.cluster.store.put({**there, "status": left.pop(0)}, "train")

    bench.ticks.sleep = slept  # type: ignore[method-assign]


def pending(reason: str, message: str) -> Manifest:
    waiting = {"reason": reason, "message": message}
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "read", "state": {"waiting": waiting}, "restartCount": 0}],
    }


def mounted(volume: Path, bench: Bench) -> None:
    """Commands find the volume where the pod has it."""

    def run(command: list[str]) -> tuple[int, bytes, bytes]:
        try:
            return 0, run_python([word.replace("/outputs", str(volume)) for word in command]).encode(), b""
        except ServiceError as error:
            return 1, b"", f"Traceback\n{error}".encode()

    bench.cluster.run = run


def test_a_run_is_pulled_and_the_pod_is_gone(bench: Bench, tmp_path: Path) -> None:
    there = RunDir(tmp_path / "volume" / "runs" / "r")
    there.checkpoints.mkdir(parents=True)
    there.spec.write_text("name: r\n")
    (there.root / "staged").mkdir()
    (there.root / "staged" / "weights").write_bytes(bytes(range(256)) * 2000)
    commit_directory(there.root / "staged", there.final, {})
    mounted(tmp_path / "volume", bench)
    starts(bench, pending("ContainerCreating", ""), RUNS)
    with bench.backend().reading(pod(), print) as execute:
        assert bench.cluster.names("pods") == [f"pods/{NAME}"]
        source = CommandSource.find(execute, "/outputs", "r", "outputs")
        assert pull(source, tmp_path / "here", print).result
    verify_directory(tmp_path / "here" / "final")
    assert bench.cluster.names("pods") == []


def test_a_connection_that_breaks_is_tried_again(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PAUSE_SECONDS", 0.0)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.yaml").write_text("name: r\n")
    mounted(tmp_path, bench)
    starts(bench, RUNS)
    with bench.backend().reading(pod(), print) as execute:
        source = CommandSource.find(execute, "/outputs", "r", "outputs")
        fault = bench.cluster.fail("GET", "/exec", drop="cut", times=2)
        pull(source, tmp_path / "here", print)
    assert fault.times == 0 and (tmp_path / "here" / "run.yaml").is_file()


OVER = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active on the node longer than allowed"}


def runs_at_once(bench: Bench) -> None:
    """Every pod, as soon as somebody waits for it."""
    sleep = bench.ticks.sleep

    def slept(seconds: float) -> None:
        sleep(seconds)
        for there in bench.cluster.store.of("pods"):
            if "status" not in there or there["status"].get("phase") == "Pending":
                bench.cluster.store.put({**there, "status": RUNS}, "train")

    bench.ticks.sleep = slept  # type: ignore[method-assign]


def ends(bench: Bench, how: str) -> None:
    """All pods that there are."""
    for name in [str(one["metadata"]["name"]) for one in bench.cluster.store.of("pods")]:
        there = bench.cluster.store.find("pods", name)
        assert there is not None
        if how == "removed":
            bench.cluster.store.drop("pods", name, "train")
        else:
            bench.cluster.store.put({**there, "status": OVER}, "train")


@pytest.mark.parametrize("how", ["over", "removed"])
@pytest.mark.parametrize("when", ["between", "within"])
def test_a_pod_that_ends_before_its_run_is_here_is_followed_by_another_one(
    how: str, when: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its deadline, or evicted: what takes longer is pulled all the same, each byte once."""
    monkeypatch.setattr(pulling, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(pulling, "CHUNK", 1 << 16)
    there = RunDir(tmp_path / "volume" / "runs" / "r")
    there.checkpoints.mkdir(parents=True)
    there.spec.write_text("name: r\n")
    (there.root / "staged").mkdir()
    (there.root / "staged" / "weights").write_bytes(bytes(range(256)) * 2000)
    commit_directory(there.root / "staged", there.final, {})
    mounted(tmp_path / "volume", bench)
    inner, calls = bench.cluster.run, list[int]()

    def run(command: list[str]) -> tuple[int, bytes, bytes]:
        calls.append(1)
        answer = inner(command)
        if len(calls) in (4, 9):
            ends(bench, how)
            return answer if when == "between" else (137, b"", b"")
        return answer

    bench.cluster.run = run
    runs_at_once(bench)
    said: list[str] = []
    with bench.backend().reading(pod(), said.append) as execute:
        source = CommandSource.find(execute, "/outputs", "r", "outputs")
        assert pull(source, tmp_path / "here", said.append).result
        assert bench.cluster.names("pods") == [f"pods/{NAME}-3"]
    verify_directory(tmp_path / "here" / "final")
    assert bench.cluster.names("pods") == []
    why = "ended: DeadlineExceeded" if how == "over" else "was removed by somebody"
    assert [line for line in said if "another one reads on" in line and why in line], said


def test_pods_that_end_one_after_the_other_are_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PAUSE_SECONDS", 0.0)

    def run(_command: list[str]) -> tuple[int, bytes, bytes]:
        ends(bench, "over")
        return 137, b"", b""

    bench.cluster.run = run
    runs_at_once(bench)
    with bench.backend().reading(pod(), print) as execute, pytest.raises(ServiceError) as raised:
        pulling.tried(lambda: execute(["true"]), print)
    (problem,) = raised.value.problems
    assert "ended: DeadlineExceeded" in problem.what and "the same command goes on" in problem.hint
    assert bench.cluster.names("pods") == []


def test_a_command_that_fails_is_told_with_its_last_line(bench: Bench, tmp_path: Path) -> None:
    mounted(tmp_path, bench)
    starts(bench, RUNS)
    with bench.backend().reading(pod(), print) as execute, pytest.raises(ServiceError, match="FileNotFoundError"):
        execute(["python", "-P", "-c", "open('/outputs/none')"])
    assert bench.cluster.names("pods") == []


def test_a_pod_that_cannot_start_is_removed_and_told_why(bench: Bench) -> None:
    starts(bench, pending("ErrImagePull", "not found: i"))
    with (
        pytest.raises(ServiceError, match="cannot start: ErrImagePull") as raised,
        bench.backend().reading(pod(), print),
    ):
        pytest.fail("it never ran")
    assert "not found: i" in str(raised.value)
    assert bench.cluster.names("pods") == []


def test_a_volume_that_is_not_there_is_told_at_once(bench: Bench) -> None:
    """The scheduler would only wait for it."""
    bench.cluster.store.drop("persistentvolumeclaims", "outputs")
    with (
        pytest.raises(ConfigError, match="no such claim in namespace train") as raised,
        bench.backend().reading(pod(), print),
    ):
        pytest.fail("it never ran")
    (problem,) = raised.value.problems
    assert problem.where == "PersistentVolumeClaim/outputs" and "storage.outputs.claim" in problem.hint
    assert bench.cluster.changes() == []


def test_who_may_not_look_for_the_volume_reads_it_all_the_same(bench: Bench) -> None:
    bench.cluster.forbidden.add(("get", "persistentvolumeclaims"))
    starts(bench, RUNS)
    with bench.backend().reading(pod(), print):
        assert bench.cluster.names("pods") == [f"pods/{NAME}"]


def test_a_pod_that_has_no_place_is_given_up(bench: Bench) -> None:
    said: list[str] = []
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes available"}
    starts(bench, {"phase": "Pending", "conditions": [full]})
    with pytest.raises(ServiceError, match="did not start in 300 s"), bench.backend().reading(pod(), said.append):
        pytest.fail("it never ran")
    assert [line for line in said if "0/1 nodes available" in line] == said[1:2], "once"


def test_rights_that_are_missing(bench: Bench) -> None:
    bench.cluster.forbidden.add(("create", "pods"))
    with pytest.raises(AccessError), bench.backend().reading(pod(), print):
        pytest.fail("it never ran")


def test_the_pod_reads_asks_for_no_gpu_and_ends_by_itself() -> None:
    made = pod(gpu=True, node_selector={"disk": "fast"}, image_pull_secrets=["registry"])
    (only,) = made["spec"]["containers"]
    assert only["volumeMounts"] == [{"name": "outputs", "mountPath": "/outputs", "readOnly": True}]
    assert "nvidia.com/gpu" not in json.dumps(only["resources"])
    assert made["spec"]["activeDeadlineSeconds"] == 3600 and made["spec"]["nodeSelector"] == {"disk": "fast"}
    assert made["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "rankzero.dev/run" not in made["metadata"]["labels"], "no run's: status and delete leave it alone"
