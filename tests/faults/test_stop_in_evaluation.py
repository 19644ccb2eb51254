"""SIGTERM in an evaluation: left out within a pass on all ranks, and made when the run continues, as if undisturbed."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine import step, train, worker
from rankzero.engine.hooks import Hooks
from rankzero.errors import ExitCode, StoppedError
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import metrics, run_here, run_root, small_spec, stop_in
from tests.support.tiny import chat_rows, write_jsonl
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = pytest.mark.faults

CHANGES: dict[str, Any] = {"eval_rows": 23, "train__micro_batch_tokens": 64, "eval__every": 3, "lora__dropout": 0.0}
"""12 steps, evaluated after 3, 6, 9 and 12 in a dozen passes; in half a dozen by each of two ranks."""


class Passes:
    """Counts passes of evaluations, and asks this process to stop in one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, *, in_step: int, in_pass: int) -> None:
        self.count = 0
        """Of the evaluation that was stopped."""
        self._step = 0
        loss_sum = step.Stepper.loss_sum

        def counted(stepper: Any, batch: Any, *more: Any) -> Any:
            if not torch.is_grad_enabled() and self._step == in_step:
                self.count += 1
                if self.count == in_pass:
                    os.kill(os.getpid(), signal.SIGTERM)
            return loss_sum(stepper, batch, *more)

        patch.setattr(step.Stepper, "loss_sum", counted)

    def hooks(self) -> Hooks:
        """Those of the run that is counted."""

        def begins(number: int) -> None:
            self._step = number

        return Hooks(step_begins=begins)


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("undisturbed")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = small_spec(root, tiny, **CHANGES)
        run_here(spec)
    return spec


