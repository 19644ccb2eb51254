"""FSDP2 through the product: the same curve and the same result as a replica on each rank, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.errors import ExitCode
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support import vision_families
from tests.support.architectures import save
from tests.support.forked import Ordeal, in_ranks, run_forked
from tests.support.images import picture_rows
from tests.support.runs import metrics, one_process_each, run_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-4
WEIGHT_TOLERANCE = 1e-5
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"lora__dropout": 0.1},
    "full": {"lora": None},
    "nf4": {"lora__dropout": 0.1, "model__quantization": "nf4"},
    "embeddings": {"lora__modules_to_save": ["norm"], "lora__trainable_token_indices": [3, 5, 9]},
}
LAYOUTS = ("one", "ddp", "fsdp")
OTHER_TASKS: dict[str, dict[str, Any]] = {
    "classify": {},
    "vision": {},
    "moe": {},
    "moe in 4 bits": {"model__quantization": "nf4"},
    "dpo with a head of its own": {"lora__modules_to_save": ["lm_head"], "train__gradient_checkpointing": True},
    "dpo of all weights": {"lora": None},
}
IN_BFLOAT16: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama", {"lora": None}),
    "DoRA": ("llama", {"lora__use_dora": True}),
    "DoRA in 4 bits": ("llama", {"lora__use_dora": True, "model__quantization": "nf4"}),
    "experts": ("qwen3_moe", {"train__parts": ["language", "experts", "router"]}),
    "routers in float32": ("ernie4_5_moe", {"lora": None, "train__parts": ["language", "experts", "router"]}),
    "tokens": ("llama", {"lora__modules_to_save": ["norm"], "lora__trainable_token_indices": [3, 5, 9]}),
}

SHOWN_BY_OTHERS = "DoRA"
"""In 4 bits it is DoRA, too."""


def run(spec: RunSpec, ordeal: Ordeal | None = None) -> None:
    """Two ranks run to the end, or to a stop."""
    outcome = run_forked(spec, ordeal=ordeal)
    expected = ExitCode.DONE if ordeal is None else ExitCode.STOPPED
    assert outcome.codes == [expected, expected], outcome.said


def kill_in_save(spec: RunSpec, directory: Path) -> None:
    """Let a rank be killed while step 5 is saved: with adapters the one that writes them, else the other. Its peer
    leaves by itself, and says why."""
    directory.mkdir()
    if spec.lora is not None:
        codes = run_forked(spec, ordeal=Ordeal(kill_in_save_of=5)).codes
        assert codes == [-signal.SIGKILL, ExitCode.SERVICE]
    else:
        codes = in_ranks(die_with_its_part_written, 2, directory, os.environ["RANKZERO_CACHE"], spec.model_dump_json())
        assert codes == [ExitCode.SERVICE, -signal.SIGKILL]


def die_with_its_part_written(_directory: Path, cache: str, spec: str) -> None:
    """One rank of a run; rank 1 dies when its part of step 5 is on the disk and nobody has heard of it."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    from rankzero.engine import worker

    write_data = HuggingFaceStorageWriter.write_data

    def write_and_die(writer: Any, *rest: Any) -> Any:
        written = write_data(writer, *rest)
        written.wait()
        if ".tmp-step-5" in str(writer.path) and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    os.environ["RANKZERO_CACHE"] = cache
    HuggingFaceStorageWriter.write_data = write_and_die
    worker.run(RunSpec.model_validate_json(spec), RunOptions(log_level="WARNING"))


def spec_in(root: Path, tiny: Path, method: str, sharding: str = "ddp", **changes: Any) -> RunSpec:
    """Four steps of up to eight rows in passes of a few: ranks have different numbers, and the last step has one."""
    small: dict[str, Any] = {"rows": 25, "eval_rows": 11, "train__num_train_epochs": 1, "train__learning_rate": 0.001}
    small |= {"train__micro_batch_tokens": 64, **METHODS[method], **changes}
    return small_spec(root, tiny, train__sharding=sharding, **small)


