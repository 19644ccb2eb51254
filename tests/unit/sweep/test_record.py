"""The record answers the same, however often it is opened anew, and an answer that was cut short does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage

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


class Killed(BaseException):
    """In place of SIGKILL."""


def killed_at(patch: pytest.MonkeyPatch, write: int) -> None:
    """Killed before the storage's so manyth write from now on."""
    left = write

    def dying(own: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return own(*arguments)

        return written

    for name in ("system_attr", "user_attr", "intermediate_value", "state_values"):
        own = getattr(RDBStorage, f"set_trial_{name}")
        patch.setattr(RDBStorage, f"set_trial_{name}", dying(own))


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_judgement_that_was_cut_short_anywhere_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruner: str
) -> None:
    """Killed before each write of each evaluation: of what hyperband notes, of the verdict, the value and the state."""
    sweep = sweep_of(tmp_path, sampler="random", pruner=pruner, trials=10)
    undisturbed = history(sweep, tmp_path / "one.db", reopened=False)
    file = tmp_path / "two.db"
    report, most = Record.report, 0

    def cut_short(_record: Record, number: int, value: float) -> bool:
        nonlocal most
        reported = len(Record(sweep, file).trials[number].evaluations)
        for write in count(1):
            with monkeypatch.context() as patch:
                killed_at(patch, write)
                try:
                    return report(Record(sweep, file), number, value)
                except Killed:
                    most = max(most, write)
            trial = Record(sweep, file).trials[number]
            if trial.is_over or len(trial.evaluations) > reported:  # it goes on as one to whom that was answered
                return trial.is_over
        raise AssertionError

    monkeypatch.setattr(Record, "report", cut_short)
    assert history(sweep, file, reopened=False) == undisturbed
    assert most > 1 and any(trial.state == "pruned" for trial in undisturbed)


def side_by_side(sweep: Sweep, file: Path, others: Sequence[float]) -> Record:
    """Completed trials that scored so at their one evaluation, and one more that is under way."""
    record = Record(sweep, file)
    for number, value in enumerate(others):
        record.draw()
        record.report(number, value)
        record.complete(number, value)
    record.draw()
    return record


@pytest.mark.parametrize("write", [2, 3])
def test_a_verdict_that_a_kill_cut_short_stands_whatever_others_score_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """Behind the verdict come its value and its end. Judged by what others have by then, the trial would go on."""
    sweep, file = sweep_of(tmp_path, sampler="random", pruner="median", trials=20), tmp_path / "study.db"
    record = side_by_side(sweep, file, [1.0] * 5)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, write)
        record.report(5, 2.0)
    record = Record(sweep, file)
    for _ in range(6):
        later = record.draw()
        assert later is not None
        record.complete(later.number, 9.0)
    trial = Record(sweep, file).trials[5]
    assert (trial.state, trial.evaluations, trial.value) == ("pruned", (2.0,), 2.0)


def test_a_verdict_that_a_trial_has_outlived_is_not_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version knows no verdicts: it went on with the trial, and was killed itself."""
    sweep, file = sweep_of(tmp_path, sampler="random", pruner="median", trials=20), tmp_path / "study.db"
    record = side_by_side(sweep, file, [1.0] * 5)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 2)
        record.report(5, 2.0)
    own = record._frozen()[5]._trial_id
    for step, value in enumerate((2.0, 0.5, 0.1), start=1):
        record._storage.set_trial_intermediate_value(own, step, value)
    trial = Record(sweep, file).trials[5]
    assert (trial.state, trial.evaluations) == ("running", (2.0, 0.5, 0.1))


@pytest.mark.parametrize("write", [2, 3])
def test_a_verdict_to_go_on_that_a_kill_cut_short_stands_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """With what hyperband has noted of it, by which others are judged: here as the best one so far."""
    sweep, file = sweep_of(tmp_path, sampler="random", pruner="hyperband", trials=20), tmp_path / "study.db"
    record = side_by_side(sweep, file, [1.0] * 5)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, write)
        record.report(5, 0.5)
    record = Record(sweep, file)
    trial = record.trials[5]
    assert (trial.state, trial.evaluations) == ("running", (0.5,))
    assert record._frozen()[5].system_attrs["completed_rung_0"] == 0.5


def test_a_trial_that_was_told_to_go_on_is_not_judged_again_by_what_others_score_later(tmp_path: Path) -> None:
    sweep, file = sweep_of(tmp_path, sampler="random", pruner="median", trials=20), tmp_path / "study.db"
    record = side_by_side(sweep, file, [1.0] * 5)
    assert not record.report(5, 0.9)
    for number in range(6, 12):
        assert (record.draw() or record.trials[0]).number == number
        record.report(number, 0.1)
        record.complete(number, 0.1)
    assert Record(sweep, file).trials[5].state == "running"


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
