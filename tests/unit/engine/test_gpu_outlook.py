"""A step on a GPU, as far as one can be had without: the product's own on tensors that have shapes alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

OUTLOOK = Path(__file__).parents[3] / "benchmarks/gpu_outlook.py"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outlook")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs torch's CPU build")
@pytest.mark.parametrize(
    ("shape", "method"),
    [
        ("llama-3.2-1b", "LoRA"),
        pytest.param("llama-3.2-1b", "full, bfloat16 with stochastic rounding", marks=pytest.mark.slow),
        pytest.param("qwen3-8b", "QLoRA (nf4)", marks=pytest.mark.slow),
    ],
)
def test_a_step_fits_its_plan_and_waits_for_nothing(shape: str, method: str, work: Path) -> None:
    """Never above what was planned, and at least half of it. The host waits where transformers asks whether rows begin
    within a pass, and for the sums of the step, which are eight numbers; no copy between host and device is waited for.
    """
    command = [sys.executable, str(OUTLOOK), "--shape", shape, "--method", method, "--json", "--work", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["expected"] / 2 < found["most"] <= found["expected"]
    assert found["moved_by_shapes"] == pytest.approx(found["moved"], rel=0.1), "as the forecast has it"
    assert sorted(found["waits"].values()) == sorted([found["passes"], 8])
    assert {wait.partition(" ")[0] for wait in found["waits"]} == {"_local_scalar_dense"}
