"""`rankzero doctor` on this machine: what it says, one fix a line, and the exit code that training would end with."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankzero import machine
from rankzero.doctor import devices, here, packages, places
from rankzero.doctor.finding import Finding, exit_code, look, ok, to_json, wrong
from rankzero.doctor.hub import reach_hub, tokens
from rankzero.errors import ExitCode
from rankzero.hub_variables import hub_cache, hub_home
from rankzero.machine import Gpu
from tests.support.certificates import authority, server_files
from tests.support.cli import Cli
from tests.support.nvidia_smi import four_gpus
from tests.support.unreadable import close

CONSTRAINTS = (Path(__file__).parents[3] / "constraints.txt").read_text(encoding="utf-8")
SECRET = "hf_itmaynotbeshown"


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", CONSTRAINTS, flags=re.MULTILINE))
    for name, tested in {**packages.ENGINE, **packages.EXTRAS, **packages.LAUNCHER}.items():
        assert pinned[name] == tested, name


def test_here_and_now(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch itself asked; and nobody else."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("nobody asked for the network"))
    done = cli(f"doctor --output {tmp_path} --json")
    value = json.loads(done.out)
    found = {one["name"]: one for one in value["checks"]}
    assert (done.code, value["ok"], value["exit_code"]) == (0, True, 0)
    assert {"rankzero", "packages", "results", "cache", "Hub's token", "Hub", "machine", "GPUs", "torch"} <= set(found)
    assert found["Hub's token"]["what"] == "there, from HF_TOKEN" and SECRET not in done.out + done.err
    assert "not asked" in found["Hub"]["what"] and "built for" in found["torch"]["what"]
    assert all(one["fix"] for one in value["checks"] if one["state"] != "ok")


def test_in_words_with_the_code_of_the_first_that_is_wrong(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        ok("a", "fine"),
        look("b", "doubtful", "do b"),
        wrong("c", f"bad {SECRET}", "do c", ExitCode.STORAGE),
        wrong("d", "worse", "do d", ExitCode.CONFIG),
    ]
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(here, "this_machine", lambda *_, **__: iter(said))
    done = cli("doctor")
    assert done.code == 74 == to_json(said)["exit_code"]
    assert [line.split() for line in done.out.splitlines()][:2] == [["ok", "a", "fine"], ["look", "b", "doubtful"]]
    assert done.out.count("fix: ") == 3 and SECRET not in done.out
    assert exit_code(said[:2]) == 0


def names(found: Iterator[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in found}


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str | None] = {**packages.ENGINE, **packages.LAUNCHER, "torch": "2.13.0+cu130"}
    monkeypatch.setattr(packages, "_installed", versions.get)
    assert names(packages.packages())["packages"].state == "ok"
    versions["transformers"] = "5.24.1"
    found = names(packages.packages())["packages"]
    assert found.state == "look" and "transformers 5.24.1 (tested: 5.23.0)" in found.what
    versions["torch"] = None
    found = names(packages.packages())["packages"]
    assert (found.state, found.code) == ("wrong", 78) and "rankzero[train]" in found.fix


H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 10**9, 79 * 10**9, (9, 0))
ON_GPUS = {
    "version": "2.13.0", "cuda": "13.0", "hip": None, "available": True, "count": 2, "nccl": "2.29.7", "bfloat16": True,
    "sum": [1000.0, 1000.0], "distributed": True,
}  # fmt: skip


def with_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, said: str, code: int = 0, errors: str = "") -> None:
    """A machine with GPUs, and what a process with torch says of it."""
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: gpus)
    monkeypatch.setattr(machine, "_nvidia_count", lambda: len(gpus))
    monkeypatch.setattr(devices, "_driver", lambda: "580.95")
    done = subprocess.CompletedProcess([], code, said, errors)
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: done)


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, H100, H100, said=f"a word of a library\n{json.dumps(ON_GPUS)}\n")
    found = names(devices.devices({}))
    assert found["GPUs"].what == "2 × NVIDIA H100 80GB HBM3, 80 GB, driver 580.95"
    assert "computes on 2 GPUs, bfloat16" in found["torch"].what and found["NCCL"].what == "2.29.7"
    assert {one.state for one in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"available": False, "cuda": None}, "this build of torch is for CPUs", "pip install torch"),
        ({"available": False}, "built for CUDA 13.0, and cannot use the GPUs", "a driver that is new enough"),
    ],
)
def test_gpus_that_torch_does_not_see(
    change: dict[str, Any], what: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, H100, said=json.dumps({**ON_GPUS, **change}))
    found = names(devices.devices({}))["torch"]
    assert (found.state, found.code) == ("wrong", 78) and what in found.what and fix in found.fix


def test_a_torch_that_dies_and_a_gpu_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Gpu("NVIDIA T4", 16 * 10**9, 10**9, (7, 5))
    with_gpus(monkeypatch, H100, taken, said="", code=1, errors="Traceback\nCUDA error: device not ready\n")
    found = names(devices.devices({}))
    assert found["torch"].what == "ended with 1: CUDA error: device not ready" and found["torch"].state == "wrong"
    assert found["GPU memory"].what == "less than half is free on GPU 1" and found["GPU memory"].state == "look"


H100S = "{} × NVIDIA H100, 86 GB, driver 580.95"


@pytest.mark.parametrize(
    ("shown", "what", "busy"),
    [
        ("0", f"{H100S.format(1)}; CUDA_VISIBLE_DEVICES shows 1 of 4", None),
        ("1,0", f"{H100S.format(2)}; CUDA_VISIBLE_DEVICES shows 2 of 4", "GPU 1"),
        ("GPU-2,GPU-0-of-4", f"{H100S.format(2)}; CUDA_VISIBLE_DEVICES shows 2 of 4", "GPU 2"),
        ("0,1,2,3", "3 × NVIDIA H100, 86 GB; 1 × NVIDIA T4, 16 GB, driver 580.95", "GPU 1, 2, 3"),
        (None, "3 × NVIDIA H100, 86 GB; 1 × NVIDIA T4, 16 GB, driver 580.95", "GPU 1, 2, 3"),
        ("MIG-part-of-one", "1 GPU, driver 580.95", None),
        ("", "none: training is on the CPU; CUDA_VISIBLE_DEVICES hides them", None),
    ],
)
def test_of_gpus_that_the_environment_hides_only_their_number_is_said(
    shown: str | None, what: str, busy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(four_gpus(tmp_path)), prepend=os.pathsep)
    monkeypatch.setattr(devices, "_torch", lambda _: iter(()))
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = names(devices.devices(order if shown is None else {"CUDA_VISIBLE_DEVICES": shown, **order}))
    assert found["GPUs"].what == what
    assert (found["GPU memory"].what if "GPU memory" in found else None) == (
        busy and f"less than half is free on {busy}"
    )


@pytest.mark.parametrize(("shown", "known"), [("0", False), ("1,GPU-0", False), ("GPU-0", True), ("3,2,1,0", True)])
def test_which_of_several_kinds_a_number_of_cudas_means_is_not_guessed(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """CUDA numbers the fastest first, where nothing says otherwise."""
    monkeypatch.setenv("PATH", str(four_gpus(tmp_path)), prepend=os.pathsep)
    monkeypatch.setattr(devices, "_torch", lambda _: iter(()))
    found = names(devices.devices({"CUDA_VISIBLE_DEVICES": shown}))
    assert found["GPUs"].state == ("ok" if known else "look")
    if not known:
        every = "3 × NVIDIA H100, 86 GB; 1 × NVIDIA T4, 16 GB, driver 580.95"
        assert found["GPUs"].what.startswith(f"{len(shown.split(','))} of {every}; only torch knows which")
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found["GPUs"].fix and "GPU memory" not in found


def test_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SHM", tmp_path)
    monkeypatch.setattr(places, "LEAST_SHM", 2**62)
    (several,), (one,) = places.shared_memory(several_gpus=True), places.shared_memory(several_gpus=False)
    assert (several.state, one.state) == ("look", "ok") and "shm" in several.fix
    monkeypatch.setattr(places, "SHM", tmp_path / "none")
    assert list(places.shared_memory(several_gpus=True)) == []


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(places.disks(tmp_path / "runs"))["results"].state == "ok"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(places, "LEAST_FREE", 2**80)
    assert names(places.disks(tmp_path))["results"].state == "look"
    monkeypatch.setattr(places.os, "access", lambda *_: False)

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    found = names(places.disks(tmp_path))
    assert {name: (one.state, one.code) for name, one in found.items()} == {
        "results": ("wrong", 74),
        "temporary files": ("wrong", 74),
    }


@pytest.mark.parametrize("name", ["x" * 300, "new/" + "x" * 300, "file", "file/runs", "loop", "gone"])
def test_results_where_no_directory_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    results = names(places.disks(tmp_path / name))["results"]
    what = f"takes no names of more than {os.pathconf(tmp_path, 'PC_NAME_MAX')} letters"
    there = tmp_path if "x" in name else tmp_path / name.removesuffix("/runs")
    words = what if "x" in name else "is a file, where a directory is needed"
    assert (results.state, results.code, results.what) == ("wrong", 74, f"{there} {words}")


def test_caches(own_cache: Path, tmp_path: Path) -> None:
    (own_cache / "downloads/abc").mkdir(parents=True)
    (own_cache / "downloads/abc/data").write_bytes(bytes(200_000_000))
    blobs = tmp_path / "hf/hub/models--o--m/blobs"
    blobs.mkdir(parents=True)
    (blobs / "b").write_bytes(bytes(100_000_000))
    found = names(places.caches({"HF_HOME": str(tmp_path / "hf")}))
    assert f"{own_cache}, 0.2 GB" in found["cache"].what
    hub = re.fullmatch(rf"{tmp_path}/hf/hub, 0.1 GB; [\d.]+ GB free; `hf cache` manages it", found["Hub's cache"].what)
    assert hub


def test_a_cache_of_the_hub_that_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is trained all the same."""
    hub = tmp_path / "hub"
    hub.mkdir()

    def found() -> Finding:
        return names(places.caches({"HF_HOME": str(tmp_path)}))["Hub's cache"]

    assert found().state == "ok"
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=10**9))
        assert found().state == "look" and "0.0 GB; 1.0 GB free" in found().what and "HF_HOME" in found().fix
        full.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=0))
        assert found().state == "look"
    close(monkeypatch, hub)
    assert found().state == "look" and found().what.startswith(f"{hub}, 0.0 GB; cannot be written; ")


