"""float16 on two processes: where one overflows both compute the step again, and the curve is that of one process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine import loss_scale
from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import metrics, run_here, small_spec

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("one_thread")]

METHODS: dict[str, dict[str, Any]] = {"adapters": {"lora__dropout": 0.0}, "full": {"lora": None}}
SHARDINGS = ("ddp", "fsdp")
BAD_STEP = 2
FIRST_SCALE = 2.0**8
"""Small enough that nothing overflows by itself, whatever kernels a CPU has for float16."""


def half(root: Path, tiny: Path, method: str, sharding: str = "ddp") -> RunSpec:
    changes = {"train__num_train_epochs": 1, "train__learning_rate": 0.001, "train__micro_batch_tokens": 64}
    changes |= {"eval_rows": 0, "model__dtype": "float16", "train__sharding": sharding, **METHODS[method]}
    return small_spec(root, tiny, rows=17, **changes)


def all_runs(directory: Path, cache: str, specs: list[str]) -> None:
    """One rank of one run after the other; in each, the last rank's gradients of a step overflow once."""
    from rankzero.engine import worker

    torch.set_num_threads(1)
    os.environ |= {"RANKZERO_CACHE": cache, CPU_FEATURES_VARIABLE: "avx512_fp16", "OMP_NUM_THREADS": "1"}
    for number, text in enumerate(specs):
        os.environ["RANKZERO_RENDEZVOUS"] = (directory / f"rendezvous-{number}").as_uri()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loss_scale, "FIRST_SCALE", FIRST_SCALE)
            if os.environ["RANK"] == "1":
                overflow_once(patch)
            worker.run(RunSpec.model_validate_json(text), RunOptions(log_level="WARNING"))


def overflow_once(patch: pytest.MonkeyPatch) -> None:
    from rankzero.engine.step import Stepper

    gradients, calls = Stepper.gradients, {"n": 0}

    def too_large(stepper: Stepper, *arguments: Any, **named: Any) -> Any:
        calls["n"] += 1
        if calls["n"] == BAD_STEP:
            named["loss_scale"] *= 2.0**100
        return gradients(stepper, *arguments, **named)

    patch.setattr(Stepper, "gradients", too_large)


@pytest.fixture(scope="module")
def curves(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Steps of runs by method and layout: on one process, and on two."""
    root = tmp_path_factory.mktemp("float16")
    layouts = {
        (method, sharding): half(root / f"{method}-{sharding}", tiny, method, sharding)
        for method in METHODS
        for sharding in SHARDINGS
    }
    alone = {(method, "one"): half(root / f"{method}-one", tiny, method) for method in METHODS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        patch.setenv(CPU_FEATURES_VARIABLE, "avx512_fp16")
        patch.setattr(loss_scale, "FIRST_SCALE", FIRST_SCALE)
        for spec in alone.values():
            run_here(spec)
        texts = [json.dumps(spec.model_dump(mode="json")) for spec in layouts.values()]
        assert in_ranks(all_runs, 2, root, str(root / "cache"), texts) == [0, 0], (root / "said-0").read_text()
    return {name: metrics(spec) for name, spec in (alone | layouts).items()}


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_try_again_and_the_curve_stays(
    method: str, sharding: str, curves: dict[tuple[str, str], list[dict[str, Any]]]
) -> None:
    one, two = curves[method, "one"], curves[method, sharding]
    assert [row["overflows"] for row in one] == [0] * 3 and {row["loss_scale"] for row in one} == {FIRST_SCALE}
    assert [row["overflows"] for row in two] == [0, 1, 1]
    assert [row["loss_scale"] for row in two] == [FIRST_SCALE, FIRST_SCALE / 2, FIRST_SCALE / 2]
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in two] == pytest.approx([row[name] for row in one], rel=2e-2), name
    assert [row["tokens"] for row in two] == [row["tokens"] for row in one]
