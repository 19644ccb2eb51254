"""The step: only trained positions reach the head, and nothing that is not finite is averaged away."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from rankzero.cli.train import summary
from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.hooks import Hooks
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.step import Stepper
from rankzero.engine.tasks import sft
from rankzero.errors import ExitCode, NonFiniteError
from rankzero.model.dropout import Places
from rankzero.run_dir.paths import RunDir
from tests.support.runs import log, metrics, run_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl


class Rows:
    """A data set in memory."""

    def __init__(self, rows: list[tuple[list[int], list[float]]]) -> None:
        """(ids, what each token's loss is multiplied by)."""
        self._rows = [(np.array(ids, np.int32), np.array(weights, np.float32)) for ids, weights in rows]
        self.lengths = np.array([len(ids) for ids, _ in rows], np.int32)
        self.supervised = np.array([sum(weight > 0 for weight in weights[1:]) for _, weights in rows], np.int32)
        self.loss_weights = np.array([float(weights[1:].sum()) for _, weights in self._rows])
        self.rejected_from = None

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, i: int) -> tuple[Any, Any]:
        ids, weights = self._rows[i]
        return ids, weights > 0

    def weights(self, i: int) -> Any:
        weights = self._rows[i][1]
        return None if set(weights.tolist()) <= {0.0, 1.0} else weights

    def where(self, i: int) -> str:
        return f"rows.jsonl:{i + 1}"


ROWS = Rows(
    [([5, 6, 7, 8, 9], [0, 0, 1, 1, 0]), ([4, 3, 2], [0, 1, 1]), ([9, 8, 7, 6, 5, 4, 3], [0, 0, 0, 0, 0, 0, 1])]
)


WEIGHTED = Rows(
    [
        ([5, 6, 7, 8, 9], [0, 0, 0.5, 0.5, 0]),
        ([4, 3, 2], [0, 1, 1]),
        ([9, 8, 7, 6, 5, 4, 3], [0, 0.25, 0.25, 0, 0, 0, 2]),
    ]
)


def batches(
    rows: Any = ROWS, max_tokens: int = 1000, *, collator: Any = None, rank: int = 0, world_size: int = 1
) -> Batches:
    return Batches(
        rows,
        collator or PaddedText(),
        rank=rank,
        world_size=world_size,
        max_tokens=max_tokens,
        pass_cost=0,
        same_passes=False,
    )


def reference_loss(model: Any, rows: Rows) -> float:
    """Each row alone, all logits, the textbook shift."""
    total = 0.0
    for i in range(len(rows)):
        ids, mask = rows.row(i)
        logits = model(torch.tensor(ids[None].astype(np.int64))).logits[0, :-1].float()
        losses = F.cross_entropy(logits, torch.tensor(ids[1:].astype(np.int64)), reduction="none")
        weights = mask if rows.weights(i) is None else rows.weights(i)
        total += float((losses * torch.tensor(weights[1:].astype(np.float32))).sum().detach())
    return total / float(rows.loss_weights.sum())


def stepper_of(model: Any) -> Stepper:
    return Stepper(
        SupervisedHead(model, model),
        Replicated(model, lambda named: torch.optim.SGD(named.values()), world=World(), device=Device("cpu")),
        sft.TASK,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_grad_norm=None,
        places=Places(0),
    )


