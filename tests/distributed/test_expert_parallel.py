"""Experts that lie on several processes: the curve, the weights and the answers are those of one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rankzero.errors import ExitCode, StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import final_weights, log, metrics, one_process_each, run_here, run_root, small_spec, stop_in
from tests.support.tiny import chat_rows, write_jsonl

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5
METHODS: dict[str, dict[str, Any]] = {
    "full": {"lora": None, "train__parts": ["language", "experts", "router"], "train__router_aux_loss_coef": 0.5},
    "frozen experts": {"lora__dropout": 0.1},
    "4 bits": {"lora__dropout": 0.1, "model__quantization": "nf4"},
    "adapters on experts": {"lora__dropout": 0.0, "train__parts": ["language", "experts"]},
}
NAMES = ("loss", "grad_norm", "eval_loss", "router_aux_loss", "expert_load_max", "expert_load_min")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight experts in each layer, of which a token visits two; as wide as a block of 4-bit weights."""
    directory = save("qwen3_moe", tmp_path_factory.mktemp("mixture") / "model")
    config = AutoConfig.from_pretrained(directory)
    config.moe_intermediate_size = 64
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    return directory


def spec_in(root: Path, model: Path, method: str, processes: int = 1, **changes: Any) -> RunSpec:
    """Four steps of up to eight rows, of which some count less, one is longer than a pass, and the last step has one:
    processes have different numbers of passes, and one of them none."""
    small: dict[str, Any] = {"rows": 25, "eval_rows": 5, "train__num_train_epochs": 1, "train__learning_rate": 0.001}
    small |= {"train__micro_batch_tokens": 48, "train__expert_parallel": processes, **METHODS[method], **changes}
    spec = small_spec(root, model, **{"train__sharding": "ddp", **small})
    rows = chat_rows(25)
    for row in rows[::3]:
        row["messages"][1]["loss_weight"] = 0.25
    rows[7]["messages"][1]["content"] = "Say alpha beta gamma delta " * 12
    write_jsonl(Path(str(spec.data.train)), rows)
    prompts = write_jsonl(root / "prompts.jsonl", chat_rows(3))
    return spec.model_copy(update={"eval": spec.eval.model_copy(update={"prompts": str(prompts), "max_new_tokens": 4})})


@pytest.fixture(scope="module")
def one(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """Finished runs of one process, by method."""
    root = tmp_path_factory.mktemp("one")
    return one_process_each(root, lambda directory, method: spec_in(directory, mixture, method), METHODS)


def answers(spec: RunSpec) -> list[tuple[int, str]]:
    lines = (run_root(spec) / "samples.jsonl").read_text().splitlines()
    return [(row["step"], row["text"]) for row in map(json.loads, lines)]


def assert_same_run(found: RunSpec, wanted: RunSpec) -> None:
    for a, b in zip(metrics(found), metrics(wanted), strict=True):
        assert a["tokens"] == b["tokens"] and a["supervised_tokens"] == b["supervised_tokens"]
        assert a.keys() & set(NAMES) == b.keys() & set(NAMES)
        for name in b.keys() & set(NAMES):
            assert a[name] == pytest.approx(b[name], rel=LOSS_TOLERANCE), f"{name} of step {a['step']}"
    expected, result = final_weights(wanted), final_weights(found)
    assert result.keys() == expected.keys() and expected
    for name, tensor in expected.items():
        assert torch.allclose(result[name], tensor, atol=WEIGHT_TOLERANCE, rtol=0), name
    assert answers(found) == answers(wanted)


@pytest.fixture(scope="module")
def two(mixture: Path, one: dict[str, RunSpec], tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """A finished full fine-tune of two processes, which is that of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(tmp_path_factory.mktemp("two-cache")))
        spec = spec_in(tmp_path_factory.mktemp("two"), mixture, "full", 2)
        outcome = run_forked(spec, 2)
    assert outcome.codes == [ExitCode.DONE] * 2, outcome.said
    assert_same_run(spec, one["full"])
    return spec


@pytest.mark.parametrize(
    ("method", "nproc", "changes"),
    [
        ("full", 4, {"train__gradient_checkpointing": True}),
        ("full", 4, {"train__sharding": "fsdp"}),
        ("adapters on experts", 2, {"train__sharding": "fsdp"}),
        ("frozen experts", 2, {"train__gradient_checkpointing": True}),
        ("adapters on experts", 2, {}),
        ("4 bits", 2, {"train__sharding": "fsdp"}),
    ],
)
def test_the_run_is_that_of_one_process(
    method: str,
    nproc: int,
    changes: dict[str, Any],
    tmp_path: Path,
    mixture: Path,
    one: dict[str, RunSpec],
) -> None:
    spec = spec_in(tmp_path, mixture, method, 2, **changes)
    outcome = run_forked(spec, nproc)
    assert outcome.codes == [ExitCode.DONE] * nproc, outcome.said
    assert_same_run(spec, one[method])


def alone(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"train": spec.train.model_copy(update={"expert_parallel": 1})})


def test_a_run_goes_on_bit_for_bit_and_without_it(
    tmp_path: Path, mixture: Path, one: dict[str, RunSpec], two: RunSpec
) -> None:
    """Stopped with the experts on two processes: continued by two, and from a copy of the same checkpoint by one."""
    spec = spec_in(tmp_path, mixture, "full", 2)
    outcome = run_forked(spec, 2, Ordeal(stop_in_step=2))
    assert outcome.codes == [ExitCode.STOPPED] * 2, outcome.said
    copy = tmp_path / "copy"
    shutil.copytree(spec.output_dir, copy)
    outcome = run_forked(spec, 2)
    assert outcome.codes == [ExitCode.DONE] * 2, outcome.said
    assert "continuing from step 2 bit-exactly" in outcome.said
    expected, found = final_weights(two), final_weights(spec)
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    without = alone(spec.model_copy(update={"output_dir": str(copy)}))
    run_here(without, log_level="INFO")
    assert "processes: 2 before, 1 now" in log(without)
    assert_same_run(without, one["full"])


def test_a_run_goes_on_however_its_experts_lie(tmp_path: Path, mixture: Path, one: dict[str, RunSpec]) -> None:
    """Begun by one process, continued by two that spread the rest, and ended by two that have replicas of it."""
    spec = spec_in(tmp_path, mixture, "full", 2)
    with pytest.raises(StoppedError):
        run_here(alone(spec), hooks=stop_in(2))
    spread = spec.model_copy(update={"train": spec.train.model_copy(update={"sharding": "fsdp"})})
    outcome = run_forked(spread, 2, Ordeal(stop_in_step=3))
    assert outcome.codes == [ExitCode.STOPPED] * 2, outcome.said
    assert "processes of all experts: unknown before, 2 now" in outcome.said
    outcome = run_forked(spec, 2)
    assert outcome.codes == [ExitCode.DONE] * 2, outcome.said
    assert "sharding: fsdp before, ddp now" in outcome.said
    assert_same_run(spec, one["full"])
