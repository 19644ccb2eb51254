"""DeepSpeed's ZeRO-2 and ZeRO-3 compute what replicas compute, and lose nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.errors import ExitCode
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import Ordeal, run_forked, suffer
from tests.support.runs import metrics, run_here, run_processes_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is an extra: make deepspeed"),
]

LOSS_TOLERANCE = 1e-4
WEIGHTS_TOLERANCE = 1e-3
FULL: dict[str, Any] = {"lora": None, "train__learning_rate": 0.001, "train__weight_decay": 0.1}
ADAPTERS: dict[str, Any] = {"lora__dropout": 0.0}


def spec_in(path: Path, tiny: Path, **changes: Any) -> RunSpec:
    """Two epochs of 17 rows in batches of 8: the last batch of each has one row, for two processes."""
    return small_spec(path, tiny, rows=17, eval_rows=5, train__num_train_epochs=2, **changes)


def weights(spec: RunSpec) -> torch.Tensor:
    """All of the result's."""
    tensors = {name: t for p in (run_root(spec) / "final").glob("*.safetensors") for name, t in load_file(p).items()}
    return torch.cat([tensors[name].flatten().float() for name in sorted(tensors)])


def assert_same_curve(found: RunSpec, wanted: RunSpec) -> None:
    for a, b in zip(metrics(found), metrics(wanted), strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() & {"loss", "grad_norm", "eval_loss", "learning_rate"}:
            assert a[name] == pytest.approx(b[name], rel=LOSS_TOLERANCE), f"{name} of step {a['step']}"
    difference = (weights(found) - weights(wanted)).norm() / weights(wanted).norm()
    assert difference < WEIGHTS_TOLERANCE


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@pytest.fixture(scope="module")
def replicas(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """The same runs without DeepSpeed, by one process."""
    specs = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, changes in (("adapters", ADAPTERS), ("full", FULL)):
            root = tmp_path_factory.mktemp(name)
            patch.setenv("RANKZERO_CACHE", str(root / "cache"))
            specs[name] = spec_in(root, tiny, **changes)
            run_here(specs[name])
    return specs


@pytest.mark.parametrize(
    ("what", "changes", "nproc"),
    [
        ("adapters", {"train__sharding": "zero2", "train__micro_batch_tokens": 64}, 2),
        ("adapters", {"train__sharding": "zero3", "train__micro_batch_tokens": 64}, 3),
        ("full", {"train__sharding": "zero2", "train__gradient_checkpointing": True}, 2),
        ("full", {"train__sharding": "zero3", "train__gradient_checkpointing": True}, 2),
        ("full", {"train__sharding": "zero2", "train__offload": "optimizer", "train__micro_batch_tokens": 64}, 1),
        ("full", {"train__sharding": "zero3", "train__offload": "all", "train__micro_batch_tokens": 64}, 2),
    ],
    ids=lambda value: "-".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value),
)
def test_the_curve_is_that_of_replicas(
    what: str, changes: dict[str, Any], nproc: int, tmp_path: Path, tiny: Path, replicas: dict[str, RunSpec]
) -> None:
    spec = spec_in(tmp_path, tiny, **(ADAPTERS if what == "adapters" else FULL), **changes)
    outcome = run_forked(spec, nproc)
    assert outcome.codes == [0] * nproc, outcome.said
    assert outcome.report is not None and outcome.report["world_size"] == nproc
    assert_same_curve(spec, replicas[what])
    assert "deepspeed" not in outcome.said.lower(), "its log lines are not ours"


@pytest.mark.parametrize(
    ("task", "sharding"),
    [("nf4", "zero2"), ("vision", "zero2"), ("vision", "zero3"), ("moe", "zero3"), ("classify", "zero3")],
)
def test_the_same_for_other_tasks_and_methods(task: str, sharding: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"dropout": 0.0, "rows": 17, "train__max_steps": 6}
    replica, spec = (task_spec(task, tmp_path / name, **changes, train__sharding=name) for name in ("ddp", sharding))
    run_here(replica)
    outcome = run_forked(spec)
    assert outcome.codes == [0, 0], outcome.said
    assert_same_curve(spec, replica)
    losses = [row["loss"] for row in metrics(spec)]
    assert task != "nf4" or losses[-1] < losses[0]


def test_the_product_s_own_launcher_and_plain_peft(tmp_path: Path, tiny: Path, replicas: dict[str, RunSpec]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    own_file = tmp_path / "ds.json"
    own_file.write_text(json.dumps({"zero_optimization": {"stage": 2, "reduce_bucket_size": 500}, "bf16": "auto"}))
    spec = spec_in(tmp_path, tiny, **ADAPTERS, train__sharding="zero2", train__deepspeed=str(own_file))
    assert run_processes_here(spec, 2)["world_size"] == 2
    assert_same_curve(spec, replicas["adapters"])

    def logits(of: RunSpec) -> torch.Tensor:
        base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, str(run_root(of) / "final")).eval()
        with torch.no_grad():
            result: torch.Tensor = model(input_ids=torch.arange(5, 25)[None]).logits
        return result

    assert torch.allclose(logits(spec), logits(replicas["adapters"]), atol=1e-4)


def test_what_deepspeed_refuses_in_a_user_s_file(tmp_path: Path, tiny: Path) -> None:
    own_file = tmp_path / "ds.json"
    section = {"stage": 2, "reduce_bucket_size": "large", "stage_3_prefetch_bucket_size": 1}
    own_file.write_text(json.dumps({"zero_optimization": section, "train_batch_size": 64}))
    spec = spec_in(tmp_path, tiny, **ADAPTERS, train__sharding="zero2", train__deepspeed=str(own_file))
    outcome = run_forked(spec)
    assert outcome.codes == [ExitCode.CONFIG] * 2
    for key in ("reduce_bucket_size", "stage_3_prefetch_bucket_size"):
        assert f"{own_file} zero_optimization.{key}" in outcome.said
    assert not list((run_root(spec) / "checkpoints").iterdir())
