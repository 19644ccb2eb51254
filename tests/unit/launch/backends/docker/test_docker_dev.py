"""`rankzero dev` over docker: pods that idle, files that follow, commands on all nodes. What is executed runs here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from rankzero.api.clusters import submitter
from rankzero.launch.backend import Backend
from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.node.code import Code, this_code
from rankzero.launch.warm.pods import running
from tests.support.cli import Cli
from tests.unit.launch.backends.docker.fake_docker import Daemon

CLUSTER = """
image: rankzero:test
kind: docker
gpu: false
num_nodes: 2
prepare: never
storage: {outputs: {mount: /outputs, claim: results, size: 1Gi}}
"""
PODS = ["dev-0", "dev-1"]


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    (place / ".gitignore").write_text("*.ckpt\nruns/\n", encoding="utf-8")
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    return place


@pytest.fixture
def cli(project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capfd, monkeypatch)


def work(daemon_place: Path, pod: str) -> Path:
    """Where a pod's files are."""
    return daemon_place.parent / "pods" / f"rankzero-{pod}" / "work"


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_pods_idle_until_they_are_removed(cli: Cli, daemon: Daemon) -> None:
    done = cli("dev up")
    assert (done.code, done.out.split()) == (0, PODS), done.err
    for pod in PODS:
        rest = daemon.container(f"rankzero-{pod}")["fake"]["rest"]
        assert rest == ["rankzero:test", "-P", "-m", "rankzero.launch.node.idle"]
    assert "left as it is" in cli("dev up").err
    assert [pod.master for pod in running(DockerBackend().collect("dev"))] == ["dev-0", "dev-0"]
    removed = cli("dev down")
    assert removed.code == 0 and "removed container rankzero-dev-0" in removed.out
    assert daemon.names() == set()
    assert set(daemon.state["volumes"]) == {"rankzero-results", "rankzero-results.used-by.dev"}, "the claim stays"
    assert cli("dev down").code == 2


