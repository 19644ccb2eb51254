"""What each switch of a step gives on a GPU: the table of made-up measurements, and one real step of a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_switches


def measured(seconds: float) -> dict[str, Any]:
    return {
        "seconds": [seconds, 2 * seconds],
        "tokens": [10_000, 20_000],
        "passes": [1, 2],
        "first": 15.0,
        "peak": 2**36,
        "device": "NVIDIA H200",
        "parameters": 8 * 10**9,
    }


def test_variants_stand_beside_the_default_and_what_failed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # main() sets both: put back after this test
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))

    def start(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "train.torch_compile=true" in command:
            raise subprocess.TimeoutExpired(command, 1.0)
        if 'model.kernels="liger"' in command:
            return subprocess.CompletedProcess(command, 1, "", "Traceback\n  a frame\nConfigError: not installed\n")
        assert command.count("--set") == ("the default" not in told_of(command))
        return subprocess.CompletedProcess(command, 0, json.dumps(measured(1.0 if "--set" not in command else 1.5)), "")

    def told_of(command: list[str]) -> str:
        return "the default" if "--set" not in command else command[command.index("--set") + 1]

    monkeypatch.setattr(gpu_switches.subprocess, "run", start)
    only = [part for text in ("liger", "compile", "checkpointing") for part in ("--only", text)]
    gpu_switches.main(["--work", str(tmp_path), *only])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "- "))]
    # 4 x 8e9 x 10,000 tokens/s are 320 TFLOP/s, 32.4 % of an H200.
    default = "| the default | 10,000 | 32.4% | 1.00 | 1 to 2 | 64.0 GiB | 15.0 s | 1.000 2.000 |"
    assert rows[2:] == [
        default,
        "| `train.gradient_checkpointing: true` | 6,667 | 21.6% | 1.50 | 1 to 2 | 64.0 GiB | 15.0 s | 1.500 3.000 |",
        "- `model.kernels: liger`: ConfigError: not installed",
        "- `train.torch_compile: true`: stopped after 150 s",
    ]


def test_a_variant_of_a_tiny_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "RANKZERO_CACHE"):
        monkeypatch.setenv(name, "")
    child = ["--child", "--device", "cpu", "--quick", "--shape", "llama-3.2-1b", "--set", "lora.r=2"]
    gpu_switches.main([*child, "--work", str(tmp_path)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["seconds"][0] > 0 and found["tokens"][0] > 4 and found["passes"] == [1]
    assert found["device"] == "" and found["parameters"] > 1000 and found["peak"] > 0


def test_without_the_default_nothing_stands_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "RANKZERO_CACHE"):
        monkeypatch.setenv(name, "")

    def start(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        failed = "--set" not in command
        return subprocess.CompletedProcess(command, int(failed), json.dumps(measured(1.0)), "out of memory")

    monkeypatch.setattr(gpu_switches.subprocess, "run", start)
    gpu_switches.main(["--work", str(tmp_path), "--only", "liger"])
    printed = capsys.readouterr().out
    assert (
        "| `model.kernels: liger` | 10,000 | 32.4% |  | 1 to 2 |" in printed
        and "- the default: out of memory" in printed
    )
