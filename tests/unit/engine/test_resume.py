"""A run that is stopped anywhere and continued by the same command ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero import machine
from rankzero.data.prompts import Prompt
from rankzero.data.rows.conversation import Message
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.hooks import Hooks
from rankzero.engine.inputs import read_inputs
from rankzero.engine.resume import check_same_run, how_it_continues, refuse_before_gpus, refuse_different_inputs
from rankzero.errors import ConfigError, ExitCode, RankzeroError, StoppedError
from rankzero.launch.node import preparation
from rankzero.launch.node.output import Output
from rankzero.launch.node.pid1 import StopWish
from rankzero.launch.node.settings import NodeSettings
from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.same_run import Differences, others_run, spec_changes, with_way_out
from rankzero.run_dir.setting import settled
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import LoraSpec, RunSpec
from tests.support import runs
from tests.support.runs import log, metrics, run_here, run_root, stop_in
from tests.support.seeds import SEEDS
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

pytestmark = pytest.mark.faults

small_spec = partial(runs.small_spec, train__micro_batch_tokens=256)
"""Two or three passes a step: of five each of the many runs here would take a fifth longer."""
CLOCK = ("seconds", "wall_seconds")


def final_state(spec: RunSpec) -> dict[str, Any]:
    """Everything in the last checkpoint that is not a clock."""
    last = run_root(spec) / "last"
    trainer = json.loads((last / "trainer.json").read_text())
    trainer["position"] = {k: v for k, v in trainer["position"].items() if k not in CLOCK}
    tensors = {f"{p.parent.name}/{p.name}:{k}": v for p in last.rglob("*.safetensors") for k, v in load_file(p).items()}
    return {"trainer": trainer, "rng": (last / "rng-rank-0.json").read_text(), "tensors": tensors}


def assert_same_state(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["trainer"] == b["trainer"]
    assert a["rng"] == b["rng"]
    assert a["tensors"].keys() == b["tensors"].keys()
    for name, tensor in a["tensors"].items():
        assert torch.equal(tensor, b["tensors"][name]), name


CLOCKS = {"time", "tokens_per_second", "peak_memory_bytes", "slowest_rank", "slowest_rank_slowdown", "straggler"}


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("whole")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = small_spec(root, tiny)
        run_here(spec)
    return spec


STOPS = range(1, 12) if SEEDS > 1 else (1, 4, 5, 8, 11)
"""Kills in every step are in tests/faults."""


@pytest.mark.parametrize("step", STOPS)
def test_stopped_at_every_step_and_resumed_is_bit_exact(
    step: int, tmp_path: Path, tiny: Path, uninterrupted: RunSpec
) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError) as stopped:
        run_here(spec, hooks=stop_in(step))
    assert stopped.value.exit_code == ExitCode.STOPPED
    assert len(metrics(spec)) == step
    report = run_here(spec)
    assert report["steps"] == 12
    assert_same_state(final_state(spec), final_state(uninterrupted))
    assert without_clock(metrics(spec)) == without_clock(metrics(uninterrupted))
    assert (run_root(spec) / "final/adapter_model.safetensors").read_bytes() == (
        run_root(uninterrupted) / "final/adapter_model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_fine_tune_resumes_bit_exactly(
    dtype: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_FEATURES_VARIABLE, "avx512_bf16")
    changes = {"lora": None, "train__weight_decay": 0.1, "train__learning_rate": 0.001, "model__dtype": dtype}
    whole = small_spec(tmp_path / "a", tiny, **changes)
    run_here(whole)
    spec = small_spec(tmp_path / "b", tiny, **changes)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    run_here(spec)
    assert_same_state(final_state(spec), final_state(whole))


def test_a_finished_run_is_not_trained_again(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    first = run_here(spec)
    monkeypatch.setattr("rankzero.engine.worker.build_session", lambda *_: pytest.fail("loaded the model"))
    assert run_here(spec) == first


def test_a_finished_training_without_result_only_writes_the_result(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    run_here(spec)
    (run_root(spec) / "report.json").unlink()
    before = metrics(spec)
    assert run_here(spec)["steps"] == 4
    assert metrics(spec) == before


def test_a_damaged_checkpoint_is_skipped_loudly(
    tmp_path: Path,
    tiny: Path,
    uninterrupted: RunSpec,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(8))
    steps = sorted(int(path.name.split("-")[1]) for path in (run_root(spec) / "checkpoints").iterdir())
    newest = run_root(spec) / f"checkpoints/step-{steps[-1]}/model/adapter_model.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1  # one bit
    newest.write_bytes(damaged)
    report = run_here(spec)
    assert f"step-{steps[-1]} is damaged" in capfd.readouterr().err
    assert report["steps"] == 12
    assert_same_state(final_state(spec), final_state(uninterrupted))


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    stale = run_root(spec) / "checkpoints/.tmp-step-2-0123"
    stale.mkdir(parents=True)
    (stale / "optimizer.safetensors").write_bytes(b"half")
    run_here(spec)
    assert not stale.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"train__learning_rate": 0.5}, "train.learning_rate"),
        ({"lora__alpha": 8}, "lora.alpha"),
        ({"data__max_length": 64}, "data.max_length"),
        ({"train__seed": 1}, "train.seed"),
    ],
)
def test_another_runs_directory_is_refused_with_the_override_named(
    change: dict[str, Any], field: str, tmp_path: Path, tiny: Path
) -> None:
    run_here(small_spec(tmp_path, tiny, train__num_train_epochs=1))
    before = {p: p.read_bytes() for p in run_root(small_spec(tmp_path, tiny)).rglob("*") if p.is_file()}
    other = small_spec(tmp_path, tiny, train__num_train_epochs=1, **change)
    with pytest.raises(ConfigError) as refused:
        run_here(other)
    assert field in str(refused.value)
    assert f"--allow-change {field}" in str(refused.value)
    kept = {p: p.read_bytes() for p in before}
    assert all(kept[p] == before[p] for p in before if p.name != "lease.json")


@pytest.mark.parametrize("resume", ["refuse", "new", "continue"])
def test_a_checkpoint_of_a_spec_that_nobody_here_reads_is_another_runs(resume: str, tmp_path: Path, tiny: Path) -> None:
    """Of a later version, which knows a field that this one does not."""
    spec = small_spec(tmp_path, tiny, train__max_steps=2, resume=resume)
    manifest = a_manifest(spec)
    manifest["spec"]["of_the_future"] = 1
    problems, differences = spec_changes(manifest, spec, ("data", "spec"))
    assert [problem.what for problem in problems] == [
        "it was made by a version of rankzero whose specs this one does not read"
    ]
    assert not differences.accepted and others_run(manifest, None, spec, ()) == problems
    (said, *_) = with_way_out(problems, RunDir(run_root(spec)), spec, manifest)
    assert "holds checkpoints of another run" in said.what
    assert with_way_out(problems, "s3://b/r", spec, {"spec": None})[0].where == "s3://b/r"


def test_what_a_checkpoint_cannot_become_is_refused_even_where_it_is_allowed(tmp_path: Path, tiny: Path) -> None:
    run_here(small_spec(tmp_path, tiny, train__num_train_epochs=1))
    wider = small_spec(tmp_path, tiny, train__num_train_epochs=1, lora__r=8)
    with pytest.raises(ConfigError, match="lora.r: 4 in the checkpoint, 8 now") as refused:
        run_here(wider, allow_changes=("lora.r",))
    assert "--allow-change" not in str(refused.value)


def test_other_passes_are_not_called_bit_exact(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    with pytest.raises(StoppedError):
        run_here(spec, log_level="INFO", hooks=stop_in(1))
    with pytest.raises(StoppedError):
        run_here(spec, log_level="INFO", hooks=stop_in(2))
    assert "continuing from step 1 bit-exactly" in log(spec)
    run_here(small_spec(tmp_path, tiny, train__num_train_epochs=1, train__micro_batch_tokens=64), log_level="INFO")
    said = "continuing from step 2 with the same weights, optimizer and rows, not bit-exactly: "
    assert f"{said}tokens of a pass: 256 before, 64 now\n" in log(spec)


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN")
def test_another_maker_of_the_cpu_is_not_called_bit_exact(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx2 sse4a avx512f")
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(1))
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx2 avx512f")
    run_here(spec, log_level="INFO")
    assert "not bit-exactly: float32 by oneDNN: yes before, no now\n" in log(spec)


def test_products_of_bfloat16_made_otherwise_are_not_called_bit_exact(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an older version began the run; in float32 it matters nothing."""
    for dtype in ("bfloat16", "float32"):
        spec = small_spec(tmp_path / dtype, tiny, train__num_train_epochs=1, model__dtype=dtype)
        monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx512_bf16 avx512_fp16 amx_bf16")
        with pytest.raises(StoppedError):
            run_here(spec, hooks=stop_in(1))
        monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx512_bf16 avx512_fp16")
        run_here(spec, log_level="INFO")
        assert ("bfloat16 in float32: unknown before, yes now" in log(spec)) == (dtype == "bfloat16")