@pytest.fixture(scope="module")
def full_alone(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """The finished run of all weights in one process."""
    root = tmp_path_factory.mktemp("full-one")
    return one_process_each(root, lambda directory, method: spec_in(directory, tiny, method), ["full"])["full"]


@pytest.fixture(scope="module")
def runs(tiny: Path, full_alone: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], RunSpec]:
    """Finished runs by method or task and layout: one process, two with ddp where it is a method, two with fsdp."""
    root = tmp_path_factory.mktemp("layouts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        specs = {
            (method, layout): spec_in(root / f"{method}-{layout}", tiny, method, "fsdp" if layout == "fsdp" else "ddp")
            for method in METHODS
            for layout in LAYOUTS
        }
        for task, changes in OTHER_TASKS.items():
            how: dict[str, Any] = {"train__gradient_checkpointing": task == "vision", **changes}
            # Margins may be close to 0, which another number of processes rounds otherwise.
            for layout in ("ddp" if task.startswith("dpo") else "one", "fsdp"):
                specs[task, layout] = task_spec(
                    task.partition(" ")[0],
                    root / f"{task}-{layout}",
                    dropout=0.1,
                    rows=25,
                    train__num_train_epochs=1,
                    train__padding_free=True if (task, layout) == ("vision", "fsdp") else "auto",
                    **{**how, "train__sharding": "fsdp" if layout == "fsdp" else "ddp"},
                )
        del specs["full", "one"]
        for (_, layout), spec in specs.items():
            (run_here if layout == "one" else run)(spec)
    return {**specs, ("full", "one"): full_alone}


@pytest.mark.parametrize("method", [*METHODS, *OTHER_TASKS])
def test_the_curve_is_the_same_in_every_layout(method: str, runs: dict[tuple[str, str], RunSpec]) -> None:
    """Also with passes that have no image, with images end to end, and where ranks' rows go to different experts."""
    first, *others = (metrics(runs[method, layout]) for layout in LAYOUTS if (method, layout) in runs)
    assert len(first) == 4 and len(others) == (2 if method in METHODS else 1)
    for other in others:
        for found, wanted in zip(other, first, strict=True):
            assert found["tokens"] == wanted["tokens"] and found.keys() == wanted.keys()
            for name in found.keys() & {
                "loss",
                "grad_norm",
                "eval_loss",
                "accuracy",
                "reward_margin",
                "train_reward_margin",
            }:
                assert found[name] == pytest.approx(wanted[name], rel=LOSS_TOLERANCE), f"{name}, step {found['step']}"


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_the_same_and_others_can_load_it(
    method: str, runs: dict[tuple[str, str], RunSpec], tiny: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    finals = [run_root(runs[method, layout]) / "final" for layout in ("one", "fsdp")]
    one, fsdp = (
        {name: tensor for path in final.glob("*.safetensors") for name, tensor in load_file(path).items()}
        for final in finals
    )
    assert one.keys() == fsdp.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, fsdp[name], atol=WEIGHT_TOLERANCE, rtol=0), name
    assert sorted(path.name for path in finals[0].iterdir()) == sorted(path.name for path in finals[1].iterdir())
    for name in ("config.json", "adapter_config.json"):
        if (finals[0] / name).exists():
            assert settings(finals[0] / name) == settings(finals[1] / name)
    logits = []
    for final in finals:
        model: Any = AutoModelForCausalLM.from_pretrained(final if method == "full" else tiny)
        model = model if method == "full" else PeftModel.from_pretrained(model, final)
        with torch.no_grad():
            logits.append(model.eval()(input_ids=torch.arange(20)[None]).logits)
    assert torch.allclose(*logits, atol=WEIGHT_TOLERANCE, rtol=0)


def settings(path: Path) -> dict[str, Any]:
    """A JSON object; peft writes names in no order."""
    value = json.loads(path.read_text())
    return {key: sorted(entry) if isinstance(entry, list) else entry for key, entry in value.items()}