def test_pods_of_somebody_else_are_said_to_be(cli: Cli, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.api.clusters.submitter", lambda: "ann@there")
    assert "warning" not in cli("dev up").err + cli("dev sync").err
    monkeypatch.setattr("rankzero.api.clusters.submitter", lambda: "bob@here")
    for command in ("dev up", "dev sync", f"dev run -- {sys.executable} -c pass"):
        done = cli(command)
        assert done.code == 0 and "warning: ann@there made these pods" in done.err and "--name NAME" in done.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", Mock(side_effect=typer.Abort))
    assert cli("dev down").code == 130 and daemon.names() == {"rankzero-dev-0", "rankzero-dev-1"}
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    done = cli("dev down")
    assert done.code == 0 and "warning: ann@there made these pods" in done.err and daemon.names() == set()


def test_pods_of_another_cluster_yaml_are_told_with_what_dev_has_for_it(cli: Cli, project: Path) -> None:
    cli("dev up")
    (project / "cluster.yaml").write_text(CLUSTER.replace("num_nodes: 2", "num_nodes: 1"), encoding="utf-8")
    done = cli("dev up")
    assert done.code == 78 and "is under way with another spec" in done.err
    assert "`rankzero dev down`" in done.err and "--name NAME" in done.err and "--replace" not in done.err
    assert cli("dev down").code == 0
    again = cli("dev up")
    assert (again.code, again.out) == (0, "dev-0\n")


def test_a_run_that_trains_is_not_taken_for_warm_pods(cli: Cli, project: Path, daemon: Daemon) -> None:
    spec = "name: tiny\nmodel: {name: o/m}\ndata: {train: /outputs/t.jsonl}\n"
    (project / "run.yaml").write_text(spec, encoding="utf-8")
    assert cli("submit run.yaml --detach").code == 0
    for command in ("dev down --name tiny", "dev sync --name tiny", "dev run --name tiny -- true"):
        done = cli(command)
        assert done.code == 2 and "this is a run that trains" in done.err
    assert daemon.names() == {"rankzero-tiny-0", "rankzero-tiny-1"}


def test_a_directory_that_is_none_is_said_before_the_pods_are_asked(cli: Cli, daemon: Daemon) -> None:
    cli("dev up")
    before = len(daemon.state["calls"])
    for source, what in (("nope", "no such directory"), ("cluster.yaml", "no directory")):
        for command in (f"dev sync --from {source}", f"dev run --from {source} -- true"):
            done = cli(command)
            assert done.code == 2 and f"--from {source}: " in done.err and what in done.err, done.err
    assert len(daemon.state["calls"]) == before


def test_only_what_changed_is_sent(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("dev up")
    (project / "train.py").write_text("print(1)\n", encoding="utf-8")
    (project / "lib").mkdir()
    (project / "lib/ä b.py").write_text("x = 1\n", encoding="utf-8")
    (project / "big.ckpt").write_bytes(b"0" * 5000)
    (project / "runs").mkdir()
    (project / "runs/log").write_text("no", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], check=True)
    there = work(tmp_path / "docker.json", "dev-1")

    assert cli("dev sync").out.count("4 files put") == 2
    assert files(there) == {"train.py", "lib/ä b.py", "cluster.yaml", ".gitignore"}
    assert cli("dev sync").out == "dev-0: up to date\ndev-1: up to date\n"

    (there / "notes.txt").write_text("made there", encoding="utf-8")
    (there / "train.py").write_text("changed there", encoding="utf-8")
    (project / "lib/ä b.py").unlink()
    (project / "run.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (project / "run.sh").chmod(0o755)
    out = cli("dev sync").out
    assert out.startswith("dev-0: 1 files put") and "dev-1: 2 files put" in out and out.count("1 removed") == 2
    kept = "changed there; what it was is kept as /tmp/rankzero-dev/work.replaced/1/train.py"
    assert out.count(kept) == 1
    assert (there.parent / "work.replaced/1/train.py").read_text() == "changed there"
    assert files(there) == {"train.py", "run.sh", "notes.txt", "cluster.yaml", ".gitignore"}
    assert not (there / "lib").exists() and os.access(there / "run.sh", os.X_OK)
    assert (there / "train.py").read_text() == "print(1)\n"


def test_every_node_has_its_rank_and_the_exit_code_is_the_command_s(cli: Cli, project: Path) -> None:
    cli("dev up")
    names = ("RANK", "WORLD_SIZE", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "MASTER_PORT")
    script = (
        f"import os, sys\nprint(*map(os.environ.get, {names!r}), sys.argv[1])\nsys.exit(3 * int(os.environ['RANK']))\n"
    )
    (project / "train.py").write_text(script, encoding="utf-8")
    done = cli(f"dev run -- {sys.executable} train.py --lr=1")
    assert done.code == 3, done.err
    lines = [f"[dev-{node}] {node} 2 {node} 2 dev-0 29500 --lr=1" for node in (0, 1)]
    assert sorted(done.out.splitlines()) == lines
    assert "dev-0: 3 files put" in done.err
    missing = cli("dev run --no-sync -- no-such-program")
    assert missing.code == 127 and "[dev-1] no-such-program: No such file or directory" in missing.out


LINGERS = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
print("up", flush=True)
time.sleep(600)
"""


def pids(place: Path) -> list[int]:
    return [int(word) for word in (place / "pids").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_next_command_ends_the_one_before_and_all_that_it_started(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("dev up")
    (project / "lingers.py").write_text(LINGERS, encoding="utf-8")
    cli("dev sync")
    command = [sys.executable, "-m", "rankzero", "dev", "run", "--no-sync", "--", sys.executable, "lingers.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert sorted(first.stdout.readline() for _ in PODS) == ["[dev-0] up\n", "[dev-1] up\n"]
        old = [pid for pod in PODS for pid in pids(work(tmp_path / "docker.json", pod))]
        assert len(old) == 4 and not any(map(gone, old))
        done = cli(f"dev run --no-sync -- {sys.executable} -c pass")
        assert done.code == 0, done.err
        assert f"the command of {submitter()} that still ran here is ended first" in done.out
        assert all(map(gone, old)), "also the one in a group of its own"
        assert first.wait(300) == 128 + signal.SIGTERM
        assert f"[dev-0] ended by another `dev run`, of {submitter()}" in first.stdout.read()


def test_ctrl_c_ends_it_there(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("dev up")
    (project / "lingers.py").write_text(LINGERS, encoding="utf-8")
    place = tmp_path / "docker.json"

    def interrupt() -> None:
        deadline = time.monotonic() + 300
        while not all((work(place, pod) / "pids").is_file() for pod in PODS) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    done = cli(f"dev run -- {sys.executable} lingers.py")
    thread.join()
    assert done.code == 130, done.err
    assert all(gone(pid) for pod in PODS for pid in pids(work(place, pod)))


def test_when_one_node_fails_the_others_are_ended(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rankzero.launch.warm.commands.PEER_SECONDS", 0.0)
    cli("dev up")
    script = "import os, sys, time\nsys.exit(9) if os.environ['RANK'] == '1' else time.sleep(600)\n"
    (project / "train.py").write_text(script, encoding="utf-8")
    assert cli(f"dev run -- {sys.executable} train.py").code == 9


def test_a_run_spec_gets_its_files_and_the_node_command(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], list[dict[str, str]]]] = []

    def run_together(_backend: Backend, _pods: object, command: list[str], env: Any, *_more: object) -> int:
        ran.append((command, list(env.values())))
        return 65

    monkeypatch.setattr("rankzero.launch.warm.commands.run_together", run_together)
    cli("dev up")
    (project / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    spec = "name: tiny\nmodel: {name: o/m}\ndata: {train: rows.jsonl}\n"
    (project / "run.yaml").write_text(spec, encoding="utf-8")
    refused = cli("dev run run.yaml cluster.num_nodes=1")
    assert refused.code == 2 and "give it to `rankzero dev up`" in refused.err
    done = cli("dev run run.yaml train.max_steps=3")
    there = tmp_path / "pods/rankzero-dev-1/run"
    assert files(there) == {"run.yaml", "node.json", "files/rows.jsonl"}, done.err
    assert "max_steps: 3" in (there / "run.yaml").read_text()
    assert "/tmp/rankzero-dev/run/files/rows.jsonl" in (there / "run.yaml").read_text()
    settings = json.loads((there / "node.json").read_text())
    assert settings["num_nodes"] == 2 and not settings["park"] and settings["prepared_marker"] is None
    command = ["python", "-P", "-m", "rankzero.launch.node", "/tmp/rankzero-dev/run"]
    assert done.code == 65 and ran == [(command, [{"RANKZERO_NODE": "0"}, {"RANKZERO_NODE": "1"}])]


def test_pods_whose_image_has_other_code_are_named_before_a_run_spec_is_tried(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.launch.warm.commands.run_together", lambda *_: 78)
    spec = "name: tiny\nmodel: {name: o/m}\ndata: {train: /outputs/rows.jsonl}\n"
    (project / "run.yaml").write_text(spec, encoding="utf-8")
    assert "warning" not in cli("dev up").err + cli("dev run run.yaml").err, "the same code"
    there, newer = this_code(), Code("9.9.9", "f" * 64)
    monkeypatch.setattr("rankzero.launch.warm.code.this_code", lambda: newer)
    done = cli("dev run run.yaml")
    assert done.code == 78, "it is tried all the same"
    assert f"warning: pod dev-0, dev-1: its image has {there}, and this is rankzero 9.9.9 (code ffffffff)" in done.err
    assert "make image" in done.err and "unknown keys" in done.err
    assert "warning" in cli("dev up").err
    assert "warning" not in cli("dev run -- true").err, "what is no run spec does not care"
    monkeypatch.setattr(
        "rankzero.launch.warm.code._PROGRAM", ["python", "-P", "-m", "rankzero.launch.node.of_tomorrow"]
    )
    assert "its image has a rankzero that is too old to say which" in cli("dev run run.yaml").err


def test_what_gpus_do(cli: Cli, daemon: Daemon) -> None:
    cli("dev up")
    says = "0, NVIDIA H100 80GB HBM3, 97, 61234, 81559, 65, 612.35\n1, NVIDIA H100 80GB HBM3, [N/A], 0, 81559, 30, 70.1"
    daemon.behave(**{"nvidia-smi": {"rankzero-dev-0": says}})
    done = cli("dev gpu")
    assert done.code == 0, done.err
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        "POD GPU BUSY MEMORY TEMP POWER NAME",
        "dev-0 0 97 % 61234 / 81559 MiB 65 C 612 W NVIDIA H100 80GB HBM3",
        "dev-0 1 ? 0 / 81559 MiB 30 C 70 W NVIDIA H100 80GB HBM3",
        "dev-1 - it has no nvidia-smi",
    ]
    value = json.loads(cli("dev gpu --json").out)
    assert value[0]["gpus"][0]["utilization"] == 97 and value[1]["trouble"]
