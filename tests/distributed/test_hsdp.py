"""FSDP2 within each node and a copy on each, through the product: two nodes of two processes each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ExitCode
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.forked import Ordeal, in_ranks, run_forked
from tests.support.runs import metrics, one_process_each, run_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.distributed

NODES, A_NODE = 2, 2
TOLERANCE = 1e-4
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"lora__dropout": 0.1},
    "full": {"lora": None},
    "nf4": {"lora__dropout": 0.1, "model__quantization": "nf4"},
    "long rows": {"lora": None, "train__context_parallel": 2},
    "in the host's memory": {"lora": None, "train__offload": "all", "train__gradient_checkpointing": True},
}
TASKS: dict[str, dict[str, Any]] = {"moe": {}, "vision": {}, "dpo": {"lora": None}}


def spec_in(root: Path, tiny: Path, method: str, sharding: str, **changes: Any) -> RunSpec:
    """Four steps of up to eight rows in passes of a few: ranks have different numbers, and the last step has one."""
    small: dict[str, Any] = {"rows": 25, "eval_rows": 11, "train__num_train_epochs": 1, "train__learning_rate": 0.001}
    small |= {"train__micro_batch_tokens": 64, **METHODS[method], **changes}
    return small_spec(root, tiny, train__sharding=sharding, **small)


@pytest.fixture(scope="module")
def full_alone(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """The finished run of all weights in one process."""
    root = tmp_path_factory.mktemp("full-one")
    return one_process_each(root, lambda directory, method: spec_in(directory, tiny, method, "ddp"), ["full"])["full"]


def run(spec: RunSpec, ordeal: Ordeal | None = None) -> str:
    """All four ranks run to the end, or to a stop; returns what rank 0 said."""
    outcome = run_forked(spec, NODES * A_NODE, ordeal, a_node=A_NODE)
    expected = ExitCode.DONE if ordeal is None else ExitCode.STOPPED
    assert outcome.codes == [expected] * NODES * A_NODE, outcome.said
    return outcome.said


def assert_same_figures(found: RunSpec, wanted: RunSpec) -> None:
    lines = list(zip(metrics(found), metrics(wanted), strict=True))
    assert len(lines) == 4
    for one, other in lines:
        assert one["tokens"] == other["tokens"] and one.keys() == other.keys()
        for name in one.keys() & {"loss", "grad_norm", "eval_loss", "accuracy", "reward_margin"}:
            assert one[name] == pytest.approx(other[name], rel=TOLERANCE), f"{name}, step {one['step']}"


@pytest.mark.parametrize("method", METHODS)
def test_the_curve_is_that_of_one_process(method: str, full_alone: RunSpec, tiny: Path, tmp_path: Path) -> None:
    one = full_alone
    if "lora" not in METHODS[method]:
        one = spec_in(tmp_path / "one", tiny, method, "ddp")
        run_here(one)
    hybrid = spec_in(tmp_path / "hybrid", tiny, method, "hsdp")
    assert ", hsdp" in run(hybrid)
    assert_same_figures(hybrid, one)


@pytest.mark.parametrize("task", TASKS)
def test_other_tasks_have_the_curve_of_one_process(task: str, tmp_path: Path) -> None:
    one, hybrid = (
        task_spec(
            task,
            tmp_path / sharding,
            dropout=0.1,
            rows=25,
            train__num_train_epochs=1,
            **{**TASKS[task], "train__sharding": sharding},
        )
        for sharding in ("ddp", "hsdp")
    )
    run_here(one)
    run(hybrid)
    assert_same_figures(hybrid, one)


@pytest.mark.usefixtures("bfloat16_computed")
def test_weights_in_bfloat16_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    """Three steps of all rows in several passes, between which weights hardly move."""
    model = save("llama", tmp_path / "model")
    steps: dict[str, Any] = {"train__max_steps": 3, "train__learning_rate": 1e-9, "train__max_grad_norm": None}
    steps |= {"rows": 25, "eval_rows": 0, "train__global_batch_size": 25, "train__micro_batch_tokens": 100}
    steps |= {"model__dtype": "bfloat16", "lora": None, "train__master_weights": "stochastic_rounding"}
    one, hybrid = (
        small_spec(tmp_path / sharding, model, train__sharding=sharding, **steps) for sharding in ("ddp", "hsdp")
    )
    run_here(one)
    run(hybrid)
    found, wanted = ([line["grad_norm"] for line in metrics(spec)] for spec in (hybrid, one))
    assert len(found) == 3 and found == pytest.approx(wanted, rel=0.01)


@pytest.mark.faults
@pytest.mark.parametrize("method", ["lora", "full"])
def test_interruptions_change_no_bit_and_each_part_is_written_once(method: str, tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rows": 30, "train__num_train_epochs": 2, "train__weight_decay": 0.1}
    whole, cut, replica = (
        spec_in(tmp_path / name, tiny, method, sharding, **changes)
        for name, sharding in (("whole", "hsdp"), ("cut", "hsdp"), ("replica", "ddp"))
    )
    run(whole)
    run(cut, Ordeal(stop_in_step=2))
    run(cut, Ordeal(stop_in_step=5))
    run(cut)
    assert_same_state(final_state(cut), final_state(whole))
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))
    results = {path.name: path.read_bytes() for path in (run_root(whole) / "final").glob("*.safetensors")}
    assert results == {path.name: path.read_bytes() for path in (run_root(cut) / "final").glob("*.safetensors")}
    assert results
    run_here(replica)
    found, wanted = (
        sum(path.stat().st_size for path in (run_root(spec) / "last").rglob("*.safetensors"))
        for spec in (whole, replica)
    )
    assert found == pytest.approx(wanted, rel=0.1), "weights and optimizer once, whatever number of copies there is"


@pytest.mark.faults
def test_a_run_goes_on_in_other_layouts_and_comes_back(tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"lora": None, "rows": 25, "train__learning_rate": 0.001, "train__num_train_epochs": 1}
    changes |= {"train__micro_batch_tokens": 64, "eval_rows": 11}
    one, hybrid, divided = (
        small_spec(tmp_path / name, tiny, train__sharding=sharding, **changes)
        for name, sharding in (("one", "ddp"), ("moved", "hsdp"), ("moved", "fsdp"))
    )
    run_here(one)
    run(hybrid, Ordeal(stop_in_step=1))
    outcome = run_forked(divided, 3, Ordeal(stop_in_step=2))
    assert outcome.codes == [ExitCode.STOPPED] * 3, outcome.said
    run(hybrid, Ordeal(stop_in_step=3))
    assert run_forked(hybrid, 2).codes == [0, 0]
    assert_same_figures(hybrid, one)


def count_what_travels(directory: Path, cache: str, spec: str) -> None:
    """One rank of a run that notes, of each collective over tensors, between which ranks, and of how many passes."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as sent

    from rankzero.engine import worker
    from rankzero.engine.parallel.fsdp import Fsdp

    os.environ["RANKZERO_CACHE"] = cache
    notes: dict[str, Any] = {"passes": 0, "gathered": set(), "summed": [], "steps": 0}
    gather, backward, step = sent.foreach_all_gather, Fsdp.backward, Fsdp.step

    def noted_gather(parameters: Any, group: Any, *rest: Any, **more: Any) -> Any:
        notes["gathered"].add(tuple(dist.get_process_group_ranks(group)))
        return gather(parameters, group, *rest, **more)

    def noted_backward(parallel: Any, loss: torch.Tensor, *, last: bool) -> None:
        notes["passes"] += 1
        backward(parallel, loss, last=last)

    def noted_step(parallel: Any) -> None:
        notes["steps"] += 1
        step(parallel)

    def noted_sum(tensor: torch.Tensor, *rest: Any, group: Any = None, **more: Any) -> Any:
        if group is not None and dist.get_world_size(group) < dist.get_world_size() and tensor.numel() > 1:
            notes["summed"].append(dist.get_process_group_ranks(group))
        return all_reduce(tensor, *rest, group=group, **more)

    all_reduce = dist.all_reduce
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.fsdp._fully_shard._fsdp_param_group.foreach_all_gather", noted_gather)
        patch.setattr("torch.distributed.fsdp._fully_shard._fsdp_collectives.dist.all_reduce", noted_sum)
        patch.setattr(Fsdp, "backward", noted_backward)
        patch.setattr(Fsdp, "step", noted_step)
        worker.run(RunSpec.model_validate_json(spec), RunOptions(log_level="WARNING"))
    notes["gathered"] = sorted(notes["gathered"])
    (directory / f"{os.environ['RANK']}.json").write_text(json.dumps(notes))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_weights_stay_in_their_node_and_gradients_leave_it_once_a_step(method: str, tiny: Path, tmp_path: Path) -> None:
    spec = spec_in(tmp_path / "run", tiny, method, "hsdp", eval_rows=0)
    codes = in_ranks(count_what_travels, 4, tmp_path, str(tmp_path / "cache"), spec.model_dump_json(), a_node=A_NODE)
    assert codes == [0] * 4, (tmp_path / "said-0").read_text()
    for rank in range(4):
        notes = json.loads((tmp_path / f"{rank}.json").read_text())
        node, same_part = rank // A_NODE * A_NODE, [rank % A_NODE, rank % A_NODE + A_NODE]
        assert notes["gathered"] == [[node, node + 1]]
        assert notes["passes"] > notes["steps"] == 4
        assert {tuple(ranks) for ranks in notes["summed"]} == {tuple(same_part)}
        units = {"lora": 2, "full": 3}[method]
        assert len(notes["summed"]) == units * notes["steps"], "blocks, and what is in none where it is trained"


def test_unlike_nodes_are_refused(tiny: Path, tmp_path: Path) -> None:
    outcome = run_forked(spec_in(tmp_path, tiny, "full", "hsdp"), 3, a_node=2)
    assert outcome.codes == [ExitCode.CONFIG] * 3
    assert "as many processes on each node, and there are 1 and 2" in outcome.said


def test_on_one_node_it_is_fsdp_and_nodes_of_one_process_have_a_copy_each(
    full_alone: RunSpec, tiny: Path, tmp_path: Path
) -> None:
    for a_node, sharding in ((2, "fsdp"), (1, "hsdp")):
        spec = spec_in(tmp_path / sharding, tiny, "full", "hsdp")
        outcome = run_forked(spec, 2, a_node=a_node)
        assert outcome.codes == [0, 0] and f", {sharding}" in outcome.said, outcome.said
        assert_same_figures(spec, full_alone)