@pytest.mark.parametrize("method", METHODS)
def test_checkpoints_unpickle_nothing_and_full_ones_are_spread(
    method: str, runs: dict[tuple[str, str], RunSpec]
) -> None:
    last, replica = (run_root(runs[method, layout]) / "last" for layout in ("fsdp", "ddp"))
    files = [path for path in last.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    if method != "full":
        names = {path.relative_to(last).as_posix() for path in files}
        assert names == {path.relative_to(replica).as_posix() for path in replica.rglob("*") if path.is_file()}
        return
    sizes = [path.stat().st_size for path in (last / "sharded").iterdir()]
    assert len(sizes) == 2 and min(sizes) > 0.9 * max(sizes), "each rank writes its half"
    whole = sum(path.stat().st_size for path in replica.rglob("*.safetensors"))
    assert sum(sizes) == pytest.approx(whole, rel=0.1), "weights and optimizer once"


@pytest.mark.usefixtures("bfloat16_computed")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == SHOWN_BY_OTHERS else kind for kind in IN_BFLOAT16]
)
def test_in_bfloat16_the_same_rows_have_the_same_gradients_from_the_first_pass_on(kind: str, tmp_path: Path) -> None:
    """Three steps of all rows each, between which weights hardly move; the same as in one process."""
    name, changes = IN_BFLOAT16[kind]
    model = save(name, tmp_path / "model")
    steps: dict[str, Any] = {"train__max_steps": 3, "train__learning_rate": 1e-9, "train__max_grad_norm": None}
    steps |= {"rows": 25, "eval_rows": 0, "train__global_batch_size": 25, "train__micro_batch_tokens": 3000}
    steps |= {"model__dtype": "bfloat16", "lora__dropout": 0.0, **changes}
    one, fsdp = (
        small_spec(tmp_path / sharding, model, train__sharding=sharding, **steps) for sharding in ("ddp", "fsdp")
    )
    run_here(one)
    run(fsdp)
    found, wanted = ([line["grad_norm"] for line in metrics(spec)] for spec in (fsdp, one))
    assert len(found) == 3
    assert found == pytest.approx(found[:1] * 3, rel=0.01)
    assert found == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("family", ["internvl", "smolvlm"])
def test_a_rank_without_rows_asks_for_the_weights_that_others_ask_for(family: str, tmp_path: Path) -> None:
    """One row a step for two ranks; what the tower says of a picture is an output of these models, beside logits."""
    model = vision_families.save(family, tmp_path / "model")
    rows = write_jsonl(tmp_path / "pictures/rows.jsonl", picture_rows(tmp_path / "pictures", 6, every=2))
    changes: dict[str, Any] = {"train__parts": ["vision_tower"], "lora__dropout": 0.0, "data__train": str(rows)}
    changes |= {"train__global_batch_size": 1, "train__max_steps": 6, "lora__target_modules": "auto"}
    one, fsdp = (
        small_spec(tmp_path / sharding, model, eval_rows=0, train__sharding=sharding, **changes)
        for sharding in ("ddp", "fsdp")
    )
    run_here(one)
    run(fsdp)
    found, wanted = ([(line["loss"], line["grad_norm"]) for line in metrics(spec)] for spec in (fsdp, one))
    assert any(norm > 0 for _, norm in wanted)
    for step, expected in zip(found, wanted, strict=True):
        assert step == pytest.approx(expected, rel=LOSS_TOLERANCE)


@pytest.mark.faults
@pytest.mark.parametrize("method", ["lora", "full"])
def test_three_interruptions_change_no_bit(method: str, tiny: Path, tmp_path: Path) -> None:
    """A stop, a SIGKILL of one rank in the middle of a save, and a stop again; adapters with dropout."""
    changes: dict[str, Any] = {"rows": 30, "eval_rows": 7, "train__num_train_epochs": 3, "train__weight_decay": 0.1}
    changes |= {"lora__dropout": 0.1} if method == "lora" else {}
    whole, cut = (spec_in(tmp_path / name, tiny, method, "fsdp", **changes) for name in ("whole", "cut"))
    run(whole)
    run(cut, Ordeal(stop_in_step=2))
    kill_in_save(cut, tmp_path / "killed")
    checkpoints = run_root(cut) / "checkpoints"
    assert list(checkpoints.glob(".tmp-step-5-*/**/*.safetensors")), "killed while it was being written"
    assert not (checkpoints / "step-5").exists()
    run(cut, Ordeal(stop_in_step=7))
    run(cut)
    assert_same_state(final_state(cut), final_state(whole))
    assert (run_root(cut) / "last/rng-rank-1.json").read_text() == (
        run_root(whole) / "last/rng-rank-1.json"
    ).read_text()
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))
    results = {path.name: path.read_bytes() for path in (run_root(whole) / "final").glob("*.safetensors")}
    assert results == {path.name: path.read_bytes() for path in (run_root(cut) / "final").glob("*.safetensors")}
    assert results


