"""`rankzero dev` on a cluster, as it is typed: what kubectl is told."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from rankzero.api.dev import wait_until_warm
from rankzero.launch.backend import Backend, Say
from rankzero.launch.node.code import this_code
from rankzero.launch.warm.pods import WarmPod
from tests.support.fake_cluster import plain
from tests.unit.cli.conftest import Place
from tests.unit.cli.test_open import kubectl as kubectl


@pytest.fixture
def warm(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Two pods; the first of them has a Jupyter that listens on 41234."""
    for node in (0, 1):
        place.cluster.script("node", node, [("run",)])

    def when_all_has_happened(backend: Backend, name: str, say: Say) -> list[WarmPod]:
        place.cluster.world.run_down()
        return wait_until_warm(backend, name, say)

    monkeypatch.setattr("rankzero.api.dev.wait_until_warm", when_all_has_happened)

    def feed(pod: str, command: list[str], sent: bytes) -> tuple[int, bytes, bytes]:
        if command[3] == "rankzero.launch.node.code":
            return 0, json.dumps(asdict(this_code())).encode(), b""
        assert (pod, command[3]) == ("dev-0", "rankzero.launch.node.jupyter")
        found = {"port": 41234, "page": "lab", "token": sent.decode(), "started": True}
        return 0, json.dumps(found).encode(), b""

    place.cluster.feed = feed
    assert place("dev up").code == 0
    return place


LISTENS = """#!{python}
import socket, sys, time
open({told!r}, "w").write(chr(10).join(sys.argv[1:]))
time.sleep(0.3)
print("Forwarding from 127.0.0.1", flush=True)
with socket.create_server(("127.0.0.1", int(sys.argv[5].partition(":")[0]))) as listening:
    listening.accept()
"""


def test_jupyter_s_port_is_forwarded(warm: Place, kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = kubectl.parent / "bin" / "kubectl"
    ends = program.read_text()
    program.write_text(LISTENS.format(python=sys.executable, told=str(kubectl)))
    done = warm("dev jupyter")
    assert done.code == 0, done.err
    token = plain(warm.cluster.get("secrets", "dev-submission"))["jupyter"]
    told = kubectl.read_text().split()
    port = told[4].partition(":")[0]
    assert told == ["-n", "train", "port-forward", "pod/dev-0", f"{port}:41234", "--address", "127.0.0.1"]
    assert done.out == f"http://127.0.0.1:{port}/lab?token={token}\n" and token not in done.err
    assert "Forwarding from" in done.err
    program.write_text(ends)
    monkeypatch.setenv("FAILS", "1")
    failed = warm("dev jupyter")
    assert failed.code == 69 and "kubectl port-forward ended with 7" in failed.err
    assert failed.out == "", "a URL is given when something answers there"


def test_a_shell_is_opened_in_the_container_that_is_ours(warm: Place, kubectl: Path) -> None:
    warm("dev shell 1")
    assert kubectl.read_text().split()[:7] == ["-n", "train", "exec", "-i", "dev-1", "--container=node", "--"]


def test_without_kubectl_nothing_is_started(warm: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(warm.directory / "none"))
    done = warm("dev jupyter")
    assert done.code == 78 and "kubectl is not installed, which forwards the port" in done.err
    assert "jupyter" not in plain(warm.cluster.get("secrets", "dev-submission"))


@pytest.mark.parametrize("command", ["up", "up --dry-run", "sync", "run -- true", "shell", "jupyter", "gpu", "down"])
def test_slurm_has_no_warm_pods(command: str, place: Place) -> None:
    slurm = "kind: slurm\nstorage: {outputs: {mount: /shared/me, host_path: /shared/me}}\n"
    Path("slurm.yaml").write_text(slurm, encoding="utf-8")
    verb, _, rest = command.partition(" ")
    done = place(f"dev {verb} --cluster slurm.yaml {rest}")
    assert done.code == 78 and "Slurm has no pods that could be kept warm" in done.err
    assert "salloc" in done.err and done.out == "" and place.cluster.requests == []
