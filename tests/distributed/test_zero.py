"""DeepSpeed's ZeRO-2 and ZeRO-3 compute what replicas compute, in every method and task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.setup import to_train
from rankzero.errors import ExitCode
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import run_forked
from tests.support.runs import metrics, run_here, run_processes_here, run_root
from tests.support.tasks import task_spec
from tests.support.weights import load_weights
from tests.support.zero import NEEDS_DEEPSPEED, assert_same_curve, run_replicas, zero_spec

pytestmark = [pytest.mark.distributed, *NEEDS_DEEPSPEED]


@pytest.fixture(scope="module")
def replicas(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    return run_replicas(tiny, tmp_path_factory)


@pytest.mark.parametrize(
    ("method", "sharding", "nproc", "changes"),
    [
        ("adapters", "zero3", 3, {"train__micro_batch_tokens": 64}),
        ("full", "zero2", 2, {"train__gradient_checkpointing": True}),
        ("full", "zero2", 1, {"train__offload": "optimizer", "train__micro_batch_tokens": 64}),
        ("full", "zero3", 2, {"train__gradient_checkpointing": True}),
        ("full", "zero3", 2, {"train__offload": "all", "train__micro_batch_tokens": 64}),
    ],
    ids=["adapters-zero3-accumulated", "full-zero2-recomputed", "full-zero2-alone", "full-zero3", "full-zero3-offload"],
)
def test_the_curve_is_that_of_replicas(
    method: str,
    sharding: str,
    nproc: int,
    changes: dict[str, Any],
    tmp_path: Path,
    tiny: Path,
    replicas: dict[str, RunSpec],
) -> None:
    spec = zero_spec(tmp_path, tiny, method, train__sharding=sharding, **changes)
    outcome = run_forked(spec, nproc)
    assert outcome.codes == [0] * nproc, outcome.said
    assert outcome.report is not None and outcome.report["world_size"] == nproc
    assert_same_curve(spec, replicas[method])
    assert "deepspeed" not in outcome.said.lower(), "its log lines are not ours"


@pytest.mark.parametrize(
    ("task", "sharding"),
    [
        ("nf4", "zero2"),
        ("vision", "zero3"),
        ("moe", "zero3"),
        ("classify", "zero3"),
        ("dpo", "zero2"),
        ("dpo", "zero3"),
    ],
)
def test_the_same_for_other_tasks_and_methods(task: str, sharding: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"dropout": 0.1, "rows": 17, "train__max_steps": 6}
    replica, spec = (task_spec(task, tmp_path / name, **changes, train__sharding=name) for name in ("ddp", sharding))
    run_here(replica)
    outcome = run_forked(spec)
    assert outcome.codes == [0, 0], outcome.said
    assert_same_curve(spec, replica)
    losses = [row["loss"] for row in metrics(spec)]
    assert task != "nf4" or losses[-1] < losses[0]


@pytest.mark.parametrize("lora", [{"r": 4}, None], ids=["adapters", "full"])
def test_routers_alone_are_trained(lora: dict[str, Any] | None, tmp_path: Path) -> None:
    """Nothing before the first router has a gradient."""
    changes: dict[str, Any] = {"lora": lora, "train__parts": ["router"], "train__max_steps": 3}
    replica, spec = (task_spec("moe", tmp_path / name, **changes, train__sharding=name) for name in ("ddp", "zero3"))
    run_here(replica)
    outcome = run_forked(spec)
    assert outcome.codes == [0, 0], outcome.said
    assert_same_curve(spec, replica)


def test_adapters_through_the_product_s_launcher_with_a_user_s_file(
    tmp_path: Path, tiny: Path, replicas: dict[str, RunSpec]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    own_file = tmp_path / "ds.json"
    zero = {"stage": 2, "reduce_bucket_size": 500, "round_robin_gradients": True}
    own_file.write_text(json.dumps({"zero_optimization": zero, "bf16": "auto"}))
    spec = zero_spec(tmp_path, tiny, "adapters", train__sharding="zero2", train__deepspeed=str(own_file))
    assert run_processes_here(spec, 2)["world_size"] == 2
    assert_same_curve(spec, replicas["adapters"])

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = model.eval()(input_ids=torch.arange(5, 25)[None]).logits
        return result

    ours, plain = (AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32) for _ in range(2))
    ours = to_train(ours, spec, base_name=str(tiny))
    load_weights(ours, run_root(spec) / "best/model")
    plain = PeftModel.from_pretrained(plain, str(run_root(spec) / "final"))
    assert torch.allclose(logits(plain), logits(ours), rtol=0, atol=1e-5)


def test_what_deepspeed_refuses_in_a_user_s_file(tmp_path: Path, tiny: Path) -> None:
    own_file = tmp_path / "ds.json"
    section = {"stage": 2, "reduce_bucket_size": "large", "stage_3_prefetch_bucket_size": 1}
    own_file.write_text(json.dumps({"zero_optimization": section, "train_batch_size": 64}))
    spec = zero_spec(tmp_path, tiny, "adapters", train__sharding="zero2", train__deepspeed=str(own_file))
    outcome = run_forked(spec)
    assert outcome.codes == [ExitCode.CONFIG] * 2
    for key in ("reduce_bucket_size", "stage_3_prefetch_bucket_size"):
        assert f"{own_file} zero_optimization.{key}" in outcome.said
    assert not (run_root(spec) / "metrics.jsonl").exists()
