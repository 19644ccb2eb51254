"""Looking at runs in TensorBoard: one of this machine, and one of a cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from rankzero.launch.backends.kubernetes.serve import serve
from rankzero.launch.render.tensorboard import tensorboard
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.track.tensorboard import TensorBoard
from tests.support.ports import free_port
from tests.unit.cli.conftest import Place
from tests.unit.launch.backends.kubernetes.conftest import bench as bench
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench

CLUSTER = ClusterSpec.model_validate({"image": "i", "namespace": "train", "storage": STORAGE})


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that notes what it is told, and ends."""
    told = tmp_path / "told"
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n[ -z "$FAILS" ] || exit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return told


def test_a_run_of_a_cluster(place: Place, kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place("submit run.yaml --detach").code == 0
    done = place("open tensorboard r --port 7007")
    assert done.code == 0, done.err
    assert kubectl.read_text().split() == [
        *("-n", "train", "port-forward", "deployment/tensorboard-outputs", "7007:6006", "--address", "127.0.0.1")
    ]
    assert "http://127.0.0.1:7007/?runFilter=r#timeseries" in done.err
    assert "kubectl delete deployment,service tensorboard-outputs -n train" in done.err
    assert place.cluster.get("services", "tensorboard-outputs")["spec"]["ports"][0]["port"] == 6006
    before = place.cluster.get("deployments", "tensorboard-outputs")["spec"]
    monkeypatch.setenv("FAILS", "1")
    again = place("open tensorboard r")
    assert again.code == 69 and "kubectl port-forward ended with 7" in again.err
    assert place.cluster.get("deployments", "tensorboard-outputs")["spec"] == before
    assert place("delete r --yes").code == 0
    assert "deployments/tensorboard-outputs" in place.cluster.names()


def test_all_that_it_leaves_is_named(place: Place, kubectl: Path) -> None:
    """A policy without its Deployment keeps the next one from being reached."""
    assert place("submit run.yaml --detach").code == 0
    text = (place.directory / "cluster.yaml").read_text()
    (place.directory / "cluster.yaml").write_text(f"{text}\nnetwork_policy: true\ncontext: fake\n")
    done = place("open tensorboard r")
    assert done.code == 0, done.err
    assert (
        "`kubectl --context fake delete deployment,service,networkpolicy tensorboard-outputs -n train` removes it"
        in " ".join(done.err.split())
    )


def test_what_is_not_there(place: Place, kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = place("open tensorboard q")
    assert done.code == 2 and "there is no such run" in done.err
    assert not kubectl.exists() and place.cluster.changes() == []
    monkeypatch.setenv("PATH", str(place.directory / "none"))
    done = place("open tensorboard r")
    assert done.code == 78 and "kubectl is not installed" in done.err
    shown = place("open tensorboard r --print")
    assert shown.code == 0 and "kind: Deployment" in shown.out and place.cluster.changes() == []


def test_a_deployment_of_somebody_else_is_left_alone(bench: Bench) -> None:
    from rankzero.errors import ConfigError

    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tensorboard-outputs"}, "spec": {}}
    bench.cluster.store.put(theirs)
    with pytest.raises(ConfigError, match="exists already and is not rankzero's"):
        serve(bench.api(), tensorboard(CLUSTER), bench.said.append)
    assert bench.cluster.changes() == []


def test_a_pod_that_never_gets_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.errors import ServiceError

    bench.cluster.world.deploys = False
    bench.cluster.ends_idle_watches = True
    objects = tensorboard(CLUSTER)
    labels = objects[-1]["spec"]["template"]["metadata"]["labels"]
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    bench.cluster.store.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "tensorboard-outputs-x", "labels": labels},
            "spec": {"containers": [{"name": "tensorboard"}]},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "tensorboard", "state": waiting}]},
        }
    )
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.serve.READY_SECONDS", 3.0)
    with pytest.raises(ServiceError, match=r"no pod of it was ready after 3 s(.|\n)*ImagePullBackOff"):
        serve(bench.api(), objects, bench.said.append)


def with_events(root: Path) -> None:
    writer = TensorBoard(root / "events", 0)
    writer.log(1, {"loss": 1.0})
    writer.close()
    (root / "run.yaml").write_text("name: small\nmodel: {name: m}\ndata: {train: t}\n")


def test_a_port_that_is_taken_is_told_with_the_way_out(tmp_path: Path, place: Place) -> None:
    with_events(place.directory / "runs/small")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = place(f"open tensorboard runs/small --port {taken.getsockname()[1]}")
    assert done.code == 69 and "TensorBoard ended" in done.err and "another --port" in done.err


def nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_run_of_this_machine(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """TensorBoard itself, until Ctrl-C, which all processes of a terminal hear, or SIGTERM, which one hears."""
    root = tmp_path / "runs" / "small"
    with_events(root)
    port = free_port()
    command = [sys.executable, "-m", "rankzero", "open", "tensorboard", "small", "--port", str(port)]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until and process.poll() is None:
            try:
                found = httpx2.get(f"http://127.0.0.1:{port}/data/runs")
                break
            except httpx2.HTTPError:
                time.sleep(0.1)
        assert found.is_success and found.json() == ["."]
        (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
        assert process.wait(300) == code, (tmp_path / "said").read_text()
        assert nobody_listens(port)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_run_without_events_is_told(tmp_path: Path, place: Place) -> None:
    (tmp_path / "runs/none/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/none/run.yaml").write_text("name: none\n")
    done = place("open tensorboard runs/none")
    assert done.code == 78 and "this run has no TensorBoard events" in done.err
