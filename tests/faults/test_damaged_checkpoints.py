"""Bytes that changed on disk: never continued from, never counted as kept, never shipped as the result."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rankzero.engine import finish, train
from rankzero.errors import StoppedError, StorageError
from rankzero.run_dir.atomic import verify_directory
from rankzero.run_dir.intact import verify_result
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import find_adapter, find_result
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in

pytestmark = pytest.mark.faults

ADAPTER = "model/adapter_model.safetensors"


def flip(path: Path) -> None:
    """Change one bit."""
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 64
    path.write_bytes(damaged)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def stop(spec: RunSpec, step: int) -> None:
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(step))


def spoil(patch: pytest.MonkeyPatch, damage: Any, *steps: int | None) -> None:
    """Damage checkpoints between the last step and the result; None stands for the best one."""
    export = finish.export

    def damaged(session: Any, run: Any, inputs: Any, position: Any) -> int:
        for step in steps:
            directory = run.run_dir.checkpoint(position.best_step if step is None else step)
            damage(directory / ADAPTER)
        return export(session, run, inputs, position)

    patch.setattr(finish, "export", damaged)


def test_new_checkpoints_are_kept_however_many_newer_ones_are_damaged(
    tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2, checkpoint__keep=2)
    stop(spec, 7)  # steps 6 and 7 are there
    run_dir = RunDir(run_root(spec))
    assert run_dir.committed_steps() == [7, 6]
    keep_all = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2, checkpoint__keep=9)
    stop(keep_all, 11)
    assert run_dir.committed_steps() == [11, 10, 8, 7, 6]
    for step in (11, 10, 8):
        flip(run_dir.checkpoint(step) / ADAPTER)
    cut_off(run_dir.checkpoint(6) / ADAPTER)  # an older one: its size tells
    capfd.readouterr()
    stop(spec, 9)
    said = capfd.readouterr().err
    assert all(f"checkpoint step-{step} is damaged" in said for step in (11, 10, 8, 6))
    assert run_dir.committed_steps() == [9, 8]
    assert run_dir.read_link("last") == 9
    aside = sorted(path.name for path in run_dir.checkpoints.iterdir() if path.name.startswith("damaged"))
    assert aside == ["damaged-step-10", "damaged-step-11", "damaged-step-6", "damaged-step-8"]
    assert verify_directory(run_dir.checkpoint(9))["step"] == 9
    assert run_here(spec)["steps"] == 12


def test_a_run_without_an_intact_checkpoint_begins_again_and_says_so(
    tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2)
    stop(spec, 3)
    for step in (2, 3):
        flip(run_root(spec) / f"checkpoints/step-{step}" / ADAPTER)
    capfd.readouterr()
    assert run_here(spec)["steps"] == 12
    assert "no checkpoint is intact: the run begins again" in capfd.readouterr().err
    assert [row["step"] for row in metrics(spec)] == list(range(1, 13))


@pytest.mark.parametrize("name", [ADAPTER, "manifest.json"])
def test_a_finished_run_stays_finished_though_no_checkpoint_is_intact(
    name: str, tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its result is. One that had gone on beyond it begins again."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=2)
    report = run_here(spec)
    run_dir = RunDir(run_root(spec))
    before = run_dir.final.stat().st_ino
    cut_off(run_dir.checkpoint(2) / name)
    capfd.readouterr()
    assert run_here(spec) == report and run_dir.final.stat().st_ino == before and len(metrics(spec)) == 2
    assert "checkpoint step-2 is damaged" in capfd.readouterr().err
    run_dir.report.unlink()  # as the first start does that goes on
    assert run_here(spec)["steps"] == 2 and "no checkpoint is intact: the run begins again" in capfd.readouterr().err


def test_a_finished_run_stays_finished_though_its_newest_checkpoint_is_damaged(
    tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An older one is intact, which a longer run goes on from."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=3, checkpoint__every=1)
    report = run_here(spec)
    run_dir = RunDir(run_root(spec))
    before = run_dir.final.stat().st_ino
    cut_off(run_dir.checkpoint(3) / ADAPTER)
    capfd.readouterr()
    assert run_here(spec) == report and run_dir.final.stat().st_ino == before and run_dir.report.is_file()
    assert "checkpoint step-3 is damaged" in capfd.readouterr().err
    longer = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=5, checkpoint__every=1)
    assert run_here(longer, allow_changes=("train.max_steps",), log_level="INFO")["steps"] == 5
    assert "continuing from step 2" in log(longer)
    cut_off(run_dir.checkpoint(5) / ADAPTER)
    run_dir.report.unlink()  # as the first start does that goes on
    capfd.readouterr()
    assert run_here(longer)["steps"] == 5 and "step-5 is now" in capfd.readouterr().err


@pytest.mark.parametrize("damage", [flip, cut_off])
def test_the_result_is_made_from_the_best_checkpoint_that_is_intact(
    damage: Any, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {3: 2.0, 6: 1.0, 9: 1.5, 12: 3.0}
    judge = train.with_eval

    def judged(position: Any, metrics: dict[str, float], metric: str) -> Any:
        return judge(position, {**metrics, "eval_loss": values[position.step]}, metric)

    monkeypatch.setattr(train, "with_eval", judged)
    spec = small_spec(tmp_path, tiny, eval__every=3, checkpoint__every=3, checkpoint__keep=9)
    with monkeypatch.context() as patch:
        spoil(patch, damage, None)
        report = run_here(spec)
    said = capfd.readouterr().err
    assert "the checkpoint of step 6 is damaged" in said
    assert "final/ is made from step 9, the next best: step 6 is lost" in said
    assert (report["best_step"], report["final_step"]) == (6, 9)
    run_dir = RunDir(run_root(spec))
    assert verify_directory(run_dir.final)["step"] == 9
    assert run_dir.read_link("best") == 9
    shipped, kept = load_file(run_dir.final / "adapter_model.safetensors"), load_file(run_dir.checkpoint(9) / ADAPTER)
    assert all(shipped[name].equal(kept[name]) for name in kept)
    assert (run_dir.checkpoints / "damaged-step-6").is_dir()
    assert run_here(spec) == report, "nothing is left to do"


def test_a_result_that_is_better_than_what_replaces_it_is_kept_aside(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint that it was made of is gone, and the run goes on."""
    values = {3: 2.0, 6: 1.0, 9: 1.5, 12: 3.0, 13: 1.2, 14: 0.5}
    judge = train.with_eval

    def judged(position: Any, metrics: dict[str, float], metric: str) -> Any:
        metrics["eval_loss"] = values[position.step]  # into metrics.jsonl, too
        return judge(position, metrics, metric)

    monkeypatch.setattr(train, "with_eval", judged)
    cadence = {"eval__every": 3, "checkpoint__every": 3, "checkpoint__keep": 9}
    run = run_root(spec := small_spec(tmp_path, tiny, **cadence))
    assert run_here(spec)["final_step"] == 6
    best = (run / "final" / "adapter_model.safetensors").read_bytes()
    shutil.rmtree(run / "checkpoints/step-6")
    capfd.readouterr()
    longer = small_spec(tmp_path, tiny, **cadence, train__max_steps=13)
    assert run_here(longer, allow_changes=("train.max_steps",))["final_step"] == 13
    (kept,) = run.glob("final-kept-*")
    assert (kept / "adapter_model.safetensors").read_bytes() == best and verify_directory(kept)["step"] == 6
    assert (
        f"{kept} keeps what {run / 'final'} was, which is better: step 6 with eval_loss 1.0000"
        in capfd.readouterr().err
    )
    longer = small_spec(tmp_path, tiny, **cadence, train__max_steps=14)
    assert run_here(longer, allow_changes=("train.max_steps",))["final_step"] == 14
    assert list(run.glob("final-kept-*")) == [kept], "what is worse goes"


