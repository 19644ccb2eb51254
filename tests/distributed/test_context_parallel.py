"""Rows whose tokens lie on several processes: the curve and the weights are those of one process, dropout on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.errors import ExitCode
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import final_weights, log, metrics, one_process_each, run_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import chat_rows, write_jsonl
from tests.support.zero import NEEDS_DEEPSPEED

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5
METHODS: dict[str, dict[str, Any]] = {"lora": {"lora__dropout": 0.1}, "full": {"lora": None}}
NAMES = ("loss", "grad_norm", "eval_loss")


def spec_in(root: Path, tiny: Path, method: str, processes: int = 1, sharding: str = "ddp", **changes: Any) -> RunSpec:
    """Four steps of up to eight rows, of which some count less, one is as long as several passes, and the last step has
    one. Passes have rows from end to end of chunks and across them."""
    small: dict[str, Any] = {"rows": 25, "eval_rows": 5, "train__num_train_epochs": 1, "train__learning_rate": 0.001}
    small |= {"train__micro_batch_tokens": 48, "train__context_parallel": processes, **METHODS[method], **changes}
    spec = small_spec(root, tiny, train__sharding=sharding, **small)
    rows = chat_rows(25)
    for row in rows[::3]:
        row["messages"][1]["loss_weight"] = 0.25
    rows[7]["messages"][1]["content"] = "Say alpha beta gamma delta " * 12
    write_jsonl(Path(str(spec.data.train)), rows)
    return spec


@pytest.fixture(scope="module")
def one(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """Finished runs of one process, by method."""
    root = tmp_path_factory.mktemp("one")
    return one_process_each(root, lambda directory, method: spec_in(directory, tiny, method), METHODS)


def assert_same_run(found: RunSpec, wanted: RunSpec, names: tuple[str, ...] = NAMES) -> None:
    for a, b in zip(metrics(found), metrics(wanted), strict=True):
        assert a["tokens"] == b["tokens"] and a["supervised_tokens"] == b["supervised_tokens"]
        for name in b.keys() & set(names):
            assert a[name] == pytest.approx(b[name], rel=LOSS_TOLERANCE), f"{name} of step {a['step']}"
    expected, result = final_weights(wanted), final_weights(found)
    assert result.keys() == expected.keys() and expected
    for name, tensor in expected.items():
        assert torch.allclose(result[name], tensor, atol=WEIGHT_TOLERANCE, rtol=0), name


@pytest.mark.parametrize(
    ("method", "nproc", "processes", "sharding"),
    [
        ("full", 3, 3, "ddp"),
        ("full", 2, 2, "fsdp"),
        ("lora", 4, 2, "fsdp"),
        pytest.param("lora", 2, 2, "zero2", marks=NEEDS_DEEPSPEED),
        pytest.param("full", 2, 2, "zero3", marks=NEEDS_DEEPSPEED),
    ],
)
def test_the_run_is_that_of_one_process(
    method: str, nproc: int, processes: int, sharding: str, tmp_path: Path, tiny: Path, one: dict[str, RunSpec]
) -> None:
    spec = spec_in(tmp_path, tiny, method, processes, sharding)
    outcome = run_forked(spec, nproc)
    assert outcome.codes == [ExitCode.DONE] * nproc, outcome.said
    assert_same_run(spec, one[method])


def test_a_run_goes_on_without_it(tmp_path: Path, tiny: Path, one: dict[str, RunSpec]) -> None:
    """Stopped with two processes to a pass, and continued by one: it says so, and ends as if nothing had happened."""
    prompts = write_jsonl(tmp_path / "prompts.jsonl", chat_rows(3))
    spec = spec_in(tmp_path, tiny, "lora", 2, eval__prompts=str(prompts), eval__max_new_tokens=4)
    outcome = run_forked(spec, 2, Ordeal(stop_in_step=2))
    assert outcome.codes == [ExitCode.STOPPED] * 2, outcome.said
    alone = spec.train.model_copy(update={"context_parallel": 1})
    run_here(spec.model_copy(update={"train": alone}), log_level="INFO")
    assert "not bit-exactly: processes: 2 before, 1 now" in log(spec) and "attention: context before" in log(spec)
    assert_same_run(spec, one["lora"])


def test_experts_and_their_routers(tmp_path: Path) -> None:
    """What balances routers counts each token once, wherever it lies."""
    changes: dict[str, Any] = {"rows": 17, "eval_rows": 0, "train__num_train_epochs": 1, "lora__dropout": 0.1}
    specs = [task_spec("moe", tmp_path / str(n), **changes, train__context_parallel=n) for n in (1, 2)]
    run_here(specs[0])
    outcome = run_forked(specs[1], 2)
    assert outcome.codes == [ExitCode.DONE] * 2, outcome.said
    assert_same_run(specs[1], specs[0], ("loss", "router_aux_loss", "expert_load_max", "expert_load_min"))


def test_processes_that_make_no_whole_groups_are_refused_by_all(tmp_path: Path, tiny: Path) -> None:
    spec = spec_in(tmp_path, tiny, "lora", 2)
    outcome = run_forked(spec, 3)
    assert outcome.codes == [ExitCode.CONFIG] * 3
    assert "3 processes cannot be divided into groups of 2" in outcome.said
    assert not run_root(spec).exists()
