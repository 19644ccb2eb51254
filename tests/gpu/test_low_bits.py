"""Bases in fewer bits on a GPU: they train, start where the unpacked base starts, and take less memory."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.support import gpu_spec, losses, needs, needs_capability, on_gpu
from tests.support.runs import run_here
from tests.support.tiny import tiny_model

pytestmark = on_gpu

PACKED = [
    pytest.param("nf4", marks=needs("bitsandbytes")),
    pytest.param("fp8", marks=needs_capability(8, 9)),
]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for rounding to be small beside what a layer computes."""
    return tiny_model(tmp_path_factory.mktemp("wide"), hidden=256)


@pytest.mark.parametrize("quantization", PACKED)
def test_training_starts_near_the_unpacked_base_and_goes_down(quantization: str, tmp_path: Path, wide: Path) -> None:
    changes: dict[str, Any] = {"train__max_steps": 20, "train__learning_rate": 5e-3}
    plain = losses(gpu_spec(tmp_path / "plain", wide, **changes))
    packed = losses(gpu_spec(tmp_path / "packed", wide, model__quantization=quantization, **changes))
    assert packed[0] == pytest.approx(plain[0], rel=0.05)
    assert packed[-1] < 0.9 * packed[0]
    assert packed[-1] == pytest.approx(plain[-1], rel=0.2)


@pytest.mark.parametrize("quantization", PACKED)
def test_a_packed_base_takes_less_memory(quantization: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", hidden=2048)
    peaks = {}
    for held in ("none", quantization):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        spec = gpu_spec(tmp_path / held, model, model__quantization=held, train__max_steps=2)
        peaks[held] = run_here(spec)["peak_memory_bytes"]
    linear = 2 * (2 * 2048**2 + 2 * 2048 * 1024 + 3 * 2048 * 4096)
    saved = (2 - {"nf4": 0.52, "fp8": 1.01}[quantization]) * linear
    assert peaks["none"] - peaks[quantization] > 0.5 * saved
