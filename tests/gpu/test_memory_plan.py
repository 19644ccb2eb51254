"""The memory plan against what a GPU says was allocated at the highest point."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.setup import to_train, weights_dtype
from rankzero.model.facts import fused_of
from rankzero.model.load import empty_model, load_config
from rankzero.model.memory import plan_memory
from rankzero.model.shapes import model_facts
from rankzero.model.source import locate
from rankzero.spec.run_spec import RunSpec
from tests.gpu.support import gpu_spec, needs, on_gpu
from tests.support.runs import run_here
from tests.support.tiny import tiny_model, write_jsonl

pytestmark = on_gpu

METHODS: dict[str, dict[str, Any]] = {
    "adapters": {},
    "full": {"lora": None},
    "full kahan": {"lora": None, "train__master_weights": "kahan"},
    "nf4": {"model__quantization": "nf4"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), hidden=1024, layers=6)


def expected_bytes(spec: RunSpec) -> int:
    config = load_config(locate(spec.model), spec.model)
    shape = to_train(empty_model(spec.model, config, weights_dtype(spec, torch.bfloat16)), spec, base_name="model")
    quantization, fused = spec.model.quantization, fused_of(spec, "cuda")
    facts = model_facts(shape, config, torch.bfloat16, quantization=quantization, use="writes", fused=fused)
    limit = torch.cuda.get_device_properties(0).total_memory
    return plan_memory(
        spec.train, spec.data.max_length, facts, limit, "cuda", sharding="ddp", world_size=1
    ).expected_bytes


@pytest.mark.parametrize("recomputing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=needs("bitsandbytes") if name == "nf4" else ()) for name in METHODS]
)
def test_a_step_takes_what_was_expected(method: str, recomputing: bool, tmp_path: Path, model: Path) -> None:
    """Never more than 5 % above the estimate, and at least half of it: what it leaves out is small."""
    rows = [{"text": " ".join(["alpha"] * 500)} for _ in range(64)]
    spec = gpu_spec(
        tmp_path,
        model,
        **METHODS[method],
        eval_rows=0,
        data__train=str(write_jsonl(tmp_path / "long.jsonl", rows)),
        data__max_length=512,
        train__max_steps=2,
        train__global_batch_size=32,
        train__micro_batch_tokens=16384,
        train__gradient_checkpointing=recomputing,
    )
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    measured = run_here(spec)["peak_memory_bytes"] - before
    assert 0.5 * expected_bytes(spec) < measured < 1.05 * expected_bytes(spec)
