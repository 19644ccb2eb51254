"""Two GPUs and one give the same losses, however the model is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.support import gpu_spec, losses, needs, needs_gpus, on_gpu
from tests.support.architectures import save
from tests.support.runs import metrics, run_processes_here

pytestmark = [*on_gpu, pytest.mark.distributed, needs_gpus(2)]

SHARDINGS = ["ddp", "fsdp", *(pytest.param(name, marks=needs("deepspeed")) for name in ("zero2", "zero3"))]


@pytest.mark.parametrize("method", [{}, {"lora": None}], ids=["adapters", "full"])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_gpus_train_as_one(sharding: str, method: dict[str, Any], tmp_path: Path, tiny: Path) -> None:
    changes = {**method, "model__dtype": "float32"}
    alone = losses(gpu_spec(tmp_path / "alone", tiny, **changes))
    spec = gpu_spec(tmp_path / "spread", tiny, **changes, train__sharding=sharding)
    assert run_processes_here(spec, 2)["world_size"] == 2
    assert [row["loss"] for row in metrics(spec)] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
@pytest.mark.parametrize("method", [{}, {"lora": None}], ids=["adapters", "full"])
def test_experts_on_two_gpus_train_as_on_one(sharding: str, method: dict[str, Any], tmp_path: Path) -> None:
    mixture = save("qwen3_moe", tmp_path / "model")
    changes = {**method, "model__dtype": "float32"}
    alone = losses(gpu_spec(tmp_path / "alone", mixture, **changes))
    changes |= {"train__sharding": sharding, "train__expert_parallel": 2}
    spec = gpu_spec(tmp_path / "spread", mixture, **changes)
    assert run_processes_here(spec, 2)["world_size"] == 2
    assert [row["loss"] for row in metrics(spec)] == pytest.approx(alone, rel=1e-4)


@needs("bitsandbytes")
def test_a_packed_base_under_fsdp(tmp_path: Path, tiny: Path) -> None:
    alone = losses(gpu_spec(tmp_path / "alone", tiny, model__quantization="nf4"))
    spec = gpu_spec(tmp_path / "spread", tiny, model__quantization="nf4", train__sharding="fsdp")
    run_processes_here(spec, 2)
    assert [row["loss"] for row in metrics(spec)] == pytest.approx(alone, rel=1e-2)
