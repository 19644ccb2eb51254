"""What is said of a directory with another run's checkpoints before torch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankzero
from rankzero.errors import ConfigError, UsageError
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.same_run import refuse_foreign_directory
from rankzero.spec.run_options import RunOptions
from tests.unit.run_dir.test_setting import save, spec


def test_every_change_that_matters_is_named_and_none_that_does_not(tmp_path: Path) -> None:
    before = spec(tmp_path, resume="refuse")
    run_dir = RunDir(tmp_path / "r")
    refuse_foreign_directory(run_dir, before, ())  # there is nothing yet
    save(before)
    refuse_foreign_directory(run_dir, before, ())
    refuse_foreign_directory(run_dir, spec(tmp_path, resume="refuse", checkpoint={"every": 7}), ())
    other = spec(tmp_path, resume="refuse", lora={}, train={"learning_rate": 0.5, "seed": 3})
    with pytest.raises(ConfigError) as caught:
        refuse_foreign_directory(run_dir, other, ("train.seed",))
    first, *rest = caught.value.problems
    assert first.what == "this directory holds checkpoints of another run"
    assert {"train.learning_rate", "lora.r"} <= {problem.where for problem in rest}
    assert "train.seed" not in {problem.where for problem in rest}


def test_training_and_dry_run_refuse_it_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api import specs, training

    monkeypatch.setattr(training, "run_to_end", lambda *_, **__: pytest.fail("it was about to train"))
    save(spec(tmp_path, resume="refuse"))
    other = spec(tmp_path, resume="refuse", train={"learning_rate": 0.5})
    with pytest.raises(ConfigError, match="holds checkpoints of another run"):
        training.start(other, RunOptions(), 1, in_process=False)
    with pytest.raises(UsageError):
        training.require_same_run(other, RunOptions(allow_changes=("train.nothing",)))
    monkeypatch.setattr(specs, "checked", lambda *_: other)
    with pytest.raises(ConfigError, match="holds checkpoints of another run"):
        rankzero.dry_run(other)