def test_the_last_step_where_no_evaluated_checkpoint_is_left(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    judge = train.with_eval
    monkeypatch.setattr(
        train,
        "with_eval",
        lambda position, metrics, metric: judge(position, {**metrics, metric: position.step}, metric),
    )
    spec = small_spec(tmp_path, tiny, eval__every=4, checkpoint__keep=1)  # the first is the best
    with monkeypatch.context() as patch:
        spoil(patch, cut_off, None)
        report = run_here(spec)
    assert report["final_step"] == 12
    assert "final/ is made from step 12, the next best: step 4 is lost" in capfd.readouterr().err


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("finished")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = small_spec(root, tiny, train__num_train_epochs=1)
        run_here(spec)
    return spec


def test_a_damaged_result_is_named_by_all_who_read_it_and_written_anew(
    finished: RunSpec, tmp_path: Path, cli: Any
) -> None:
    run = run_root(finished)
    weights = run / "final/adapter_model.safetensors"
    whole = weights.read_bytes()
    flip(weights)
    with pytest.raises(StorageError, match=r"adapter_model.safetensors: the bytes changed .*\n.*rankzero train"):
        find_result(str(run), "writes")
    directory = find_adapter(run).directory
    with pytest.raises(StorageError, match="the bytes changed"):
        verify_result(directory)
    for command in (f"generate {run} hello", f"merge {run} -o {tmp_path / 'merged'}"):
        done = cli(command)
        assert done.code == 74 and "the bytes changed" in done.err
    run_here(finished)
    assert weights.read_bytes() == whole
    assert find_result(str(run), "writes").changed == ()


def test_a_template_that_was_edited_is_no_damage(finished: RunSpec, cli: Any) -> None:
    run = run_root(finished)
    path = run / "final/tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    assert find_result(str(run), "writes").changed == ("tokenizer_config.json",)
    assert "warning: tokenizer_config.json is not as the run wrote it" in cli(f"generate {run} hello").err
    report = json.loads((run / "report.json").read_text())
    assert run_here(finished) == report
    assert path.read_text().endswith("\n\n"), "and is not taken back"


def test_a_checkpoints_adapter_is_checked_against_the_checkpoints_manifest(finished: RunSpec) -> None:
    directory = run_root(finished) / os.readlink(run_root(finished) / "last") / "model"
    assert verify_result(directory) == ()
    whole = (directory / "adapter_model.safetensors").read_bytes()
    cut_off(directory / "adapter_model.safetensors")
    try:
        with pytest.raises(StorageError, match="were saved"):
            verify_result(directory)
    finally:
        (directory / "adapter_model.safetensors").write_bytes(whole)


def test_weights_that_were_copied_alone_have_nothing_to_be_checked_against(finished: RunSpec, tmp_path: Path) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / name).write_bytes((run_root(finished) / "final" / name).read_bytes())
    assert verify_result(tmp_path) == ()
