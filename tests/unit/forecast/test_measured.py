"""The cost model beside what benchmarks/gpu.py has measured: within 10 %, as docs/scale.md says."""

from __future__ import annotations

import functools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import gpu_cells
import gpu_shapes

from rankzero.engine.setup import to_train, weights_dtype
from rankzero.forecast.cost import Work, step_cost
from rankzero.forecast.devices import Network, find_device
from rankzero.model.facts import fused_of
from rankzero.model.fitting import Need
from rankzero.model.load import empty_model
from rankzero.model.shapes import model_facts
from rankzero.spec.run_spec import RunSpec

TRAINED = statistics.mean(gpu_cells.TRAINED_SHARE)


@functools.cache
def lengths() -> list[int]:
    """Tokens of each of the rows that were measured."""
    rows = gpu_cells.make_rows(gpu_cells.FULL, 100_000)
    return [gpu_cells.TEMPLATE_TOKENS + sum(len(turn["content"].split()) for turn in row["messages"]) for row in rows]


def measured() -> dict[tuple[str, str], float]:
    """Useful tokens a second, by shape and method, of runs at their defaults."""
    told = json.loads(Path(gpu_cells.__file__).with_name("gpu_h200.json").read_text(encoding="utf-8"))
    assert told["machine"]["device"] == "NVIDIA H200"
    names = {cell.name: (cell.shape, cell.method) for cell in gpu_cells.CELLS}
    return {
        names[one["cell"]]: statistics.median(run["tokens_per_second"] for run in one["runs"])
        for one in told["samples"]
        if one["contestant"] == gpu_cells.OURS
    }


def foretold(shape: str, method: str, root: Path) -> float:
    """By shapes, on one H200."""
    cell = next(cell for cell in gpu_cells.CELLS if (cell.shape, cell.method) == (shape, method))
    where: dict[str, Any] = {"model": root, "rows": root, "output": root}
    given = gpu_cells.run_spec(cell, gpu_cells.OURS, gpu_cells.FULL, **where, cpu=False)
    spec = RunSpec.model_validate(given)
    tokenizer = gpu_shapes.make_tokenizer(gpu_shapes.vocabulary(shape, quick=False), images=False)
    config = gpu_shapes.make_config(shape, tokenizer, quick=False)
    model = to_train(empty_model(spec.model, config, weights_dtype(spec, torch.bfloat16)), spec, base_name=shape)
    fused, quantization = fused_of(spec, "cuda"), spec.model.quantization
    facts = model_facts(model, config, torch.bfloat16, quantization=quantization, use="writes", fused=fused)
    need = Need(
        spec.train,
        facts,
        longest=gpu_cells.FULL.max_length,
        tokens=16384,
        recomputing=False,
        offloading=False,
        sharding="ddp",
        world_size=1,
        device_kind="cuda",
        trained_share=TRAINED,
    )
    tokens = gpu_cells.FULL.batch * statistics.mean(lengths())
    # What attention sees is the row of a token, which is a long one more often than not.
    row = sum(size * size for size in lengths()) / sum(lengths())
    device = find_device("NVIDIA H200")
    assert device is not None
    work = Work(tokens=tokens, passes=2.0, row=row, useful=tokens)
    return step_cost(need, device, Network(1, 0.0), work).tokens_per_second


@pytest.mark.parametrize(
    ("shape", "method"),
    [
        ("qwen3-8b", "LoRA"),
        ("qwen3-8b", "QLoRA (nf4)"),
        ("llama-3.2-1b", "full, float32 masters"),
        ("llama-3.2-1b", "full, bfloat16 with stochastic rounding"),
        ("llama-3.2-1b", "LoRA"),
    ],
)
def test_a_step_takes_what_was_measured(shape: str, method: str, tmp_path: Path) -> None:
    found = measured()[shape, method]
    assert foretold(shape, method, tmp_path) == pytest.approx(found, rel=0.1)