def test_another_cpu_is_not_called_bit_exact(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls all of these AVX2; how MKL and oneDNN cut a product into blocks is the CPU's own."""
    cpu = "vendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nflags\t\t: avx2 fma\n"
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(cpu.format("GenuineIntel", 6, 79))
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(1))
    (tmp_path / "cpuinfo").write_text(cpu.format("AuthenticAMD", 25, 1))
    run_here(spec, log_level="INFO")
    before, now = "GenuineIntel family 6 model 79, avx2 fma", "AuthenticAMD family 25 model 1, avx2 fma"
    assert f"not bit-exactly: CPU: {before} before, {now} now\n" in log(spec)


def test_processes_that_have_other_files_are_refused_with_all_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = {"model": "m", "data": "d", "eval_data": "e"}
    prompt, other = (Prompt((Message("user", text),)) for text in ("hello", "bye"))

    def beside(**theirs: Any) -> None:
        def everyones(own: Any) -> list[Any]:
            return [own, {**own, **theirs}]

        monkeypatch.setattr("rankzero.engine.resume.gather_objects", everyones)

    beside()
    refuse_different_inputs(meta, (prompt,))
    beside(**{"data.eval": "other", "eval.prompts": (other,)})
    with pytest.raises(ConfigError) as refused:
        refuse_different_inputs(meta, (prompt,))
    assert [problem.where for problem in refused.value.problems] == ["data.eval", "eval.prompts"]


