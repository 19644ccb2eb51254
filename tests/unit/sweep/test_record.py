"""The record answers the same, however often it is opened anew, and an answer that was cut short does not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.spec.search_space import chosen_values
from rankzero.spec.sweep_load import Sweep, trial_spec
from rankzero.sweep.record import Record, Trial
from tests.support.sweeps import score, sweep_of


def history(sweep: Sweep, file: Path, *, reopened: bool) -> list[Trial]:
    """Its trials, each with two evaluations before its score."""
    record = Record(sweep, file)
    while len(record.trials) < sweep.trials:
        trial = record.draw()
        assert trial is not None
        value = score(trial_spec(sweep, chosen_values(sweep.space, trial.labels), "t", "/t"))
        for number in range(2):
            record = Record(sweep, file) if reopened else record
            if record.report(trial.number, value + 1 / (number + 1)):
                break
        else:
            record.complete(trial.number, value)
        record = Record(sweep, file) if reopened else record
    return record.trials


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        pytest.param("tpe", "hyperband", marks=pytest.mark.slow),
        ("random", "median"),
        pytest.param("cmaes", "none", marks=pytest.mark.slow),
    ],
)
def test_the_same_is_tried_however_often_it_was_started(tmp_path: Path, sampler: str, pruner: str) -> None:
    sweep = sweep_of(tmp_path, sampler=sampler, pruner=pruner, trials=12 if sampler == "tpe" else 8)
    one, often = (history(sweep, tmp_path / f"{name}.db", reopened=name == "often") for name in ("one", "often"))
    assert one == often
    assert len({tuple(trial.labels.items()) for trial in one}) > len(one) // 2
    if pruner != "none":
        assert {trial.state for trial in one} == {"complete", "pruned"}


def test_another_seed_tries_something_else(tmp_path: Path) -> None:
    first, second = (
        history(sweep_of(tmp_path, seed=seed, trials=2), tmp_path / f"{seed}.db", reopened=False) for seed in (1, 2)
    )
    assert [trial.labels for trial in first] != [trial.labels for trial in second]


def test_a_judgement_that_was_cut_short_is_made_again_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after what hyperband notes of a trial was written, and before its verdict was."""
    sweep = sweep_of(tmp_path, sampler="random", pruner="hyperband", trials=10)
    undisturbed = history(sweep, tmp_path / "one.db", reopened=False)
    file = tmp_path / "two.db"

    class Killed(BaseException):
        """In place of SIGKILL."""

    killed = 0
    report = Record.report

    def cut_short(self: Record, number: int, value: float) -> bool:
        nonlocal killed
        with monkeypatch.context() as patch:

            def die(*_: object) -> None:
                raise Killed

            patch.setattr(self._storage, "set_trial_intermediate_value", die)
            with pytest.raises(Killed):
                report(self, number, value)
        killed += 1
        return report(Record(sweep, file), number, value)

    monkeypatch.setattr(Record, "report", cut_short)
    assert history(sweep, file, reopened=False) == undisturbed
    assert killed and any(trial.state == "pruned" for trial in undisturbed)


def test_a_sweep_that_is_renamed_goes_on_and_judges_as_before(tmp_path: Path) -> None:
    """Hyperband draws a trial's bracket by the name of the study."""
    fields: dict[str, Any] = {"sampler": "random", "pruner": "hyperband"}
    undisturbed = history(sweep_of(tmp_path, trials=10, **fields), tmp_path / "one.db", reopened=False)
    file = tmp_path / "two.db"
    history(sweep_of(tmp_path, trials=4, **fields), file, reopened=False)
    renamed = [history(sweep_of(tmp_path, trials=n, name=f"n{n}", **fields), file, reopened=False) for n in (7, 10)]
    assert renamed[-1] == undisturbed and any(trial.state == "pruned" for trial in undisturbed)


def test_a_failed_trial_says_why_and_a_grid_ends(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, sampler="grid", parameters={"lora.r": {"values": [4, 8]}})
    record = Record(sweep, tmp_path / "study.db")
    assert [trial.labels for trial in (record.draw(), record.draw()) if trial] == [{"lora.r": 4}, {"lora.r": 8}]
    assert record.draw() is None
    record.fail(0, "no memory", 70)
    record.complete(1, 0.5)
    assert [(trial.state, trial.cause, trial.exit_code, trial.value) for trial in record.trials] == [
        ("failed", "no memory", 70, None),
        ("complete", "", None, 0.5),
    ]


def test_importance_tells_the_field_that_matters(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, sampler="random", trials=12)
    record = Record(sweep, tmp_path / "study.db")
    assert record.importances() == {}
    for _ in range(12):
        trial = record.draw()
        assert trial is not None
        record.complete(trial.number, abs(float(trial.labels["lora.r"] or 0) - 30))
    found = record.importances()
    assert list(found) == ["lora.r", "train.learning_rate"]
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["a?b", "50%41x", "a#b", "{SCHEMA_VERSION}", "ü ö", "a'b"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    sweep = sweep_of(tmp_path / name)
    sweep.directory.mkdir(parents=True)
    record = Record(sweep, sweep.directory / "study.db")
    assert record.draw() is not None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yaml"] == ["study.db"]
    assert (sweep.directory / "study.db").is_file()
    assert len(Record(sweep, sweep.directory / "study.db").trials) == 1