@pytest.mark.parametrize(("in_step", "in_pass"), [(3, 1), (6, 3), (12, 2)])
def test_an_evaluation_is_left_out_and_made_later(
    in_step: int, in_pass: int, tmp_path: Path, tiny: Path, undisturbed: RunSpec
) -> None:
    spec = small_spec(tmp_path, tiny, **CHANGES)
    with pytest.MonkeyPatch.context() as patch:
        passes = Passes(patch, in_step=in_step, in_pass=in_pass)
        with pytest.raises(StoppedError, match=f"saved at step {in_step}"):
            run_here(spec, hooks=passes.hooks())
        assert passes.count == in_pass, "not one pass more"
    assert [row["step"] for row in metrics(spec)] == list(range(1, in_step + 1))
    assert "eval_loss" not in metrics(spec)[-1]
    beats: list[tuple[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "beats", lambda: nullcontext(lambda *beat: beats.append(beat)))
        assert run_here(spec)["steps"] == 12
    assert beats[0] == ("evaluation", in_step)
    steps = [done for activity, done in beats if activity == "step"]
    assert steps == list(range(in_step, 12)), "who looks for hangs takes each for a step, and judges the next by it"
    assert without_clock(metrics(spec)) == without_clock(metrics(undisturbed))
    assert_same_state(final_state(spec), final_state(undisturbed))
    assert os.readlink(run_root(spec) / "best") == os.readlink(run_root(undisturbed) / "best")


def test_a_stop_in_the_evaluation_before_the_first_step(tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(tmp_path, tiny, **CHANGES, eval__on_start=True, train__num_train_epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        passes = Passes(patch, in_step=0, in_pass=2)
        with pytest.raises(StoppedError, match="before the first step"):
            run_here(spec, hooks=passes.hooks())
        assert passes.count == 2
    assert run_here(spec)["steps"] == 4
    assert [row["step"] for row in metrics(spec)] == [0, 1, 2, 3, 4]


OWED = {
    "shorter": ({"train__max_steps": 5}, "train.max_steps"),
    "other data": ({"data__eval": "other"}, "eval_data"),
    "stopped": ({}, "none"),
}
"""Evaluations that a start makes of a step that an earlier one has made: what the setting is now, what may change."""


@pytest.mark.parametrize(("owed", "lost"), [*((owed, "") for owed in OWED), ("shorter", "metrics")])
def test_an_owed_evaluation_that_is_killed_is_made_by_the_next_start(
    owed: str, lost: str, tmp_path: Path, tiny: Path
) -> None:
    """With all that metrics.jsonl has of its step; without, where that file is lost too."""
    whole, killed = (begun_for(owed, tmp_path / name, tiny) for name in ("whole", "killed"))
    changes, allowed = OWED[owed]
    if "data__eval" in changes:
        changes = {"data__eval": str(write_jsonl(tmp_path / "other.jsonl", chat_rows(5)))}
    results = []
    for spec in (whole, killed):
        settings = {**CHANGES, "checkpoint__keep": 9, **changes}
        now = small_spec(Path(spec.output_dir).parent, tiny, **settings)
        for _ in range(2 if spec is killed else 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(train, "evaluate", dies)
                with pytest.raises(KilledError):
                    run_here(now, allow_changes=(allowed,))
            if lost:
                (run_root(spec) / "metrics.jsonl").unlink()
        results.append(run_here(now, allow_changes=(allowed,)))
    same = ("steps", "eval_loss", "last_evaluation", "best_step", "final_step")
    assert [results[0][name] for name in same] == [results[1][name] for name in same]
    assert results[1]["last_evaluation"]["step"] == results[1]["steps"]
    first, last = without_clock(metrics(whole)), without_clock(metrics(killed))
    if lost and owed != "stopped":  # of a stop the checkpoint knows the step
        assert [row["step"] for row in last] == [results[1]["steps"]]
        assert {n: last[-1][n] for n in ("loss", "epoch", "eval_loss")} == {
            n: first[-1][n] for n in ("loss", "epoch", "eval_loss")
        }
    else:
        assert last == first[-len(last) :] and (lost or len(last) == len(first))


def begun_for(owed: str, directory: Path, tiny: Path) -> RunSpec:
    """A run that owes an evaluation, or does by the setting that it gets."""
    directory.mkdir()
    spec = small_spec(directory, tiny, **CHANGES, checkpoint__keep=9)
    with pytest.MonkeyPatch.context() as patch:
        if owed == "shorter":
            with pytest.raises(StoppedError):
                run_here(spec, hooks=stop_in(5))
        elif owed == "stopped":
            with pytest.raises(StoppedError):
                run_here(spec, hooks=Passes(patch, in_step=12, in_pass=2).hooks())
        else:
            run_here(spec)
    return spec


class KilledError(RuntimeError):
    """As a kill, a lost peer, or several processes that run out of memory: nothing is saved after it."""


def dies(*_given: Any, **_named: Any) -> None:
    raise KilledError


@pytest.mark.distributed
def test_ranks_leave_an_evaluation_together_where_one_is_asked_to(tmp_path: Path, tiny: Path) -> None:
    """As where one node of several is drained: its ranks alone hear of it."""
    whole, cut = (small_spec(tmp_path / name, tiny, **CHANGES) for name in ("whole", "cut"))
    cache = os.environ["RANKZERO_CACHE"]
    for spec, ask, code in ((whole, 0, 0), (cut, 2, ExitCode.STOPPED), (cut, 0, 0)):
        said = tmp_path / f"said-{spec.output_dir.count('cut')}-{ask}"
        said.mkdir()
        codes = in_ranks(one_rank, 2, said, cache, spec.model_dump_json(), ask)
        assert codes == [code, code], "\n".join(path.read_text() for path in said.glob("said-*"))
        if ask:
            assert int((said / "passes-1").read_text()) == ask
            assert int((said / "passes-0").read_text()) <= ask + 1
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))
    assert_same_state(final_state(cut), final_state(whole))


def one_rank(directory: Path, cache: str, text: str, in_pass: int) -> None:
    """A rank of a run; the last one is asked to stop in a pass of the evaluation after step 6."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache
    rank = os.environ["RANK"]
    with pytest.MonkeyPatch.context() as patch:
        passes = Passes(patch, in_step=6, in_pass=in_pass if rank == "1" else 0)
        try:
            worker.run(RunSpec.model_validate_json(text), RunOptions(), passes.hooks())
        finally:
            (directory / f"passes-{rank}").write_text(str(passes.count))
