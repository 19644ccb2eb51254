"""`rankzero dev` on Kubernetes: a StatefulSet whose pods idle; files and commands through the API's exec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from rankzero.api.dev import down, jupyter, run_spec, sync, wait_until_warm, warm_plan
from rankzero.errors import ConfigError, ServiceError, UsageError
from rankzero.launch.node.group import end_group
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.render import render
from rankzero.launch.render.container import IDLE_COMMAND
from rankzero.launch.warm.commands import ranks, run_together
from rankzero.launch.warm.gpus import look
from rankzero.launch.warm.pods import WarmPod, must_be_warm, running
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.load import read_run_spec
from tests.support.fake_cluster import plain
from tests.support.jupyter import stand_in
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench

WARM = "/tmp/rankzero-dev"
PLACE = ClusterSpec.model_validate(
    {
        **{"image": "i", "namespace": "train", "num_nodes": 2, "prepare": "never", "kind": "statefulset"},
        **{"storage": STORAGE, "gpu": False},
    }
)


@pytest.fixture
def pods(bench: Bench, tmp_path: Path) -> list[WarmPod]:
    """Two of them; what is executed there runs here, in a directory for each."""
    plan = warm_plan(PLACE)
    for node in (0, 1):
        bench.cluster.script("node", node, [("run",)])
    bench.submit(render(plan))
    bench.cluster.world.run_down()

    def feed(pod: str, command: list[str], sent: bytes) -> tuple[int, bytes, bytes]:
        words = [word.replace(WARM, str(tmp_path / pod)) for word in command[1:]]
        done = subprocess.run([sys.executable, *words], input=sent, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    bench.cluster.feed = feed
    return wait_until_warm(bench.backend(), plan.name, print)


def test_pods_of_a_stateful_set_idle_and_find_node_zero(bench: Bench, pods: list[WarmPod]) -> None:
    (stateful,) = bench.cluster.store.of("statefulsets")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert container["command"] == IDLE_COMMAND
    assert [(pod.name, pod.master) for pod in pods] == [("dev-0", "dev-0.dev"), ("dev-1", "dev-0.dev")]
    assert ranks(pods[1], pods)["PET_NODE_RANK"] == "1" and ranks(pods[1], pods)["MASTER_ADDR"] == "dev-0.dev"
    several = [replace(pod, nproc=8) for pod in pods]
    assert "RANK" not in ranks(several[0], several), "the launcher says it to its processes"


def test_pods_that_another_version_made_are_warm_too(bench: Bench, pods: list[WarmPod]) -> None:
    """Which may have started the same with other options of Python's."""
    (stateful,) = bench.cluster.store.of("statefulsets")
    for spec in (stateful["spec"]["template"]["spec"], *(pod["spec"] for pod in bench.cluster.store.of("pods"))):
        (container,) = spec["containers"]
        container["command"] = [word for word in container["command"] if word != "-P"]
    assert running(bench.backend().collect("dev")) == pods


def test_files_and_commands_go_through_the_api(bench: Bench, pods: list[WarmPod], tmp_path: Path) -> None:
    backend, project = bench.backend(), tmp_path / "project"
    project.mkdir()
    (project / "small.py").write_text("import os, sys; print('ran', flush=True); sys.exit(4)\n", encoding="utf-8")
    (project / "large.bin").write_bytes(bytes(range(256)) * 1000)
    done = sync(backend, pods, project, bench.said.append)
    assert [one.put for one in done.values()] == [2, 2]
    assert (tmp_path / "dev-1/work/large.bin").read_bytes() == bytes(range(256)) * 1000
    assert sync(backend, pods, project, bench.said.append)["dev-0"].put == 0
    heard: list[tuple[str, str]] = []
    env = {pod.name: ranks(pod, pods) for pod in pods}
    command = [sys.executable, "small.py"]
    code = run_together(backend, pods, command, env, 5.0, lambda pod, text: heard.append((pod.name, text)), print)
    assert code == 4 and sorted(heard) == [("dev-0", "ran"), ("dev-1", "ran")]
    assert bench.cluster.faults_of_its_own == []


def test_a_pod_has_containers_of_the_site_s_beside_ours(bench: Bench, pods: list[WarmPod]) -> None:
    """Whatever puts them there, and before ours."""
    for pod in bench.cluster.store.of("pods"):
        pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "p"})
    heard: list[bytes] = []
    assert bench.backend().execute("dev-0", ["python", "-c", "print(1)"], heard.append).code == 0
    assert b"".join(heard) == b"1\n"
    assert [pod.container for pod in running(bench.backend().collect("dev"))] == ["node", "node"]


