"""What tests on GPUs share: when they are skipped, and small bfloat16 runs. Everything goes through the product's own
worker; tests/unit has the same promises on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.spec.run_spec import RunSpec
from tests.support.runs import metrics, run_here, small_spec

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where a package is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")


def needs_gpus(count: int) -> pytest.MarkDecorator:
    """Skip where there are fewer GPUs."""
    return pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"needs {count} GPUs")


def needs_capability(major: int, minor: int) -> pytest.MarkDecorator:
    """Skip on older GPUs."""
    capable = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (major, minor)
    return pytest.mark.skipif(not capable, reason=f"needs a GPU of compute capability {major}.{minor}")


def gpu_spec(tmp_path: Path, model: Path, **changes: Any) -> RunSpec:
    """A bfloat16 run of 6 steps whose learning rate leaves the losses of two ways to compute comparable."""
    defaults = {
        "model__dtype": "bfloat16",
        "lora__dropout": 0.0,
        "train__max_steps": 6,
        "train__learning_rate": 1e-3,
        "train__micro_batch_tokens": 256,
    }
    if changes.get("lora", {}) is None:
        del defaults["lora__dropout"]
    return small_spec(tmp_path, model, **{**defaults, **changes})


def losses(spec: RunSpec) -> list[float]:
    """Train in this process; the loss of every step."""
    run_here(spec)
    return [row["loss"] for row in metrics(spec) if "loss" in row]


@contextmanager
def deterministic() -> Iterator[None]:
    """Kernels that add in the same order each time, where there are such: others would differ in the last bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