CLIENT = "from huggingface_hub import constants as c; print(c.HF_HOME, c.HF_HUB_CACHE, c.HF_TOKEN_PATH, sep='\\n')"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HF_HOME": "$SCRATCH/hf"},
        {"HF_HOME": "${SCRATCH}/$NONE/~"},
        {"XDG_CACHE_HOME": "~/$SUB"},
        {"HF_HUB_CACHE": "~/$SUB-x/${NONE}", "HF_TOKEN_PATH": "$SCRATCH/token"},
        {"HUGGINGFACE_HUB_CACHE": "$SCRATCH"},
    ],
)
def test_the_hubs_places_are_those_of_its_client(env: dict[str, str], tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "SCRATCH": f"{tmp_path}/scratch", "SUB": "sub", **env}
    done = subprocess.run([sys.executable, "-c", CLIENT], env=env, capture_output=True, text=True, check=True)
    home, cache, token = done.stdout.splitlines()
    Path(token).parent.mkdir(parents=True, exist_ok=True)
    Path(token).write_text(SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        assert (str(hub_home(env)), str(hub_cache(env))) == (home, cache)
        assert names(tokens(env))["Hub's token"].what == f"there, from {token}"


def test_places_that_may_not_be_looked_at_are_findings(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (own_cache / "downloads").mkdir(parents=True)
    for closed in (tmp_path / "theirs", own_cache / "downloads"):
        close(monkeypatch, closed)
    results = names(places.disks(tmp_path / "theirs/runs"))["results"]
    assert (results.state, results.code, results.what) == ("wrong", 74, f"{tmp_path}/theirs cannot be written")
    found = names(places.caches({"HF_HOME": str(tmp_path / "theirs/hf")}))
    assert {name: (one.state, one.code) for name, one in found.items()} == {
        "cache": ("wrong", 74),
        "Hub's cache": ("look", 0),
    }
    assert f"{own_cache}/downloads: Permission denied" in found["cache"].what
    monkeypatch.setattr(places, "SHM", tmp_path / "theirs/shm")
    assert list(places.shared_memory(several_gpus=True)) == []


def test_no_place_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    found = names(places.disks(tmp_path))["temporary files"]
    assert (found.state, found.code) == ("wrong", 74) and "TMPDIR" in found.fix
    assert f"{tmp_path}/nowhere" in found.what


def test_tokens(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path), "LANGFUSE_PUBLIC_KEY": SECRET, "WANDB_API_KEY": SECRET}
    first, second, third = tokens(env)
    assert first.what.startswith("none") and second.what == "Weights & Biases set up"
    assert (third.state, third.fix) == ("look", "set LANGFUSE_SECRET_KEY")
    (tmp_path / "token").write_text(SECRET)
    first, *_ = found = list(tokens(env))
    assert first.what == f"there, from {tmp_path}/token"
    assert SECRET not in str(found)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing forbids the network."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(online: None) -> Iterator[HTTPServer]:
    """The Hub, with one token that it accepts."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            code = 200 if given in (None, f"Bearer {SECRET}") else 401
            body = b'{"name": "somebody"}' if given else b"[]"
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_hub_is_asked_where_somebody_wants_it(
    hub: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}
    assert reach_hub(env).what.endswith("answers")
    assert reach_hub({**env, "HF_TOKEN": SECRET}).what.endswith("answers as somebody")
    refused = reach_hub({**env, "HF_TOKEN": "hf_old"})
    assert (refused.state, refused.code) == ("wrong", 77) and "hf_old" not in str(refused)
    hub.server_close()
    closed = reach_hub({**env, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (closed.state, closed.code) == ("wrong", 69) and "Connection refused" in closed.what
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert reach_hub(env).state == "look"


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_token_that_was_broken_into_lines_is_one(hub: HTTPServer, tmp_path: Path, end: str) -> None:
    """As the Hub's client takes it, wherever it stands."""
    (tmp_path / "token").write_bytes(f"hf_it{end}{SECRET.removeprefix('hf_it')}{end}".encode())
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_TOKEN_PATH": str(tmp_path / "token")}
    assert reach_hub(env).what.endswith("answers as somebody")
    del env["HF_TOKEN_PATH"]
    assert reach_hub({**env, "HF_TOKEN": (tmp_path / "token").read_text()}).what.endswith("answers as somebody")


@pytest.mark.parametrize("token", ["hf_may\x00not", "hf_mäynot", "hf_may\x0bnot"])
def test_a_token_that_no_header_takes_is_not_shown(hub: HTTPServer, tmp_path: Path, token: str) -> None:
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path), "HF_TOKEN": token}
    found = reach_hub(env)
    assert (found.state, found.code) == ("wrong", 77) and "characters that no token has" in found.what
    assert "not" not in found.what.replace("no token", "") and "hf_m" not in str(found)


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.7\r\n\r\n", "does not speak HTTP (BadStatusLine)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "does not speak HTTP (IncompleteRead)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "what answers there is not the Hub"),
        (b"", "closed connection without response"),
    ],
)
def test_what_is_no_hub(said: bytes, words: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60.0)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        found = reach_hub({"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path)})
        thread.join()
    assert (found.state, found.code) == ("wrong", 69) and words in found.what


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_tls_that_fails_is_named(hub: HTTPServer, tmp_path: Path, *, speaks_tls: bool) -> None:
    if speaks_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(server_files(tmp_path, authority()))
        hub.socket = tls.wrap_socket(hub.socket, server_side=True)
    found = reach_hub({"HF_ENDPOINT": f"https://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)})
    words = "its certificate is not trusted (" if speaks_tls else "does not speak TLS"
    assert (found.state, found.code) == ("wrong", 69) and words in found.what
    assert "not permitted" not in found.what
    assert ("SSL_CERT_FILE and REQUESTS_CA_BUNDLE" in found.fix) is speaks_tls and "HF_ENDPOINT" in found.fix


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("endpoint", ["http://hf mirror", "hf.mirror", "http://[hf"])
def test_an_endpoint_that_is_no_url(endpoint: str, tmp_path: Path) -> None:
    found = reach_hub({"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": SECRET})
    assert (found.state, found.code) == ("wrong", 69) and "that is no URL" in found.what
    assert SECRET not in str(found)
