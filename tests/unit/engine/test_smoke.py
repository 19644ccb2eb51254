"""The smoke test of one process, and what it makes of what the system says of links."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.smoke import links, volume
from rankzero.engine.smoke.check import smoke
from rankzero.engine.smoke.collectives import Measured
from rankzero.engine.smoke.learning import made_up_rows
from rankzero.launch.processes import module_for
from rankzero.spec.run_options import RunOptions, SmokeSettings
from tests.support.cli import Cli

FEW = "--epochs 1 --samples 512 --features 16"


def test_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(f"smoke {FEW} --json")
    report = json.loads(done.out)
    assert done.code == 0 and report["ok"]
    assert report["loss"]["after"] < report["loss"]["before"]
    assert (report["world_size"], report["collectives"], report["clocks"]) == (1, [], [])
    assert report["volume"]["bytes"] > 0 and list(tmp_path.glob("*smoke*")) == []


def test_in_words(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(f"smoke {FEW} --nproc 1")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["devices", "processes", "loss", "volume", "ok"]


def test_its_processes_import_torch_and_little_else() -> None:
    """Minutes before a run, on many nodes, from slow disks: what trains is not read."""
    script = "import sys, rankzero.engine.smoke.__main__; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in found and "rankzero.engine.smoke.check" in found
    heavy = {"transformers", "peft", "datasets", "safetensors", "tokenizers", "pyarrow", "rankzero.engine.worker"}
    assert heavy.isdisjoint(found), heavy & set(found)
    assert module_for(RunOptions(smoke=SmokeSettings())) == "rankzero.engine.smoke"


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (f"{FEW} --lr 0", 70, "the loss did not fall"),
        (f"{FEW} --lr 1e30", 70, "the loss went from"),
        ("--kind job", 2, "add --cluster"),
        ("cluster.num_nodes=2", 2, "add --cluster"),
        ("num_nodes=2 --cluster rook-ceph-1x2", 2, "only the cluster's settings"),
    ],
)
def test_what_is_wrong(flags: str, code: int, words: str, cli: Cli, tmp_path: Path) -> None:
    done = cli(f"smoke {flags} --output {tmp_path} --nproc 1")
    assert done.code == code and words in done.err


def test_a_file_takes_no_results(cli: Cli, tmp_path: Path) -> None:
    """The directory that it lies in was tried instead, and was fine."""
    (tmp_path / "file").write_text("")
    for place in ("file", "file/runs"):
        done = cli(f"smoke {FEW} --output {tmp_path}/{place} --nproc 1")
        assert done.code == 74 and "file: it is a file, where a directory is needed" in done.err


def test_a_full_volume_is_74(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(volume.os, "fsync", full)
    done = cli(f"smoke {FEW} --output {tmp_path}/runs --nproc 1 --json")
    outcome = json.loads(done.out)
    assert done.code == outcome["exit_code"] == 74 and not outcome["ok"]
    assert "No space left" in outcome["problems"][0]["what"] and outcome["problems"][0]["hint"]
    assert list(tmp_path.glob("*smoke*")) == []


def test_rows_are_separable_and_the_same_everywhere() -> None:
    settings = SmokeSettings(samples=500, features=8, classes=3)
    (x_NF, y_N), (again, _) = made_up_rows(settings), made_up_rows(settings)
    assert torch.equal(x_NF, again) and x_NF.shape == (500, 8)
    assert set(y_N.tolist()) == {0, 1, 2}
    other, _ = made_up_rows(SmokeSettings(samples=500, features=8, classes=3, seed=1))
    assert not torch.equal(x_NF, other)


def test_the_same_seed_is_the_same_loss(tmp_path: Path) -> None:
    from rankzero.api.smoke import smoke_carrier

    options = RunOptions(log_level="ERROR", smoke=SmokeSettings(epochs=1, samples=256, features=8))
    first, second = (smoke(smoke_carrier(str(tmp_path)), options) for _ in range(2))
    assert first["loss"] == second["loss"]


NVLINK = "GPU 0: NVIDIA H100 80GB HBM3\n" + "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))


def answers(monkeypatch: pytest.MonkeyPatch, **by_word: str) -> None:
    monkeypatch.setattr(links, "_ask", lambda *arguments: next((by_word[w] for w in by_word if w in arguments[0]), ""))


def test_links_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, nvlink=NVLINK, query="5, 16\n")
    found = links.link_of(cuda=True, other_hosts=False, env={})
    assert found == links.Link("NVLink, 18 links", pytest.approx(478.116e9))
    answers(monkeypatch, query="4, 16\n4, 8\n")
    found = links.link_of(cuda=True, other_hosts=False, env={})
    assert found == links.Link("PCIe 4 x8", pytest.approx(15.752e9))
    answers(monkeypatch, query="[N/A], [N/A]\n")
    assert links.link_of(cuda=True, other_hosts=False, env={}) is None
    assert links.link_of(cuda=False, other_hosts=False, env={}) is None


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_links_between_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infiniband = {
        "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "mlx5_0/ports/1/state": "4: ACTIVE\n",
        "mlx5_1/ports/1/rate": "10 Gb/sec (4X SDR)\n",
        "mlx5_1/ports/1/state": "1: DOWN\n",
    }
    net = {"eth0/speed": "25000\n", "eth1/speed": "100000\n", "veth/speed": "-1\n"}
    monkeypatch.setattr(links, "_INFINIBAND", written(tmp_path / "infiniband", infiniband))
    monkeypatch.setattr(links, "_NETWORK", written(tmp_path / "net", net))
    routes = "Iface\tDestination\tGateway\neth1\t0000FEA9\t0\neth0\t00000000\t0102A8C0\n"
    monkeypatch.setattr(links, "_ROUTES", written(tmp_path, {"route": routes}) / "route")

    def between_hosts(*, cuda: bool = False, **env: str) -> Any:
        return links.link_of(cuda=cuda, other_hosts=True, env=env)

    assert between_hosts(cuda=True) == links.Link("InfiniBand or RoCE, 1 ports", 50e9)
    assert between_hosts() == links.Link("eth0, Ethernet", 25e9 / 8)
    assert between_hosts(GLOO_SOCKET_IFNAME="eth1") == links.Link("eth1, Ethernet", 100e9 / 8)
    assert between_hosts(GLOO_SOCKET_IFNAME="veth") is None  # a virtual network does not say


def test_less_than_a_quarter_of_the_link_is_spoken_of() -> None:
    from rankzero.engine.smoke.check import _slow

    link = links.Link("NVLink, 18 links", 478e9)
    slow = Measured("all-reduce", 2**28, 0.1, 12e9, right=True)
    assert "all-reduce has 3% of what NVLink, 18 links gives (478 GB/s)" in _slow([slow], link)[0]
    assert _slow([slow], None) == [] and _slow([], link) == []
    assert _slow([Measured("all-reduce", 2**28, 0.1, 300e9, right=True)], link) == []
