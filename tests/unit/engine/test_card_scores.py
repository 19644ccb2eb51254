"""What a result's card calls the score before training is one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rankzero.engine.card import _scores
from rankzero.engine.checkpoint import Position, under, with_eval
from rankzero.errors import StoppedError
from rankzero.run_dir.atomic import MANIFEST, commit_directory, read_manifest
from rankzero.run_dir.card import card_of
from tests.support.runs import metrics, run_here, run_root, small_spec, stop_in


@pytest.mark.parametrize("on_start", [False, True])
def test_before_is_before_the_first_step(on_start: bool, tmp_path: Path, tiny: Path) -> None:
    changes = {"train__max_steps": 4, "eval__every": 2, "eval__on_start": on_start}
    spec = small_spec(tmp_path, tiny, **changes)
    report = run_here(spec)
    card = card_of(run_root(spec) / "final")
    assert card is not None
    [(before, after)] = [scores for name, *scores in card.scores if name == "eval_loss"]
    assert before == (metrics(spec)[0]["eval_loss"] if on_start else None)
    assert after == report["eval_loss"]


@pytest.mark.parametrize("on_start", [False, True])
def test_a_run_of_an_older_version_has_its_score_of_before(on_start: bool, tmp_path: Path, tiny: Path) -> None:
    """Which did not save of which step the first evaluation is; metrics.jsonl says it."""
    spec = small_spec(tmp_path, tiny, train__max_steps=4, eval__every=2, eval__on_start=on_start)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(3))
    saved = run_root(spec) / "checkpoints/step-3"
    older = Path(shutil.copytree(saved, tmp_path / "older", ignore=shutil.ignore_patterns(MANIFEST)))
    state = json.loads((older / "trainer.json").read_text())
    assert state["position"].pop("eval_first_step") == (0 if on_start else 2)
    (older / "trainer.json").write_text(json.dumps(state))
    commit_directory(older, saved, {k: v for k, v in read_manifest(saved).items() if k not in ("format", "files")})
    run_here(spec)
    card = card_of(run_root(spec) / "final")
    assert card is not None
    [(before, _)] = [scores for name, *scores in card.scores if name == "eval_loss"]
    assert before == (metrics(spec)[0]["eval_loss"] if on_start else None)


def test_an_evaluation_behind_an_accepted_change_is_none_of_the_base(tmp_path: Path, tiny: Path) -> None:
    """Evaluations of before are compared with none; the first that follows is of trained weights."""
    spec = small_spec(tmp_path, tiny)
    first, _ = with_eval(Position(), {"eval_loss": 3.0}, "eval_loss")
    changed = under(spec, replace(first, step=5), comparable=False)
    after, _ = with_eval(replace(changed, step=6), {"eval_loss": 2.0}, "eval_loss")
    last, _ = with_eval(replace(after, step=7), {"eval_loss": 1.0}, "eval_loss")
    assert (last.eval_first, last.eval_first_step) == ({"eval_loss": 2.0}, 6)
    assert ("eval_loss", None, 1.0) in _scores(last, 7)
