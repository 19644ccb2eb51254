"""Bases in fewer bits on a GPU: they train, start where the unpacked base starts, and take less memory."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.parallel.placing import tensors
from rankzero.model.load import load_config, load_model
from tests.gpu.support import gpu_spec, losses, needs, needs_capability, on_gpu
from tests.support.runs import run_here
from tests.support.tiny import tiny_model
from tests.unit.model.support import packed_spec, saved

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


@pytest.mark.parametrize("quantization", PACKED)
def test_weights_that_are_only_packed_on_the_gpu_are_those_packed_there(quantization: str, tmp_path: Path) -> None:
    source, spec = saved("qwen3_moe", tmp_path), packed_spec("qwen3_moe", quantization)
    config, gpu = load_config(source, spec.model), torch.device("cuda")
    there = load_model(source, spec.model, config, torch.bfloat16, device=gpu)
    kept = load_model(source, spec.model, config, torch.bfloat16, device=torch.device("cpu"), pack_on=gpu)
    for (_, name, one), (_, _, other) in zip(tensors(there), tensors(kept), strict=True):
        assert other.device.type == "cpu" and one.dtype == other.dtype, name
        bits = [tensor.cpu().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        torch.testing.assert_close(*bits, atol=0, rtol=0, msg=lambda said, name=name: f"{name}: {said}")
