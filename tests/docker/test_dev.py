"""Warm pods as containers: files, commands on both, a run that meets, Jupyter, and results that are brought here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from rankzero.launch import labels
from rankzero.run_dir.atomic import verify_directory
from rankzero.spec.run_spec import RunSpec
from tests.docker.conftest import docker
from tests.support.jupyter import forwarding, said_by_kernel, token_of
from tests.support.runs import metrics, run_here
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

MEETS = """
import os, sys
import torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("together", int(total), flush=True)
sys.exit(3 * int(os.environ["NODE_RANK"]))
"""


@pytest.fixture
def project(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Iterator[Path]:
    """A directory with a cluster.yaml, whose pods are up."""
    place = tmp_path / "project"
    place.mkdir()
    cluster = {
        **{"image": image, "kind": "docker", "gpu": False, "num_nodes": 2, "resources": {"limits": {"cpu": 1}}},
        "storage": {"outputs": {"mount": "/outputs", "claim": "test-dev", "size": "1Gi"}},
    }
    (place / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    monkeypatch.chdir(place)
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    up = cli("dev up")
    try:
        assert (up.code, up.out.split()) == (0, ["dev-0", "dev-1"]), up.err
        yield place
    finally:
        down = cli("dev down")
        docker("volume", "rm", "--force", "rankzero-test-dev", "rankzero-test-dev.used-by.dev")
    assert down.code == 0, down.err
    assert docker("ps", "--all", "--quiet", "--filter", f"label={labels.RUN}=dev").stdout == ""


def test_commands_meet_and_their_exit_code_is_returned(project: Path, cli: Any) -> None:
    (project / "meets.py").write_text(MEETS)
    done = cli("dev run -- torchrun meets.py")
    lines = [line for line in done.out.splitlines() if "together" in line]
    assert sorted(lines) == ["[dev-0] together 2", "[dev-1] together 2"], done.out + done.err
    assert done.code == 1, "torchrun's own"
    plain = cli("dev run -- python meets.py")
    assert plain.code == 3 and plain.out.count("together 2") == 2, plain.out + plain.err
    assert cli("dev sync").out.count("up to date") == 2
    assert cli("dev gpu").out.count("it has no nvidia-smi") == 2
    words = [sys.executable, "-m", "rankzero", "dev", "shell", "1"]
    said = subprocess.run(words, input="hostname; ls; exit 5\n", text=True, capture_output=True, check=False)
    assert (said.returncode, said.stdout.split()[0]) == (5, "dev-1") and "meets.py" in said.stdout, said.stderr


def test_a_run_spec_trains_on_both_and_its_results_come_here(project: Path, cli: Any, tmp_path: Path) -> None:
    tiny_model(project / "model")
    write_jsonl(project / "train.jsonl", chat_rows(30))
    spec = {
        "name": "tiny",
        "model": {"name": "model", "dtype": "float32"},
        "data": {"train": "train.jsonl"},
        "lora": {"r": 4, "dropout": 0.0, "target_modules": "all-linear"},
        "train": {"max_steps": 6, "global_batch_size": 8, "learning_rate": 0.01},
        "checkpoint": {"every": 3},
        "tracking": {"tensorboard": False},
    }
    (project / "run.yaml").write_text(yaml.safe_dump(spec))
    done = cli("dev run run.yaml")
    assert done.code == 0, done.out + done.err
    pulled = tmp_path / "pulled"
    brought = cli(f"pull run.yaml --cluster cluster.yaml --output {pulled} --checkpoints last")
    assert brought.code == 0, brought.err
    verify_directory(pulled / "final")
    verify_directory(pulled / "checkpoints" / "step-6")
    rows = [json.loads(line) for line in (pulled / "metrics.jsonl").read_text().splitlines()]
    data = {"train": str(project / "train.jsonl")}
    model = {"name": str(project / "model"), "dtype": "float32"}
    here = RunSpec.model_validate({**spec, "model": model, "data": data, "output_dir": str(tmp_path / "here")})
    run_here(here)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in metrics(here)], rel=1e-4)


def test_jupyter_is_reached_through_exec_alone(project: Path, cli: Any) -> None:
    (project / "mine.py").write_text("ANSWER = 42\n")
    assert cli("dev sync").code == 0
    with forwarding() as url:
        assert httpx2.get(url, follow_redirects=True, timeout=300).status_code == 200
        assert httpx2.get(url.split("/lab")[0] + "/api/contents", timeout=300).status_code == 403
        code = "import mine, os; print(mine.ANSWER, sorted(os.listdir('/outputs')) is not None, os.uname().nodename)"
        assert said_by_kernel(url, "/tmp/rankzero-dev/work", code).split() == ["42", "True", "dev-0"]
    token = token_of(url)
    for words in (
        ("inspect", "rankzero-dev-0"),
        ("top", "rankzero-dev-0", "-eo", "pid,args"),
        ("logs", "rankzero-dev-0"),
    ):
        shown = docker(*words)
        assert token not in shown.stdout + shown.stderr
    assert "jupyterlab" in docker("top", "rankzero-dev-0", "-eo", "pid,args").stdout
    assert cli("dev run -- true").code == 0
    with forwarding() as again:
        assert token_of(again) == token
