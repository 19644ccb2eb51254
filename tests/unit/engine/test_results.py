"""What a run leaves behind: a result other tools load, a true report, the best checkpoint, and no more."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file, save_file

from rankzero.engine import samples as engine_samples
from rankzero.engine import train as loop
from rankzero.engine.continuing import what_is_next
from rankzero.engine.evaluate import EvalResult
from rankzero.engine.finish import write_page
from rankzero.engine.hooks import Hooks
from rankzero.engine.parallel.replicas import Replicated
from rankzero.errors import ConfigError, NonFiniteError, StoppedError, StorageError
from rankzero.model.generate import Reply
from rankzero.report.run import read_run
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.card import card_of
from rankzero.run_dir.goodput import KINDS, read_starts
from rankzero.run_dir.intact import verify_result
from rankzero.run_dir.kept_aside import keep_aside
from rankzero.run_dir.lease import exclusive, exclusive_if_free
from rankzero.run_dir.paths import RunDir
from rankzero.spec.diff import IDENTITIES
from rankzero.spec.run_spec import RunSpec
from rankzero.track.tensorboard import TensorBoard
from tests.support import runs
from tests.support.runs import log, metrics, run_here, run_root, stop_in
from tests.support.tiny import chat_rows
from tests.support.unreadable import shut, stale
from tests.support.weights import with_lost_rows

small_spec = partial(runs.small_spec, train__micro_batch_tokens=256)
"""Two or three passes a step: of five each of the many runs here would take a fifth longer."""


def test_a_whole_model_has_the_precision_of_its_files_where_no_config_says_it(tmp_path: Path, tiny: Path) -> None:
    base = Path(shutil.copytree(tiny, tmp_path / "base"))
    weights = {name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config.pop("dtype", None)
    (base / "config.json").write_text(json.dumps(config))
    spec = small_spec(tmp_path, base, lora=None, model__dtype="float32", train__max_steps=1)
    run_here(spec)
    written = load_file(run_root(spec) / "final/model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_what_people_put_into_a_result_is_kept_where_the_run_goes_on(
    tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A merged model in final/, where cards of before had people write it, and a card with their own words."""
    run_here(small_spec(tmp_path, tiny, train__max_steps=1))
    spec = small_spec(tmp_path, tiny, train__max_steps=2)
    final, written = run_root(spec) / "final", {}
    (final / "merged").mkdir()
    for name in ("merged/model.safetensors", "README.md", "notes.txt"):
        written[name] = f"a day of work on {name}"
        (final / name).write_text(written[name])
    (final / ".hidden").touch()
    capfd.readouterr()
    longer = ("train.max_steps",)
    run_here(spec, allow_changes=longer)
    assert read_manifest(final)["step"] == 2 and verify_result(final) == ()
    assert {path.relative_to(final).as_posix() for path in final.rglob("*")} == {
        "manifest.json",
        *read_manifest(final)["files"],
    }
    (kept,) = run_root(spec).glob("final-kept-*")
    assert {name: (kept / name).read_text() for name in written} == written
    names = ".hidden, README.md, merged/model.safetensors, notes.txt"
    said = f"{kept} keeps what {final} was, where people have put or changed this: {names}"
    assert said in log(spec) + capfd.readouterr().err
    assert read_manifest(kept)["step"] == 1, "it is whole, with the weights of then"
    run_here(small_spec(tmp_path, tiny, train__max_steps=3), allow_changes=longer)
    assert list(run_root(spec).glob("final-kept-*")) == [kept], "of what only the run has written nothing"