def a_manifest(spec: RunSpec, **changes: Any) -> dict[str, Any]:
    same = dict.fromkeys(("model", "tokenizer", "data", "eval_data", "dtype"), "same")
    return {"spec": spec.model_dump(mode="json"), "labels": None, **same, **changes}


def test_other_classes_and_a_base_without_effect_are_refused_even_where_they_are_allowed(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}})
    now, directory = a_manifest(spec), RunDir(tmp_path)
    everything = ("model", "data", "labels")
    for change, words in (({"labels": ["a", "b"]}, "the classes were a, b"), ({"model": "other"}, "no effect")):
        with pytest.raises(ConfigError, match=words):
            check_same_run(a_manifest(spec, **change), now, spec, directory, everything)
    with_adapters = spec.model_copy(update={"lora": LoraSpec()})
    found = check_same_run(
        a_manifest(with_adapters, model="other"), a_manifest(with_adapters), with_adapters, directory, everything
    )
    assert found.accepted == ("model",)


def test_a_place_that_may_change_is_allowed_other_content(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}, "lora": {}})
    before, now = a_manifest(spec), a_manifest(spec, data="other", model="other")
    found = check_same_run(before, now, spec, RunDir(tmp_path), ("data.train", "model.revision"))
    assert found.accepted == ("model", "data")
    with pytest.raises(ConfigError) as refused:
        check_same_run(before, now, spec, RunDir(tmp_path), ("data.train",))
    assert [problem.where for problem in refused.value.problems[1:]] == ["model"]


@pytest.mark.parametrize(("held_out", "said"), [({"fraction": 0.2}, True), ("e", False)])
def test_rows_that_are_held_out_otherwise_may_be_the_same_files(held_out: Any, said: bool, tmp_path: Path) -> None:
    """An upgrade may hold out other rows, which nobody can undo."""
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t", "eval": held_out}})
    before, now = a_manifest(spec), a_manifest(spec, data="other", eval_data="other")
    with pytest.raises(ConfigError) as refused:
        check_same_run(before, now, spec, RunDir(tmp_path), ())
    assert ("held other rows out" in str(refused.value)) is said
    assert "--allow-change data" in str(refused.value) and "--allow-change eval_data" in str(refused.value)
    found = check_same_run(before, now, spec, RunDir(tmp_path), ("data", "eval_data"))
    assert found.accepted == ("data", "eval_data")


