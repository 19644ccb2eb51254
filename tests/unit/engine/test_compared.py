"""Which evaluations of a run are compared where it goes on otherwise: on other data, by another metric, for longer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine.checkpoint import Position, judged_again, under, with_eval
from rankzero.engine.resume import makes_incomparable
from rankzero.engine.step import Stepper
from rankzero.errors import StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support import runs
from tests.support.recipes import sentiment_rows
from tests.support.runs import log, metrics, run_here, run_root, stop_in
from tests.support.tasks import task_spec
from tests.support.tiny import chat_rows, write_jsonl

pytestmark = pytest.mark.faults
small_spec = partial(runs.small_spec, train__micro_batch_tokens=256)


def test_what_was_best_on_other_data_is_not_best_on_these() -> None:
    before = Position(step=9, best={"eval_loss": 1.0}, best_step=5, evals_since_best=2, ended_early=True)
    patient = RunSpec.model_validate(
        {"model": {"name": "m"}, "data": {"train": "t", "eval": "e"}, "eval": {"early_stopping_patience": 2}}
    )
    assert under(patient, before, comparable=True) == before
    before = replace(before, eval_first={"eval_loss": 2.0}, eval_last={"eval_loss": 1.5}, eval_last_step=9)
    assert under(patient, before, comparable=False) == Position(step=9, compared_from=10)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [("data__chat_template", "tokenizer"), ("lora__alpha", "lora.alpha"), ("data__eval", "eval_data")],
)
def test_evaluations_are_compared_only_with_those_of_the_same(
    change: str, allowed: str, tmp_path: Path, tiny: Path
) -> None:
    """Of other tokens, of other rows, or of weights that count for more now: before and after say different things."""
    spec = small_spec(tmp_path, tiny, eval__on_start=True, eval__every=2)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(5))
    position = json.loads((run_root(spec) / "last/trainer.json").read_text())["position"]
    assert position["best"] and position["eval_first"]
    eval_rows = str(write_jsonl(tmp_path / "other.jsonl", chat_rows(5)))
    values = {"data__chat_template": "plain", "lora__alpha": 64, "data__eval": eval_rows}
    other = small_spec(tmp_path, tiny, eval__on_start=True, eval__every=2, **{change: values[change]})
    report = run_here(other, allow_changes=(allowed,), log_level="INFO")
    assert f"are not compared with those to come, since {allowed} changed" in log(other)
    later = {row["step"]: row["eval_loss"] for row in metrics(other) if row["step"] > 5 and "eval_loss" in row}
    assert report["eval_loss_first"] == later[6] and report["best_value"] == min(later.values())
    assert report["best_step"] == report["final_step"] in later
    assert report["compared_from"] == 6


@pytest.mark.parametrize("by", ["allowed", "resume: continue"])
def test_evaluations_by_another_beta_are_not_compared(by: str, tmp_path: Path) -> None:
    """Losses and rewards are in units of it: what was best in the smaller unit stayed so, whatever was learnt since."""
    fields = {"dropout": 0.0, "rows": 8, "eval__every": 2, "checkpoint__every": 2, "train__learning_rate": 0.02}
    run_here(task_spec("dpo", tmp_path, train__max_steps=2, dpo__beta=0.05, **fields))
    fields |= {"eval__early_stopping_patience": 1} if by == "allowed" else {"resume": "continue"}
    other = task_spec("dpo", tmp_path, train__max_steps=6, dpo__beta=2.0, **fields)
    allowed = ("dpo.beta", "train.max_steps") if by == "allowed" else ()
    report = run_here(other, allow_changes=allowed, log_level="INFO")
    assert "are not compared with those to come, since dpo.beta changed" in log(other)
    later = {row["step"]: row["eval_loss"] for row in metrics(other) if row["step"] > 2 and "eval_loss" in row}
    assert report["best_value"] == min(later.values()) and report["best_step"] == report["final_step"] in later
    assert report["eval_loss_first"] == later[4]


def test_what_beta_is_no_unit_of_stays_compared(tmp_path: Path) -> None:
    """How often the better answer has the higher reward is the same by any beta: the best of before stays, and what
    patience has counted."""
    spec = task_spec("dpo", tmp_path, dpo__beta=0.5, checkpoint__best_metric="reward_accuracy")
    assert makes_incomparable(["dpo.beta", "eval_data"], spec) == ["eval_data"]
    fields = {"dropout": 0.0, "rows": 8, "eval__every": 2, "checkpoint__every": 2, "train__learning_rate": 1e-7}
    fields |= {"checkpoint__best_metric": "reward_accuracy", "eval__early_stopping_patience": 2}
    before = run_here(task_spec("dpo", tmp_path, train__max_steps=2, dpo__beta=0.05, **fields))
    other = task_spec("dpo", tmp_path, train__max_steps=20, dpo__beta=2.0, **fields)
    report = run_here(other, allow_changes=("dpo.beta", "train.max_steps"), log_level="INFO")
    assert "are not compared" not in log(other) and "dpo.beta changed: where evaluations" in log(other)
    assert report["compared_from"] == 0 and report["eval_loss_first"] == before["eval_loss_first"]
    assert report["ended_early"] and report["steps"] == 6


def test_what_is_best_by_another_metric_is_looked_for_among_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = task_spec("classify", tmp_path, eval__every=2, checkpoint__every=2, checkpoint__keep=4)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(9))
    path = run_root(spec) / "metrics.jsonl"
    scores = {2: (0.9, 0.4), 4: (0.7, 0.9), 6: (0.6, 0.8), 8: (0.5, 0.8)}  # eval_loss, accuracy
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["step"] in scores:
            row["eval_loss"], row["accuracy"] = scores[row["step"]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_accuracy = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"best_metric": "accuracy"})})
    with pytest.raises(StoppedError):
        run_here(by_accuracy, hooks=stop_in(11), log_level="INFO")
    position = json.loads((run_root(spec) / "last/trainer.json").read_text())["position"]
    now = next(json.loads(line)["accuracy"] for line in path.read_text().splitlines() if json.loads(line)["step"] == 10)
    assert "by accuracy the best so far is step 4, of those that are kept" in log(by_accuracy)
    assert (position["best_step"], position["best"]["accuracy"]) == ((4, 0.9) if now < 0.9 else (10, now))
    assert (run_root(spec) / "best").resolve() == run_root(spec) / f"checkpoints/step-{position['best_step']}"


def test_best_points_to_what_is_best_now_after_there_and_back(tmp_path: Path) -> None:
    """A start that only chooses anew saves no checkpoint, so the next one finds the metric of the one before."""
    spec = task_spec("classify", tmp_path, eval__every=2, checkpoint__every=2, checkpoint__keep=9)
    run_here(spec)
    rows = metrics(spec)
    for number, row in enumerate(row for row in rows if "accuracy" in row):
        row["accuracy"] = 1.0 - number / 10  # the first is the best, where losses fall
    (run_root(spec) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_accuracy = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"best_metric": "accuracy"})})
    found = []
    for now in (spec, by_accuracy, spec):
        step = run_here(now)["final_step"]
        assert (run_root(spec) / "best").resolve() == run_root(spec) / f"checkpoints/step-{step}"
        found.append(step)
    assert found[1] == 2 != found[0] == found[2]


def test_what_ended_early_stays_so_by_another_metric_and_not_on_other_data(tmp_path: Path) -> None:
    """Another choice of the best trains nothing; other data to evaluate on begin patience again."""
    patient = {"eval__early_stopping_patience": 1, "eval__every": 2, "checkpoint__every": 2}
    fields = {**patient, "checkpoint__best_metric": "accuracy", "train__learning_rate": 1e-7}  # no score moves
    spec = task_spec("classify", tmp_path, **fields)
    report = run_here(spec)
    assert report["ended_early"] and report["steps"] < 12
    by_f1 = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"best_metric": "macro_f1"})})
    again = run_here(by_f1)
    assert (again["ended_early"], again["steps"]) == (True, report["steps"])
    other = write_jsonl(tmp_path / "other.jsonl", sentiment_rows(20)[-9:])
    elsewhere = by_f1.model_copy(update={"data": by_f1.data.model_copy(update={"eval": str(other)})})
    assert run_here(elsewhere, allow_changes=("eval_data",))["steps"] > report["steps"]


@pytest.mark.parametrize("change", ["shorter", "other data"])
def test_a_start_without_a_step_left_evaluates_the_last(change: str, tmp_path: Path, tiny: Path) -> None:
    """It was made the last by a length that the run had already, or what is evaluated on is other than before."""
    spec = small_spec(tmp_path, tiny, eval__every="epoch", checkpoint__keep=9, train__num_train_epochs=2)
    if change == "shorter":
        with pytest.raises(StoppedError):
            run_here(spec, hooks=stop_in(5))
        now, allowed, last = small_spec(tmp_path, tiny, checkpoint__keep=9, train__max_steps=5), "train.max_steps", 5
    else:
        run_here(spec)
        rows = str(write_jsonl(tmp_path / "other.jsonl", chat_rows(5)))
        now, allowed, last = small_spec(tmp_path, tiny, data__eval=rows, train__num_train_epochs=2), "eval_data", 8
    before = metrics(spec)
    report = run_here(now, allow_changes=(allowed, "train.num_train_epochs"))
    after = metrics(spec)
    assert report["steps"] == report["last_evaluation"]["step"] == last == after[-1]["step"]
    assert after[-1]["eval_loss"] == report["last_evaluation"]["eval_loss"]
    assert [row["loss"] for row in after] == [row["loss"] for row in before], "no step was made again"
    if change == "other data":
        assert report["final_step"] == last and report["eval_loss"] != before[-1]["eval_loss"]
    assert run_here(now)["last_evaluation"] == report["last_evaluation"]


def test_a_last_step_that_was_no_number_is_evaluated_too(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=2, train__max_nonfinite_steps=1)
    gradients = Stepper.gradients

    def poisoned(stepper: Stepper, batches: Any, work: Any, step: int, **how: Any) -> Any:
        result = gradients(stepper, batches, work, step, **how)
        return replace(result, loss=math.nan, grad_norm=math.nan, finite=False) if step == 1 and result else result

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "gradients", poisoned)
        run_here(spec)
    before = metrics(spec)
    assert before[-1]["loss"] is None is before[-1]["grad_norm"], "JSON has no NaN"
    rows = str(write_jsonl(tmp_path / "other.jsonl", chat_rows(5)))
    now = small_spec(tmp_path, tiny, train__max_steps=2, train__max_nonfinite_steps=1, data__eval=rows)
    report = run_here(now, allow_changes=("eval_data",))
    assert metrics(spec)[-1] == before[-1] | {n: report[n] for n in ("eval_loss", "perplexity")}


def test_only_what_is_comparable_is_compared() -> None:
    """Also where a metric changes in a later start than the data did, and where the best is lost."""
    evaluations = {step: {"eval_loss": 1.0, "accuracy": value} for step, value in {2: 0.9, 8: 0.6, 10: 0.7}.items()}
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t", "eval": "e"}})
    position = under(spec, Position(step=6, best={"eval_loss": 1.0}, best_step=2), comparable=False)
    for step in (8, 10):
        position, _ = with_eval(replace(position, step=step), evaluations[step], "eval_loss")
    found = judged_again(position, evaluations, (2, 8, 10), "accuracy")
    assert (found.best_step, found.evals_since_best, found.compared_from) == (10, 0, 7)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_a_model_that_gives_no_numbers_scores_nothing(metric: str, tmp_path: Path) -> None:
    """The likeliest class of logits that are NaN is the first, which here is right for all rows."""
    changes = {"train__learning_rate": 1e30, "train__warmup_steps": 0, "train__max_nonfinite_steps": 3}
    spec = task_spec("classify", tmp_path, train__max_steps=3, eval__every=1, checkpoint__best_metric=metric, **changes)
    write_jsonl(tmp_path / "task-eval.jsonl", [{**row, "label": 0} for row in sentiment_rows(4)])
    report = run_here(spec)
    scores = [(row["eval_loss"], row["accuracy"], row["macro_f1"]) for row in metrics(spec) if "eval_loss" in row]
    assert scores == [(None, None, None)] * 3
    assert (report["best_step"], report["best_value"]) == (None, None)


def test_patience_counts_what_is_no_longer_kept() -> None:
    losses = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.9}
    evaluations = {step: {"eval_loss": 1.0, "accuracy": accuracy} for step, accuracy in losses.items()}
    position = Position(step=8, best={"eval_loss": 1.0, "accuracy": 0.5}, best_step=2, eval_last_step=8)
    found = judged_again(position, evaluations, (6, 8), "accuracy")
    assert (found.best_step, found.evals_since_best) == (8, 0)
    found = judged_again(position, {**evaluations, 8: {"eval_loss": 2.0, "accuracy": 0.65}}, (6,), "accuracy")
    assert (found.best_step, found.best, found.evals_since_best) == (6, evaluations[6], 2)
    assert (found.step, found.eval_last_step) == (8, 8)
    assert judged_again(position, {}, (6, 8), "accuracy").best_step is None


def test_patience_counts_no_evaluation_that_scores_nothing() -> None:
    """Whatever older versions wrote beside a loss that is NaN."""
    broken, before = {"eval_loss": math.nan, "accuracy": 0.9}, {"eval_loss": 1.0, "accuracy": 0.5}
    position = Position(step=4, best=broken, best_step=4, evals_since_best=2, eval_first=before, eval_first_step=2)
    after, best = with_eval(replace(position, step=6), {"eval_loss": 1.0, "accuracy": 0.7}, "accuracy")
    assert best and (after.best_step, after.evals_since_best) == (6, 0)
    found = judged_again(position, {2: before, 4: broken}, (2, 4), "accuracy")
    assert (found.best_step, found.evals_since_best) == (2, 1)


def test_a_finished_run_gets_another_result_by_another_metric(tmp_path: Path) -> None:
    spec = task_spec("classify", tmp_path, eval__every=2, checkpoint__every=2, checkpoint__keep=9)
    run_here(spec)
    by_f1 = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"best_metric": "macro_f1"})})
    report = run_here(by_f1)
    scores = {row["step"]: row["macro_f1"] for row in metrics(spec) if "macro_f1" in row}
    assert report["best_value"] == scores[report["final_step"]] == max(scores.values())
    assert run_here(by_f1, log_level="INFO")["final_step"] == report["final_step"]
    assert log(by_f1).count("continuing from step") == 0, "what is chosen now is there"


def test_where_the_best_is_lost_the_best_of_those_that_are_left_is_kept(tmp_path: Path, tiny: Path) -> None:
    """Nothing could beat one that is gone, so that nothing else was kept for being best."""
    spec = small_spec(tmp_path, tiny, eval__every=2, checkpoint__every=2, checkpoint__keep=3)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(5))
    root = run_root(spec)
    best = json.loads((root / "last/trainer.json").read_text())["position"]["best_step"]
    (other,) = {2, 4} - {best}
    path = root / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["step"] == other:
            row["eval_loss"] = 0.25  # which none that follows comes near
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    damaged = next((root / f"checkpoints/step-{best}/model").glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-5])
    report = run_here(spec, log_level="INFO")
    assert f"the checkpoint of step {best}, the best so far, is lost" in log(spec)
    assert (report["best_step"], report["final_step"], report["best_value"]) == (other, other, 0.25)
    assert (root / f"checkpoints/step-{other}").is_dir()