def test_what_goes_with_it(tiny: Path, tmp_path: Path) -> None:
    """Checkpointed activations, weights that are kept in the machine's memory."""
    spec = spec_in(tmp_path, tiny, "full", "fsdp", train__gradient_checkpointing=True, train__offload="all")
    outcome = run_forked(spec)
    assert outcome.codes == [0, 0], outcome.said
    assert outcome.report is not None and outcome.report["world_size"] == 2 and outcome.report["steps"] == 4


def some_targets_at_a_time(directory: Path, cache: str, spec: str) -> None:
    """One rank of a run that computes logits of three targets at once; notes of how many at most."""
    from rankzero.engine import worker
    from rankzero.model import chunked_loss

    os.environ["RANKZERO_CACHE"] = cache
    logits, counts = chunked_loss.Tail._logits, []

    def noted(tail: Any, hidden_NH: torch.Tensor, output: Any) -> torch.Tensor:
        counts.append(len(hidden_NH))
        return logits(tail, hidden_NH, output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_loss, "targets_at_once", lambda *_: 3)
        patch.setattr(chunked_loss.Tail, "_logits", noted)
        worker.run(RunSpec.model_validate_json(spec), RunOptions(log_level="WARNING"))
    (directory / f"{os.environ['RANK']}.json").write_text(json.dumps(counts))


@pytest.mark.parametrize("method", ["full", "head saved whole"])
@pytest.mark.parametrize("sharding", ["fsdp", *(pytest.param(f"zero{n}", marks=pytest.mark.deepspeed) for n in (2, 3))])
def test_the_loss_of_some_targets_at_a_time_is_that_of_all(
    method: str, sharding: str, full_alone: RunSpec, tiny: Path, tmp_path: Path
) -> None:
    """With the head trained; evaluations and passes without a row included."""
    changes = {} if method == "full" else {"lora__modules_to_save": ["lm_head"]}
    spec = spec_in(tmp_path / "parts", tiny, "full" if method == "full" else "lora", sharding, **changes)
    cache = str(tmp_path / "cache")
    codes = in_ranks(some_targets_at_a_time, 2, tmp_path, cache, spec.model_dump_json())
    assert codes == [0, 0], (tmp_path / "said-0").read_text()
    for rank in range(2):
        counts = json.loads((tmp_path / f"{rank}.json").read_text())
        if (method, sharding) == ("head saved whole", "zero3"):  # the head and its copy are gathered one by one
            assert counts == []
        else:
            assert max(counts) == 3 and len(counts) > 20
    whole = full_alone
    if method != "full":
        whole = spec_in(tmp_path / "whole", tiny, "lora", **changes)
        run_here(whole)
    for found, wanted in zip(metrics(spec), metrics(whole), strict=True):
        for name in found.keys() & {"loss", "grad_norm", "eval_loss"}:
            assert found[name] == pytest.approx(wanted[name], rel=LOSS_TOLERANCE), f"{name}, step {found['step']}"


@pytest.mark.faults
def test_preferences_of_all_weights_go_on_from_a_stop(tmp_path: Path) -> None:
    """Compared with the weights that the run began with, which no checkpoint holds."""
    small: dict[str, Any] = {"rows": 24, "train__sharding": "fsdp", "train__num_train_epochs": 1}
    whole, cut = (task_spec("dpo in full", tmp_path / name, **small) for name in ("whole", "cut"))
    run(whole)
    run(cut, Ordeal(stop_in_step=2))
    run(cut)
    assert len(metrics(whole)) == 3 and without_clock(metrics(cut)) == without_clock(metrics(whole))
    assert_same_state(final_state(cut), final_state(whole))