@pytest.mark.parametrize("identity", ["model", "data", "eval_data"])
def test_what_an_earlier_version_knew_otherwise_is_never_called_exact(tmp_path: Path, identity: str) -> None:
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}, "lora": {}})
    now, before = a_manifest(spec, **{identity: "rows:1"}), a_manifest(spec)
    found = check_same_run(before, now, spec, RunDir(tmp_path), (), {"data", "eval_data"})
    assert len(found.unsure) == len(found.notices) == 1 and not found.accepted
    assert "not bit-exactly" in how_it_continues(3, (), [], found.unsure, fixed_order=True)
    if identity != "model":  # whose rows are not as many, or nobody knows
        with pytest.raises(ConfigError, match=f"--allow-change {identity}"):
            check_same_run(before, now, spec, RunDir(tmp_path), ())


def test_what_lies_elsewhere_and_is_the_same_is_no_difference(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": {"name": "/a/m"}, "data": {"train": "/a/t"}, "lora": {}})
    moved = RunSpec.model_validate({"model": {"name": "/b/m"}, "data": {"train": "/b/t"}, "lora": {}})
    assert check_same_run(a_manifest(spec), a_manifest(moved), moved, RunDir(tmp_path), ()) == Differences()
    before, now = a_manifest(spec, data="1"), a_manifest(moved, data="rows:1")
    found = check_same_run(before, now, moved, RunDir(tmp_path), (), {"data"})
    place, taken = found.notices
    assert place.startswith("data.train: ") and "taken for the same" in taken


@pytest.mark.parametrize("identity", ["model", "tokenizer", "data", "eval_data", "dtype", "labels"])
@pytest.mark.parametrize("at", ["the same place", "another place"])
def test_resume_new_is_a_way_out_where_it_leads_elsewhere(tmp_path: Path, identity: str, at: str) -> None:
    """Not where content changed in place: settings alone decide the name, and it would be refused again."""
    value = {"name": "r", "model": {"name": "m"}, "lora": {}, "output_dir": str(tmp_path)}
    spec = RunSpec.model_validate({**value, "data": {"train": "t"}})
    before = spec if at == "the same place" else RunSpec.model_validate({**value, "data": {"train": "u"}})
    run_dir = RunDir(tmp_path / "r")
    (run_dir.root / "staged").mkdir(parents=True)
    run_dir.checkpoints.mkdir()
    manifest = a_manifest(before, **{identity: ["a", "b"] if identity == "labels" else "another"}, step=5)
    commit_directory(run_dir.root / "staged", run_dir.checkpoint(5), manifest)
    with pytest.raises(ConfigError) as refused:
        check_same_run(manifest, a_manifest(spec), spec, run_dir, ())
    leads_elsewhere = settled(spec.model_copy(update={"resume": "new"})).name != spec.name
    assert ("resume=new" in str(refused.value)) is leads_elsewhere is (at == "another place")


@pytest.mark.parametrize(
    ("accepted", "differences", "fixed_order", "words"),
    [
        ((), [], True, "continuing from step 5 bit-exactly"),
        ((), [], False, "from the same state to the last bit; this device may round the steps to come differently"),
        ((), ["processes: 2 before, 1 now"], True, "same weights, optimizer and rows, not bit-exactly: processes: 2"),
        (
            ("data",),
            ["processes: 2 before, 1 now"],
            True,
            "other settings than it was begun with, not bit-exactly: data",
        ),
    ],
)
def test_bit_exactly_is_said_only_where_it_is(
    accepted: tuple[str, ...], differences: list[str], fixed_order: bool, words: str
) -> None:
    assert words in how_it_continues(5, accepted, differences, fixed_order=fixed_order)


def test_changed_data_is_refused_unless_allowed(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    spec = small_spec(tmp_path, tiny, rows=29)
    with pytest.raises(ConfigError, match="--allow-change data"):
        run_here(spec)
    assert run_here(spec, allow_changes=("data",))["steps"] == 12


def test_a_changed_byte_of_the_base_is_refused_unless_allowed(tmp_path: Path) -> None:
    """Far behind the file's header, in a weight that is there before and after."""
    model = tiny_model(tmp_path / "model", hidden=256)
    spec = small_spec(tmp_path, model, eval_rows=0, train__max_steps=3)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(1))
    weights = model / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    place = len(changed) - (512 << 10)
    assert place > 4 << 20
    changed[place] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigError, match="the base model's weights changed since the checkpoint") as refused:
        run_here(spec)
    assert "--allow-change model" in str(refused.value)
    assert run_here(spec, allow_changes=("model",))["steps"] == 3