@pytest.mark.parametrize(
    ("collator", "max_tokens"), [(PaddedText, 1), (PaddedText, 10), (PaddedText, 1000), (PackedText, 1)]
)
def test_padding_and_dropped_logits_change_nothing(collator: Any, max_tokens: int, tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    for rows in (ROWS, WEIGHTED):
        reference = reference_loss(model, rows)
        plan = batches(rows, max_tokens=max_tokens, collator=collator())
        result = stepper_of(model).gradients(plan, plan.everything(), 0, stop_wanted=False, on_pass=lambda *_: None)
        assert result.loss == pytest.approx(reference, rel=1e-5)
        assert result.finite and not result.stop


def test_a_weight_is_that_of_the_gradient_and_the_sum_of_all_weights_the_denominator(tiny: Path) -> None:
    """Halving all weights changes nothing; a turn of twice the weight counts as if it stood there twice."""

    def gradient(rows: Rows) -> tuple[float, float]:
        plan = batches(rows)
        stepper = stepper_of(AutoModelForCausalLM.from_pretrained(tiny))
        result = stepper.gradients(plan, plan.everything(), 0, stop_wanted=False, on_pass=lambda *_: None)
        return result.loss, result.grad_norm

    one, other = ([5, 6, 7, 8], [0.0, 0, 1, 1]), ([4, 3, 2, 9], [0.0, 1, 1, 0])
    halved = [(ids, [weight / 2 for weight in weights]) for ids, weights in (one, other)]
    doubled = [(one[0], [2 * weight for weight in one[1]]), other]
    assert gradient(Rows(halved)) == pytest.approx(gradient(Rows([one, other])), rel=1e-5)
    assert gradient(Rows(doubled)) == pytest.approx(gradient(Rows([one, one, other])), rel=1e-5)
    assert gradient(Rows(doubled)) != pytest.approx(gradient(Rows([one, other])), rel=1e-3)


@pytest.mark.parametrize("weight", [1e-12, 1e12])
def test_the_least_and_the_most_weight_count_by_their_ratio_alone(weight: float, tiny: Path, tmp_path: Path) -> None:
    """As sums of float32 hold them: a step whose weights are all equal is a step without."""
    losses = []
    for name, keys in (("plain", {}), ("weighted", {"loss_weight": weight})):
        answers = ("b", "Lima is the capital of Peru") * 4
        rows = [chat_row("a", answer, keys) for answer in answers]
        path = str(write_jsonl(tmp_path / f"{name}.jsonl", rows))
        spec = small_spec(tmp_path / name, tiny, eval_rows=0, train__max_steps=3, data__train=path)
        run_here(spec)
        losses.append([line["loss"] for line in metrics(spec)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def chat_row(question: str, answer: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **keys}]}


def test_every_rank_divides_by_the_same_sum_of_weights(tiny: Path) -> None:
    """Whatever the number of processes, the shares of the loss add up to that of one process."""
    model = AutoModelForCausalLM.from_pretrained(tiny)
    stepper = stepper_of(model)
    losses = []
    for world_size in (1, 2, 3, 4):
        total = 0.0
        for rank in range(world_size):
            plan = batches(WEIGHTED, max_tokens=10, rank=rank, world_size=world_size)
            work = plan.everything()
            assert work.loss_weight == WEIGHTED.loss_weights.sum()
            passes = plan.collated(work.passes, torch.device("cpu"))
            total += sum(stepper.loss_sum(batch).item() for batch in passes) / work.loss_weight
        losses.append(total)
    assert losses == pytest.approx([reference_loss(model, WEIGHTED)] * 4, rel=1e-5)


def test_the_head_sees_only_trained_positions(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    head = SupervisedHead(model, model)
    seen: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _m, inputs, _out: seen.append(inputs[0].shape[0]))
    plan = batches()
    logits_NV = head.logits(plan.collate(np.arange(3), torch.device("cpu")))
    assert seen == [5] and logits_NV.shape == (5, model.config.vocab_size)
    whole = model(torch.tensor([[1, 2, 3]])).logits
    assert whole.shape == (1, 3, model.config.vocab_size), "outside a pass the head is as it was"


def test_no_row_sees_another(tiny: Path) -> None:
    """Changing one row of a padded batch changes no other row's logits."""
    model = AutoModelForCausalLM.from_pretrained(tiny)
    head = SupervisedHead(model, model)
    other = Rows([([5, 6, 7, 8, 9], [0, 0, 1, 1, 0]), ([7, 7, 2], [0, 1, 1]), ([1, 1, 1, 1, 1, 1, 3], [0] * 6 + [1])])
    a = head.logits(batches().collate(np.arange(3), torch.device("cpu")))
    b = head.logits(batches(other).collate(np.arange(3), torch.device("cpu")))
    assert torch.equal(a[:2], b[:2]) and not torch.equal(a[2:], b[2:])


def poison(monkeypatch: pytest.MonkeyPatch, bad_steps: set[int]) -> Hooks:
    """Make the loss of the first pass of some steps infinite, in a run with these hooks."""
    loss_sum, now = Stepper.loss_sum, {"step": 0, "first": False}

    def note_step(step: int) -> None:
        now.update(step=step, first=True)

    def poisoned(self: Stepper, batch: Any, *logits: torch.Tensor) -> torch.Tensor:
        loss = loss_sum(self, batch, *logits)
        if now["first"] and now["step"] in bad_steps and loss.requires_grad:
            now["first"] = False
            return loss * float("inf")
        return loss

    monkeypatch.setattr(Stepper, "loss_sum", poisoned)
    return Hooks(step_begins=note_step)


def test_a_non_finite_loss_ends_the_run_and_names_step_and_rows(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tiny, train__micro_batch_tokens=64)
    with pytest.raises(NonFiniteError) as stopped:
        run_here(spec, hooks=poison(monkeypatch, {3}))
    assert stopped.value.exit_code == ExitCode.INTERNAL == 70
    page = (run_root(spec) / "report.html").read_text()
    assert "step 3: the loss is" in page and "give its command again to continue" in page
    assert "step 3" in str(stopped.value)
    named = str(stopped.value).split(": step")[0].split(", ")
    assert 1 <= len(named) < 8 and all("train.jsonl:" in name for name in named), "only the rows of the bad pass"
    assert [row["step"] for row in metrics(spec)] == [1, 2]


def test_some_non_finite_steps_may_be_skipped(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tiny, train__max_nonfinite_steps=2)
    report = run_here(spec, hooks=poison(monkeypatch, {3, 5}))
    assert report["steps"] == 12 and report["nonfinite_steps"] == 2
    assert [row["loss"] is None for row in metrics(spec)] == [step in {3, 5} for step in range(1, 13)]


def test_skipped_steps_push_out_no_checkpoint(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are the cause, each step from here on is skipped: those from before stay to go on from."""
    how = {"eval_rows": 0, "checkpoint__every": 2, "checkpoint__keep": 2}
    spec = small_spec(tmp_path, tiny, train__max_nonfinite_steps=4, **how)
    with pytest.raises(NonFiniteError, match="step 9"):
        run_here(spec, hooks=poison(monkeypatch, {5, 6, 7, 8, 9}))
    assert RunDir(run_root(spec)).committed_steps() == [4, 2]
    saved: list[int] = []
    hooks = replace(poison(monkeypatch, {6}), saved=saved.append)
    run_here(small_spec(tmp_path, tiny, name="other", train__max_nonfinite_steps=4, **how), hooks=hooks)
    assert saved == [2, 4, 7, 8, 10, 12], "what was due in step 6 comes with the first step that is finite"


def test_a_run_of_skipped_steps_only_is_no_result(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that no step has moved are not exported, and a later start says the same."""
    spec = small_spec(tmp_path, tiny, train__max_nonfinite_steps=20, train__max_steps=3)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="no step of 3 was finite"):
            run_here(spec, hooks=poison(monkeypatch, {1, 2, 3}))
        assert not (run_root(spec) / "final").exists() and not (run_root(spec) / "report.json").exists()


def test_a_report_is_json_whatever_was_not_finite(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first loss that is told is that of the first step that moved weights."""
    spec = small_spec(tmp_path, tiny, train__max_nonfinite_steps=1, train__max_steps=3, eval__every=1)
    hooks, losses = poison(monkeypatch, {1}), Stepper.loss_sum

    def of_evaluations(self: Stepper, batch: Any, *logits: torch.Tensor) -> torch.Tensor:
        loss = losses(self, batch, *logits)
        return loss if loss.requires_grad else loss * float("nan")

    monkeypatch.setattr(Stepper, "loss_sum", of_evaluations)
    report = run_here(spec, hooks=hooks, log_level="INFO")
    path = run_root(spec) / "report.json"
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == json.loads(json.dumps(report, allow_nan=False))
    assert report["train_loss_first"] == metrics(spec)[1]["loss"] and report["last_evaluation"]["eval_loss"] is None
    assert "eval_loss" in metrics(spec)[0] and metrics(spec)[0]["eval_loss"] is None
    summary(report, str(run_root(spec)))


def test_one_more_than_allowed_ends_the_run(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = poison(monkeypatch, {3, 5})
    with pytest.raises(NonFiniteError, match="step 5"):
        run_here(small_spec(tmp_path, tiny, train__max_nonfinite_steps=1), hooks=hooks)


def test_a_batch_of_more_rows_than_there_are_is_said(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, train__max_steps=1, train__global_batch_size=64)
    run_here(spec)
    assert "a step has all 30 rows: there are not train.global_batch_size: 64 of them" in log(spec)


def test_a_warm_up_longer_than_the_run_is_said_to_be_cut(tmp_path: Path, tiny: Path) -> None:
    """Of max_steps it is refused; how many steps the rows make is known only here."""
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1, train__warmup_steps=100)
    run_here(spec)
    assert "warm-up of 100 steps is cut to the run's 4" in log(spec)
    assert [row["learning_rate"] for row in metrics(spec)] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])


@pytest.mark.usefixtures("bfloat16_computed")
def test_bfloat16_trains(tmp_path: Path, tiny: Path) -> None:
    """The path of devices that compute bfloat16, whatever this one does: frozen base in bf16, adapters in float32."""
    spec = small_spec(tmp_path, tiny, model__dtype="bfloat16", train__num_train_epochs=1)
    report = run_here(spec)
    assert report["environment"]["dtype"] == "bfloat16"
    assert report["train_loss_last"] < report["train_loss_first"]


@pytest.mark.parametrize(
    ("task", "changes", "warned"),
    [
        ("classify", {}, False),
        ("classify", {"model__attention": "sdpa"}, True),
        ("vision", {}, False),
        ("vision", {"train__parts": ["language", "vision_tower"]}, True),
    ],
    ids=["own", "torch's attention", "adapters", "adapters on a tower"],
)
def test_dropout_that_depends_on_the_layout_is_warned_of(
    task: str, changes: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    """Torch's attention draws from each process's own stream, and a tower's patches have neither row nor position."""
    spec = task_spec(task, tmp_path, rows=8, eval_rows=0, train__max_steps=1, **changes)
    run_here(spec)
    assert ("losses depend on processes and passes" in log(spec)) is warned


def test_dropout_of_a_tower_is_warned_of_where_the_first_step_has_no_image(tmp_path: Path) -> None:
    changes = {"train__parts": ["language", "vision_tower"], "train__global_batch_size": 1}
    spec = task_spec("vision", tmp_path, rows=8, eval_rows=0, train__max_steps=1, **changes)
    run_here(spec)
    assert "losses depend on processes" not in log(spec), "the seed's first row has none"
    whole = spec.model_copy(update={"name": "whole", "train": spec.train.model_copy(update={"max_steps": 8})})
    run_here(whole)
    assert log(whole).count("losses depend on processes and passes") == 1