def plain_eval_loss(model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> float:
    """Loss over assistant turns with nothing of rankzero: render, tokenise, mask after the last assistant header."""
    total, count = 0.0, 0
    for row in rows:
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        head = tokenizer.apply_chat_template(row["messages"][:-1], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text.rstrip("\n"), add_special_tokens=False)["input_ids"]
        start = len(tokenizer(head, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, start - 1 : -1].float()
        total += float(F.cross_entropy(logits, torch.tensor(ids[start:]), reduction="sum"))
        count += len(ids) - start
    return total / count


@pytest.mark.parametrize(("method", "umask"), [("lora", 0o022), ("full", 0o077)])
def test_the_result_loads_in_plain_transformers_and_scores_what_was_reported(
    method: str,
    umask: int,
    tmp_path: Path,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    changes: dict[str, Any] = {"lora": None} if method == "full" else {}
    spec = small_spec(tmp_path, tiny, tracking__tensorboard=True, **changes)
    before = os.umask(umask)
    try:
        report = run_here(spec)
    finally:
        os.umask(before)
    final = run_root(spec) / "final"
    tokenizer = AutoTokenizer.from_pretrained(final)
    model = AutoModelForCausalLM.from_pretrained(tiny if method == "lora" else final, dtype=torch.float32)
    if method == "lora":
        model = PeftModel.from_pretrained(model, final)
        config = json.loads((final / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(tiny) and config["peft_type"] == "LORA"
    assert tokenizer.chat_template
    for path in run_root(spec).rglob("*"):  # another user's server can read what the umask lets it, and no more
        allowed = 0o777 if path.is_dir() else 0o666
        assert path.is_symlink() or stat.S_IMODE(path.stat().st_mode) == allowed & ~umask, path
    assert json.loads((final / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
    assert plain_eval_loss(model.eval(), tokenizer, chat_rows(7)) == pytest.approx(report["eval_loss"], rel=1e-5)
    the_card_holds(spec, report, monkeypatch, capsys)


def the_card_holds(
    spec: RunSpec, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """final/README.md: what the run was, no path of this machine, and a script that runs as it stands."""
    final = run_root(spec) / "final"
    text = (final / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    adapter = spec.lora is not None
    assert yaml.safe_load(front) == {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rankzero", *(["lora"] if adapter else []), "small"],
        "license": "unknown",
    }, "the base is a directory here, which has no name on the Hub and states no licence"
    assert "Licence of the base: not stated" in body and str(Path(spec.model.name).parent) not in text
    for part, rows in (("train", 30), ("eval", 7)):
        digest = hashlib.sha256(Path(str(getattr(spec.data, part))).read_bytes()).hexdigest()
        assert f"| {part} | {part}.jsonl | {rows} | `{digest}` |" in body
    assert f"| train loss | {report['train_loss_first']:.4g} | {report['train_loss_last']:.4g} |" in body
    assert f"| {report['eval_loss']:.4g} |" in body and "| global_batch_size | 8 |" in body
    assert ("| lora | r 4, alpha 16, dropout 0.1 |" in body) is adapter
    assert "README.md" in read_manifest(final)["files"] and verify_result(final) == ()
    (code,) = re.findall(r"```python\n(.*?)```", body, flags=re.DOTALL)
    monkeypatch.chdir(final)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.endswith("\n")


def test_a_result_says_of_which_model_and_data_it_is_as_its_checkpoints_do(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=1)
    run_here(spec)
    run_dir = RunDir(run_root(spec))
    of_result, of_checkpoint = read_manifest(run_dir.final), read_manifest(run_dir.checkpoint(1))
    assert all(of_checkpoint[name] for name in ("model", "tokenizer", "data", "eval_data", "dtype"))
    assert {name: of_result.get(name) for name in IDENTITIES} == {name: of_checkpoint[name] for name in IDENTITIES}


def test_the_report_adds_up(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval__on_start=True)
    report = run_here(spec, report_json=str(tmp_path / "copy.json"))
    assert (
        json.loads((tmp_path / "copy.json").read_text())
        == report
        == json.loads((run_root(spec) / "report.json").read_text())
    )
    rows = [row for row in metrics(spec) if row["step"] > 0]
    assert report["steps"] == len(rows) == 12 and report["world_size"] == 1
    assert report["total_tokens"] == sum(row["tokens"] for row in rows)
    assert report["supervised_tokens"] == sum(row["supervised_tokens"] for row in rows)
    assert (report["train_loss_first"], report["train_loss_last"]) == (rows[0]["loss"], rows[-1]["loss"])
    assert report["eval_loss"] == rows[-1]["eval_loss"]
    assert report["eval_loss_first"] == metrics(spec)[0]["eval_loss"] > report["eval_loss"]
    assert report["perplexity"] == pytest.approx(math.exp(report["eval_loss"]))
    assert 0 <= report["padding_fraction"] < 0.5
    assert 0 < report["training_seconds"] <= report["elapsed_seconds"]
    assert report["tokens_per_second"] == pytest.approx(report["total_tokens"] / report["training_seconds"])
    assert report["time_to_first_step_seconds"] > 0 and report["peak_memory_bytes"] > 50e6
    assert {"python", "torch", "transformers", "peft", "rankzero"} <= report["versions"].keys()
    assert RunSpec.model_validate(report["spec"]) == spec


def test_the_time_of_a_run_is_that_of_its_evaluations_too(tmp_path: Path, tiny: Path) -> None:
    """Also of the one after the last step, which by default is the only one."""
    report = run_here(small_spec(tmp_path, tiny, train__num_train_epochs=1))
    evaluation = report["goodput"]["seconds"]["evaluation"]
    assert evaluation > 0 and report["elapsed_seconds"] >= report["training_seconds"] + evaluation


def test_the_report_of_a_finished_run_is_copied_too(tmp_path: Path, tiny: Path) -> None:
    spec, copy = small_spec(tmp_path, tiny, train__max_steps=1), tmp_path / "copy.json"
    report = run_here(spec)
    run_here(spec, report_json=str(copy))
    assert json.loads(copy.read_text()) == json.loads(json.dumps(report))


def test_a_copy_that_fails_keeps_no_other_rank_waiting(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have heard by then that the run is finished."""
    spec = small_spec(tmp_path, tiny, train__max_steps=1)
    run_here(spec)
    told: list[Any] = []

    def noted(value: Any) -> Any:
        told.append(value)
        return value

    monkeypatch.setattr("rankzero.engine.continuing.broadcast_object", noted)
    with pytest.raises(StorageError):
        run_here(spec, report_json=str(tmp_path))
    assert told[-1]["steps"] == 1


@pytest.mark.parametrize(("steps", "field"), [(5, "train.max_steps"), (None, "train.num_train_epochs")])
def test_a_finished_run_names_what_makes_it_longer(steps: int | None, field: str, tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=steps)
    assert f"({field})" in what_is_next({"ended_early": False}, spec)


def test_starts_are_counted_of_one_run_alone(tmp_path: Path, tiny: Path) -> None:
    """A directory without a checkpoint is nobody's: another spec takes it, and none of what it counts."""
    spec = small_spec(tmp_path, tiny, train__max_steps=2, checkpoint__every=100)
    root = run_root(spec)

    def fails(step: int) -> None:
        raise OSError("the first step is never made")

    for tracking in (spec.tracking, spec.tracking.model_copy(update={"tensorboard": True})):
        with pytest.raises(OSError, match="never made"):
            run_here(spec.model_copy(update={"tracking": tracking}), hooks=Hooks(step_begins=fails))
    again = {"time": "2026-01-01T00:00:00+00:00", "restart": 1, "from_step": None, "exit_code": 70, "what": "it failed"}
    (root / "restarts.jsonl").write_text(json.dumps(again) + "\n")
    for rank in range(2):  # there may have been more processes
        with (root / "logs" / f"rank-{rank}.log").open("a") as log:
            log.write("12:00:00 WARNING [DATA] of the other spec\n")
    assert any("other spec" in notice.what for notice in read_run(root, 0.0).notices)
    assert len(read_starts(root / "starts.jsonl")) == 2, "settings that change nothing of the steps are the same run's"
    other = spec.model_copy(update={"train": spec.train.model_copy(update={"learning_rate": 0.5})})
    run_here(other, log_level="INFO")
    assert [start.ended for start in read_starts(root / "starts.jsonl")] == ["finished"]
    assert json.loads((root / "goodput.json").read_text())["starts"] == 1
    assert (root / "restarts.jsonl").read_text() == ""
    assert not any("other spec" in notice.what for notice in read_run(root, 0.0).notices)
    log = (root / "logs" / "rank-0.log").read_text()
    assert "[DONE]" in log and "rank-1.log was of other settings" in log, "its own lines, from the first on"


def test_somebody_elses_settings_that_are_closed_are_other_ones(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left in a directory of all, where they saved nothing. What cannot be read now may be this run's: that is looked
    at before anything is removed."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    root = run_root(spec)
    root.mkdir(parents=True)
    for name, text in (("run.yaml", "name: small"), ("environment.json", "{}"), ("report.json", "{}"), ("stop", "")):
        (root / name).write_text(text)
    (root / "restarts.jsonl").write_text("of theirs")
    with monkeypatch.context() as patch:
        stale(patch, root / "run.yaml")
        with pytest.raises(StorageError, match="Stale file handle"):
            run_here(spec)
    assert (root / "report.json").exists() and (root / "stop").exists()
    shut(monkeypatch, root / "run.yaml")
    assert run_here(spec)["steps"] == 1 and (root / "restarts.jsonl").read_text() == ""


def test_every_second_of_all_starts_is_of_some_kind(tmp_path: Path, tiny: Path) -> None:
    """Beside a clock from outside: a run that was stopped in its sixth step, waited, and went on."""
    spec = small_spec(tmp_path, tiny, checkpoint__every=2)
    began = time.monotonic()
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(6))
    stopped = json.loads((run_root(spec) / "goodput.json").read_text())
    assert (stopped["starts"], stopped["killed"], stopped["steps"]) == (1, 0, 6)
    page = (run_root(spec) / "report.html").read_text()
    assert "Stopped" in page and 'id="chart-loss"' in page and "after this step, then saving" in page
    between = time.monotonic()
    shutil.rmtree(run_root(spec) / "checkpoints/step-6")  # so that work is done again
    run_here(spec)
    wall = time.monotonic() - began
    goodput = json.loads((run_root(spec) / "goodput.json").read_text())
    seconds = goodput["seconds"]
    assert goodput["wall_seconds"] == pytest.approx(wall, rel=0.05, abs=1)  # letting go of the directory
    assert sum(seconds.values()) == pytest.approx(goodput["wall_seconds"], abs=0.02)
    assert set(seconds) == set(KINDS) and seconds["lost"] == seconds["compile"] == 0
    rest = ("startup", "model_files", "data", "model", "resume", "step", "input_wait", "save_wait", "evaluation")
    assert all(seconds[kind] > 0 for kind in (*rest, "logging", "repeated", "final"))
    assert seconds["down"] < wall - between + began  # some milliseconds
    assert (goodput["starts"], goodput["steps"]) == (2, 12)
    assert goodput["goodput"] == pytest.approx(seconds["step"] / goodput["wall_seconds"], abs=1e-3)
    assert seconds["step"] > stopped["seconds"]["step"] > 0
    starts = read_starts(run_root(spec) / "starts.jsonl")
    assert [(start.from_step, start.step, start.ended) for start in starts] == [(0, 6, "stopped"), (4, 12, "finished")]
    page = (run_root(spec) / "report.html").read_text()
    assert "Finished" in page and "continued after step 4" in page and "wall time went" in page
    train = json.loads((run_root(spec) / "data.json").read_text())["train"]
    assert train["rows"] == train["rows_in"] == 30 == sum(rows for _, _, rows in train["lengths"])
    assert train["tokens"] * 3 == sum(row["tokens"] for row in metrics(spec)) and "Rows by their length, eval" in page


def test_the_peak_of_memory_is_that_of_all_starts(tmp_path: Path, tiny: Path) -> None:
    """A start that only exports needs little."""
    spec = small_spec(tmp_path, tiny, train__max_steps=2, eval_rows=0)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(1))
    path = run_root(spec) / "metrics.jsonl"
    (row,) = metrics(spec)
    path.write_text(json.dumps(row | {"peak_memory_bytes": 10**15}) + "\n")
    assert run_here(spec)["peak_memory_bytes"] == 10**15


def test_a_page_that_cannot_be_made_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    write_page(RunDir(tmp_path))
    assert "report.html was not written" in caplog.text and (tmp_path / "report.html").is_dir()


def test_metrics_hold_what_the_contract_names(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny)
    run_here(spec)
    named = {"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second", "time"}
    assert all(named <= row.keys() for row in metrics(spec))
    assert [row["step"] for row in metrics(spec) if "eval_loss" in row] == [4, 8, 12]
    assert metrics(spec)[-1]["epoch"] == 3


def scripted_evaluations(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Evaluations that give these losses one after the other."""
    left = iter(losses)

    def scripted(*_: Any, stop_wanted: Any, meter: Any) -> EvalResult:
        loss = next(left)
        return EvalResult({"eval_loss": loss, "perplexity": math.exp(loss)}, rows=7, targets=70)

    monkeypatch.setattr(loop, "evaluate", scripted)


def steps_kept(spec: RunSpec) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run_root(spec) / "checkpoints").iterdir())


def test_weights_that_are_lost_at_the_end_keep_no_better_result_back(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is intact; the same command would come to the same end again and again."""
    scripted_evaluations(monkeypatch, [1.0, math.nan])
    spec = small_spec(tmp_path, tiny, eval__every=2, checkpoint__every=2, train__max_steps=4)
    step, looks_at_steps = Replicated.step, True

    def breaks(self: Replicated) -> None:
        step(self)
        if not looks_at_steps or len(metrics(spec)) == 3:
            next(iter(self._parameters.values())).data.fill_(math.nan)

    monkeypatch.setattr(Replicated, "step", breaks)
    report = run_here(spec)
    assert (report["best_step"], report["final_step"], report["steps"]) == (2, 2, 4)
    assert "step 4: weights are NaN or Inf; the result is of another step" in log(spec)
    tensors = load_file(run_root(spec) / "final/adapter_model.safetensors").values()
    assert all(tensor.isfinite().all() for tensor in tensors)
    assert run_here(spec)["final_step"] == 2, "it is finished"
    looks_at_steps = False
    last = small_spec(tmp_path, tiny, name="last", eval_rows=0, train__max_steps=1)
    with pytest.raises(NonFiniteError, match="that is no checkpoint(?s:.)*--allow-change train.learning_rate"):
        run_here(last)


def test_weights_that_were_lost_before_are_no_reason_to_end(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing uses the rows. What training loses is seen still, also where the run goes on."""
    base = with_lost_rows(tiny, tmp_path / "base")
    spec = small_spec(tmp_path, base, lora=None, eval_rows=0, train__max_steps=3, train__learning_rate=0.001)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(1))
    said = "model.embed_tokens.weight: NaN or Inf before this start's first step"
    assert said in log(spec)
    step = Replicated.step

    def breaks(self: Replicated) -> None:
        step(self)
        self._parameters["model.norm.weight"].data.fill_(math.nan)

    with monkeypatch.context() as patch:
        patch.setattr(Replicated, "step", breaks)
        with pytest.raises(NonFiniteError, match="after step 2 weights are NaN or Inf") as refused:
            run_here(spec, hooks=stop_in(2))
    assert "model.norm.weight" in str(refused.value) and "embed" not in str(refused.value)
    assert run_here(spec)["steps"] == 3 and log(spec).count(said) == 3


@pytest.mark.parametrize("keep", [1, 2])
def test_weights_that_are_lost_at_the_end_are_not_gone_on_from(
    keep: int, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run is to be longer: it would end at once, and name rows that have nothing to do with it."""
    scripted_evaluations(monkeypatch, [1.0, math.nan])
    cadence = {"eval__every": 2, "checkpoint__every": 1, "checkpoint__keep": keep, "checkpoint__final": "best"}
    spec = small_spec(tmp_path, tiny, **cadence, eval__early_stopping_patience=1, train__max_steps=8)
    step = Replicated.step

    def breaks(self: Replicated) -> None:
        step(self)
        if len(metrics(spec)) == 3:
            next(iter(self._parameters.values())).data.fill_(math.nan)

    with monkeypatch.context() as patch:
        patch.setattr(Replicated, "step", breaks)
        assert (run_here(spec)["final_step"], steps_kept(spec)) == (2, [2, 3, 4])
    scripted_evaluations(monkeypatch, [0.5, 0.4, 0.3])
    longer = small_spec(tmp_path, tiny, **cadence, train__max_steps=8)
    report = run_here(longer, log_level="INFO")
    assert (report["steps"], report["final_step"], report["nonfinite_steps"]) == (8, 8, 0)
    said = log(spec)
    assert "step-4 is not gone on from: its weights are NaN or Inf" in said and "continuing from step 3" in said
    assert [row["step"] for row in metrics(spec)] == list(range(1, 9))


def test_lines_of_steps_that_are_lost_are_missed(tmp_path: Path, tiny: Path) -> None:
    """By a power cut, or by hand: charts and what was best would be of the others, and nobody know."""
    run_here(small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=3))
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=4)
    path = run_root(spec) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))
    run_here(spec, allow_changes=("train.max_steps",))
    assert log(spec).count("lacks 1 of the 3 steps so far") == 1
    assert [row["step"] for row in metrics(spec)] == [2, 3, 4]


def test_best_follows_the_metric_and_survives_pruning(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_evaluations(monkeypatch, [3.0, 1.0, 2.0, 2.5, 2.2, 2.1])
    spec = small_spec(tmp_path, tiny, eval__every=2, checkpoint__every=1, checkpoint__keep=2)
    report = run_here(spec)
    assert (report["best_step"], report["best_value"], report["final_step"]) == (4, 1.0, 4)
    assert os.readlink(run_root(spec) / "best") == "checkpoints/step-4"
    assert os.readlink(run_root(spec) / "last") == "checkpoints/step-12"
    assert steps_kept(spec) == [4, 11, 12]
    saved = (run_root(spec) / "checkpoints/step-4/model/adapter_model.safetensors").read_bytes()
    assert (run_root(spec) / "final/adapter_model.safetensors").read_bytes() == saved


def test_the_result_is_reported_by_what_it_scored_itself(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_evaluations(monkeypatch, [6.26, 9.0, 12.26])
    spec = small_spec(tmp_path, tiny)
    report = run_here(spec, log_level="INFO")
    assert (report["final_step"], report["eval_loss"], report["perplexity"]) == (4, 6.26, math.exp(6.26))
    assert report["last_evaluation"] == {"step": 12, "eval_loss": 12.26, "perplexity": math.exp(12.26)}
    result, last = [line for line in log(spec).splitlines() if "[RESULT]" in line][-2:]
    assert "step 4" in result and "eval_loss 6.2600" in result
    assert "step 12" in last and "eval_loss 12.2600" in last
    assert "[DDP] one process on cpu" in log(spec) and "rank" not in log(spec)
    assert "0.0M parameters, 0.0M of them trained" in log(spec)


def test_the_card_has_the_answers_of_the_weights_that_it_is_about(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the run's end, which final/ is not made from."""
    scripted_evaluations(monkeypatch, [3.0, 1.0, 2.0])
    answers = iter(["before", "after 4", "after 8", "after 12"])
    monkeypatch.setattr(engine_samples, "reply", lambda *_asked, **_how: Reply(next(answers), 2, ended=True))
    spec = small_spec(tmp_path, tiny, eval__every=4, eval__prompts=["Well?"])
    assert run_here(spec)["final_step"] == 8
    assert "after 12" in RunDir(run_root(spec)).samples.read_text()
    card = card_of(run_root(spec) / "final")
    assert card is not None and card.samples == (("Well?", "before", "after 8"),)


def test_who_has_lost_the_directory_writes_no_result(tmp_path: Path, tiny: Path) -> None:
    """It was taken when all was saved: a volume that was away for so long that the beats were missed."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=2)
    root = run_root(spec)
    theirs = json.dumps({"token": 9, "beat": 1, "owner": "another", "host": "other-host", "pid": 7, "process": "x"})

    def taken(_step: int) -> None:
        (root / "lease.json").write_text(theirs)

    with pytest.raises(StorageError, match="in use by process 7 on other-host"):
        run_here(spec, hooks=Hooks(saved=taken))
    assert not (root / "final").exists() and not (root / "report.json").exists()
    assert (root / "lease.json").read_text() == theirs


def test_a_result_whose_checkpoints_are_gone_is_not_trained_again(tmp_path: Path, tiny: Path) -> None:
    """Who frees the disk removes them. It is made again where it is damaged, or where somebody says so."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=2)
    report = run_here(spec)
    run_dir = RunDir(run_root(spec))
    shutil.rmtree(run_dir.checkpoints)
    before = run_dir.final.stat().st_ino
    assert run_here(spec) == report and run_dir.final.stat().st_ino == before and not run_dir.checkpoints.exists()
    faster = spec.model_copy(update={"train": spec.train.model_copy(update={"learning_rate": 0.5})})
    with pytest.raises(ConfigError, match="train.learning_rate"):
        run_here(faster)
    assert run_dir.final.stat().st_ino == before and len(metrics(spec)) == 2
    (run_dir.final / "adapter_model.safetensors").write_bytes(b"damaged")
    assert run_here(spec)["final_step"] == 2 and "the run begins again" in log(spec)
    verify_result(run_dir.final)


def test_a_result_that_cannot_be_read_now_is_not_made_anew(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is what was measured of it dropped, which nobody could tell from what another one scored."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    report = run_here(spec)
    run_dir = RunDir(run_root(spec))
    kept = {"sets": {"a": {"rows": 50, "tuned": {"exact_match": 0.42}}}}
    run_dir.evaluation.write_text(json.dumps(kept))
    made = run_dir.final.stat().st_ino
    for name in ("final/manifest.json", "final/adapter_model.safetensors", "report.json"):
        with monkeypatch.context() as patch:
            stale(patch, run_dir.root / name)
            with pytest.raises(StorageError, match="Stale file handle") as refused:
                run_here(spec)
        assert "give the same command again" in str(refused.value), name
    assert run_here(spec)["final_step"] == report["final_step"]
    assert run_dir.final.stat().st_ino == made and json.loads(run_dir.evaluation.read_text()) == kept


def test_a_result_is_kept_back_by_no_scores_that_cannot_be_read(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    run_dir = RunDir(run_root(spec))
    run_dir.evaluation.write_text("{}")
    longer = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 2})})
    with monkeypatch.context() as patch:
        shut(patch, run_dir.evaluation)
        assert run_here(longer, allow_changes=("train.max_steps",))["final_step"] == 2
    assert "eval.json: it cannot be read: Permission denied" in log(
        spec
    ) and "may be of another result than final/" in log(spec)


def test_a_result_is_written_while_somebody_else_evaluates_the_one_before(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose process hangs, say."""
    monkeypatch.setattr("rankzero.run_dir.lease.COURTESY_SECONDS", 0.0)
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    longer = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 2})})
    with exclusive(RunDir(run_root(spec)).evaluation_lock):
        report = run_here(longer, allow_changes=("train.max_steps",))
    assert report["final_step"] == 2 and "eval.json is changed without its lock: another process" in log(spec)


def test_scores_come_in_while_the_result_before_is_looked_through(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its bytes are read, which takes longer than who has evaluated for hours waits for the lock."""
    monkeypatch.setattr("rankzero.run_dir.lease.COURTESY_SECONDS", 0.0)
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    looked: list[str] = []

    def looks(*arguments: Any) -> Any:
        with exclusive_if_free(RunDir(run_root(spec)).evaluation_lock) as why:
            looked.append(why)
        return keep_aside(*arguments)

    monkeypatch.setattr("rankzero.engine.finish.keep_aside", looks)
    longer = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 2})})
    assert run_here(longer, allow_changes=("train.max_steps",))["final_step"] == 2 and looked == [""]


def test_scores_of_a_result_do_not_outlive_it(tmp_path: Path, tiny: Path) -> None:
    """Those of the base do, which is the same; and so do all where a damaged result is written anew."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    run_dir = RunDir(run_root(spec))
    saved = read_manifest(run_dir.checkpoint(1))
    base = {name: saved[name] for name in ("model", "tokenizer")}
    found = {
        "base_model": base,
        "sets": {"a": {"rows": 50, "base": {"exact_match": 0.1}, "tuned": {"exact_match": 0.42}}},
        "tasks": {"t": {"tuned": {"acc": 0.4321}}},
    }
    run_dir.evaluation.write_text(json.dumps(found))
    run_dir.merge.write_text(json.dumps({"directory": "/somewhere/merged", "logits_largest": 0.01}))
    (run_dir.final / "adapter_model.safetensors").write_bytes(b"damaged")
    run_here(spec)
    assert json.loads(run_dir.evaluation.read_text()) == found
    page = run_dir.page.read_text()
    assert "42.0 %" in page and "0.4321" in page and "/somewhere/merged" in page
    longer = spec.model_copy(update={"train": spec.train.model_copy(update={"max_steps": 2})})
    run_here(longer, allow_changes=("train.max_steps",), log_level="INFO")
    assert json.loads(run_dir.evaluation.read_text()) == {
        "base_model": base,
        "sets": {"a": {"rows": 50, "base": {"exact_match": 0.1}}},
        "tasks": {},
    }
    page = run_dir.page.read_text()
    assert "10.0 %" in page and not any(old in page for old in ("42.0 %", "0.4321", "/somewhere/merged"))
    assert "eval.json has no scores of it yet" in log(spec)


def test_ties_and_early_stopping(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later of equal evaluations is the best, but no progress."""
    scripted_evaluations(monkeypatch, [2.0, 2.0, 2.0, 1.0])
    spec = small_spec(tmp_path, tiny, eval__every=2, eval__early_stopping_patience=2)
    report = run_here(spec)
    assert (report["ended_early"], report["steps"], report["best_step"]) == (True, 6, 6)


def test_final_may_be_the_last_instead(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_evaluations(monkeypatch, [1.0, 2.0, 3.0])
    report = run_here(small_spec(tmp_path, tiny, checkpoint__final="last"))
    assert (report["final_step"], report["eval_loss"], report["best_value"]) == (12, 3.0, 1.0)
    again = run_here(small_spec(tmp_path, tiny, checkpoint__final="best"))
    assert (again["final_step"], again["eval_loss"]) == (4, 1.0), "a finished run, asked for another result, makes it"


def test_early_stopping(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_evaluations(monkeypatch, [3.0, 2.0, 2.1, 2.2, 0.0])
    spec = small_spec(tmp_path, tiny, eval__every=2, eval__early_stopping_patience=2)
    report = run_here(spec)
    assert report["ended_early"] and report["steps"] == 8 and report["best_step"] == 4
    assert run_here(spec) == report, "an early end is an end: the same command does not go on"
    scripted_evaluations(monkeypatch, [2.3, 2.4])
    patient = small_spec(tmp_path, tiny, eval__every=2, eval__early_stopping_patience=5)
    report = run_here(patient)
    assert (report["ended_early"], report["steps"], report["best_step"]) == (False, 12, 4), "patience is not history"


def test_a_run_of_one_step_trains(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=1)
    run_here(spec)
    assert metrics(spec)[0]["learning_rate"] == 0.01
    adapter = load_file(run_root(spec) / "final/adapter_model.safetensors")
    assert all(adapter[name].any() for name in adapter if "lora_B" in name), "they begin with zeros"


def test_without_evaluation_the_last_is_the_result(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0)
    report = run_here(spec)
    assert report["best_step"] is None and report["eval_loss"] is None and report["final_step"] == 12
    assert not (run_root(spec) / "best").exists()


def test_a_held_out_fraction_is_not_trained_on(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, data__eval={"fraction": 0.2}, train__num_train_epochs=1)
    report = run_here(spec)
    rows = [row for row in metrics(spec)]
    assert report["steps"] == 3, "24 of 30 rows in batches of 8"
    assert rows[-1]["eval_loss"] > 0


def test_tensorboard_gets_the_same_numbers(tmp_path: Path, tiny: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    spec = small_spec(tmp_path, tiny, tracking__tensorboard=True)
    run_here(spec)
    events = EventAccumulator(str(run_root(spec) / "events"))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert logged == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in metrics(spec)]
    assert [event.step for event in events.Scalars("eval/eval_loss")] == [4, 8, 12]


def test_tensorboard_keeps_evaluations_apart_from_training(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, 0)
    measured = {"eval_loss": 1.0, "perplexity": 2.7, "accuracy": 0.9, "macro_f1": 0.8}
    board.log(1, {"loss": 2.0, "learning_rate": 0.1, **measured, "time": 9.0, "epoch": 1.0})
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    expected = {"train/loss", "train/learning_rate", *(f"eval/{name}" for name in measured)}
    assert set(events.Tags()["scalars"]) == expected


def test_links_become_pointer_files_where_there_are_no_symlinks(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no symlinks here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    run_here(spec)
    assert (run_root(spec) / "last").read_text() == "checkpoints/step-4\n"
    assert run_here(spec)["steps"] == 4