def test_a_learning_rate_that_may_change_does(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    run_here(small_spec(tmp_path, tiny, train__learning_rate=0.001), allow_changes=("train.learning_rate",))
    rates = [row["learning_rate"] for row in metrics(spec)]
    assert rates == pytest.approx(
        [0.01 * (12 - s) / 12 for s in range(6)] + [0.001 * (12 - s) / 12 for s in range(6, 12)]
    )


def test_a_finished_run_goes_on_for_more_epochs(tmp_path: Path, tiny: Path) -> None:
    run_here(small_spec(tmp_path, tiny, train__num_train_epochs=1))
    longer = small_spec(tmp_path, tiny, train__num_train_epochs=2)
    with pytest.raises(ConfigError) as refused:
        run_here(longer)
    assert "another run" not in str(refused.value)
    assert "--allow-change train.num_train_epochs" in str(refused.value)
    with pytest.raises(StoppedError):
        run_here(longer, allow_changes=("train.num_train_epochs",), log_level="INFO", hooks=stop_in(6))
    assert not (run_root(longer) / "report.json").exists(), "it is of another end"
    assert run_here(longer)["steps"] == 8, "what was allowed once is the run from then on"
    rates = [row["learning_rate"] for row in metrics(longer)]
    assert rates == pytest.approx([0.01 * (4 - s) / 4 for s in range(4)] + [0.01 * (8 - s) / 8 for s in range(4, 8)])
    assert "continuing from step 4" in (said := log(longer))
    assert "not bit-exactly" in said


def test_harmless_changes_pass(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    changed = small_spec(tmp_path, tiny, checkpoint__every=3, checkpoint__keep=1, tracking__tensorboard=True)
    assert run_here(changed)["steps"] == 12


def test_a_flag_file_stops_the_run(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny)

    def touch_flag(step: int, _facts: dict[str, Any]) -> None:
        if step == 3:
            (run_root(spec) / "stop").touch()

    with pytest.raises(StoppedError, match="saved at step 4"):
        run_here(spec, hooks=Hooks(step_ends=touch_flag))
    assert not (run_root(spec) / "stop").exists()


def test_preparation_finds_both_conflicts_with_a_finished_run(tmp_path: Path, uninterrupted: RunSpec) -> None:
    """Before a GPU is asked for: the spec's and the data's, with a name to take instead."""
    error = prepared(other(uninterrupted, tmp_path))
    assert isinstance(error, ConfigError)
    assert [problem.where for problem in error.problems[1:]] == ["train.learning_rate", "data"]
    assert "name=small-" in error.problems[0].hint


def test_preparation_of_what_may_go_on_is_fine(tmp_path: Path, uninterrupted: RunSpec) -> None:
    """What the preparation's process asks for, here without that process."""
    changed, allowed = other(uninterrupted, tmp_path), RunOptions(allow_changes=("train.learning_rate", "data"))
    for spec, options in (
        (uninterrupted, RunOptions()),
        (changed.model_copy(update={"resume": "continue"}), RunOptions()),
        (changed, allowed),
    ):
        refuse_before_gpus(RunDir(run_root(spec)), spec, read_inputs(spec, World(), Ledger()), options)
    with pytest.raises(ConfigError, match="train.learning_rate"):
        refuse_before_gpus(RunDir(run_root(changed)), changed, read_inputs(changed, World(), Ledger()), RunOptions())


def test_another_setting_goes_on_where_that_is_said(tmp_path: Path, uninterrupted: RunSpec) -> None:
    shutil.copytree(run_root(uninterrupted), tmp_path / "runs" / "small", symlinks=True)
    train = uninterrupted.train.model_copy(update={"num_train_epochs": 4.0})
    changed = {"train": train, "output_dir": str(tmp_path / "runs")}
    with pytest.raises(ConfigError, match="num_train_epochs"):
        run_here(uninterrupted.model_copy(update=changed))
    report = run_here(uninterrupted.model_copy(update={**changed, "resume": "continue"}))
    assert report["steps"] == 16


def other(spec: RunSpec, folder: Path) -> RunSpec:
    """The same with another learning rate and other rows in its file."""
    rows = write_jsonl(folder / "other.jsonl", chat_rows(29))
    return spec.model_copy(
        update={
            "train": spec.train.model_copy(update={"learning_rate": 0.02}),
            "data": spec.data.model_copy(update={"train": str(rows)}),
        }
    )


def prepared(spec: RunSpec) -> RankzeroError | None:
    """What the preparation's pod ends with."""
    return preparation.run(spec, NodeSettings(run="r", options=RunOptions()), Output(Redactor({})), StopWish())