def test_a_run_takes_as_many_nodes_and_processes_as_there_are(
    bench: Bench, pods: list[WarmPod], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dev up cluster.nproc_per_node=8` made them, and cluster.yaml does not know of it."""
    (tmp_path / "run.yaml").write_text("model: {name: org/m}\ndata: {train: org/rows}\noutput_dir: runs\n")
    reading = read_run_spec(tmp_path / "run.yaml", [], env={}, for_pods=True)
    there = [replace(pod, nproc=8) for pod in pods]
    monkeypatch.setattr("rankzero.launch.warm.commands.run_together", lambda *_: 0)
    written = PLACE.model_copy(update={"num_nodes": 1, "nproc_per_node": 1})
    assert run_spec(bench.backend(), there, reading, written, lambda *_: None, print) == 0
    for pod in ("dev-0", "dev-1"):
        (file,) = (tmp_path / pod).rglob("node.json")
        settings = NodeSettings.from_json(file.read_text())
        assert (settings.num_nodes, settings.nproc_per_node) == (2, 8)


@pytest.fixture
def pod_with_jupyter(tmp_path: Path, pods: list[WarmPod], monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmPod]:
    """The first; its server is ended."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stand_in(tmp_path / "site")), *filter(None, sys.path)]))
    yield pods[0]
    end_group(tmp_path / pods[0].name / "jupyter")


def test_jupyter_s_token_is_in_a_secret_that_goes_with_the_pods(bench: Bench, pod_with_jupyter: WarmPod) -> None:
    backend = bench.backend()

    def kept() -> str:
        return plain(bench.cluster.get("secrets", "dev-submission"))["jupyter"]

    first = jupyter(backend, pod_with_jupyter, PLACE, "dev")
    assert first.started and kept() == first.token
    assert httpx2.get(first.url(first.port)).status_code == 200
    again = jupyter(backend, pod_with_jupyter, PLACE, "dev")
    assert not again.started and (again.token, again.port) == (first.token, first.port)

    bench.cluster.store.drop("secrets", "dev-submission")
    assert jupyter(backend, pod_with_jupyter, PLACE, "dev").token == kept() == first.token
    assert set(plain(bench.cluster.get("secrets", "dev-submission"))) == {"jupyter"}
    assert first.token not in f"{first}{bench.said}"
    assert not [one for one in bench.cluster.requests if first.token in one.path]
    down(backend, "dev", bench.said.append)
    assert bench.cluster.names("secrets") == []


def test_jupyter_s_token_goes_into_no_secret_of_somebody_else(bench: Bench, pod_with_jupyter: WarmPod) -> None:
    name = {"metadata": {"name": "dev-submission"}}
    theirs = bench.cluster.store.put({"apiVersion": "v1", "kind": "Secret", **name, "data": {"token": "bXkgb3du"}})
    with pytest.raises(ConfigError, match="it exists already and belongs to somebody else"):
        jupyter(bench.backend(), pod_with_jupyter, PLACE, "dev")
    assert bench.cluster.get("secrets", "dev-submission") == theirs


def test_an_image_without_jupyter_is_told_with_the_fix(bench: Bench, pods: list[WarmPod]) -> None:
    bench.cluster.feed = lambda _pod, _command, _sent: (0, b'{"absent": true}', b"")
    with pytest.raises(ConfigError, match="the image has no Jupyter") as caught:
        jupyter(bench.backend(), pods[0], PLACE, "dev")
    assert "make image EXTRAS=train,quantization,vision,serve,jupyter" in caught.value.problems[0].hint


def test_a_pod_of_the_first_version_says_nothing_of_what_it_replaced(bench: Bench, pods: list[WarmPod]) -> None:
    def first(_pod: str, command: list[str], _sent: bytes) -> tuple[int, bytes, bytes]:
        return 0, b"{}" if command[-1] == "list" else b'{"put": 2, "removed": 0}', b""

    bench.cluster.feed = first
    done = sync(bench.backend(), pods, Path(__file__).parent, print)
    assert (done["dev-0"].put, done["dev-0"].replaced) == (2, ())


def test_what_a_pod_cannot_do_is_said(bench: Bench, pods: list[WarmPod]) -> None:
    backend = bench.backend()
    bench.cluster.feed = lambda _pod, _command, _sent: (1, b"", b"No module named 'rankzero'")
    with pytest.raises(ServiceError, match="No module named") as caught:
        sync(backend, pods, Path(__file__).parent, print)
    assert "its image has no rankzero" in caught.value.problems[0].hint
    assert look(backend, "dev-0").trouble.startswith("nvidia-smi: No module")


def test_why_a_pod_took_no_more_of_the_files_is_said(bench: Bench, pods: list[WarmPod], tmp_path: Path) -> None:
    """Whose disk is full: the command has ended before all was sent."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "big.bin").write_bytes(bytes(30_000_000))

    def full(_pod: str, command: list[str], _sent: bytes) -> tuple[int, bytes, bytes]:
        return (0, b"{}", b"") if command[-1] == "list" else (1, b"", b"OSError: [Errno 28] No space left on device\n")

    bench.cluster.feed, bench.cluster.takes = full, 1000
    with pytest.raises(ServiceError, match="No space left on device") as caught:
        sync(bench.backend(), pods, project, print)
    assert "rankzero dev shell" in caught.value.problems[0].hint


def test_another_run_is_no_warm_pods(bench: Bench) -> None:
    with pytest.raises(UsageError, match="there are no warm pods"):
        must_be_warm(bench.backend().collect("dev"))
