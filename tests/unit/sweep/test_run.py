"""The loop of a sweep over a place that trains nothing: failures, stops, restarts, and several at a time."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankzero.errors import (
    AccessError,
    ConfigError,
    DataError,
    NonFiniteError,
    RankzeroError,
    ServiceError,
    StoppedError,
    StorageError,
)
from rankzero.persist.run_store import OtherRunError
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_load import Sweep
from rankzero.sweep import run as loop
from rankzero.sweep.outcome import keep_contents, keep_setting, require_a_result, write_best
from rankzero.sweep.place import SweepDir
from rankzero.sweep.record import Record
from rankzero.sweep.run import SweepRun
from rankzero.sweep.trainer import Known, TrialStart
from tests.support.sweeps import RUN, Formula, FormulaStart, sweep_of
from tests.support.unreadable import stale


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(loop, "PAUSE_SECONDS", (0.0,))


def run_it(
    sweep: Sweep, place: Formula, said: list[str] | None = None, *, parallel: int = 1
) -> tuple[Record, list[str]]:
    """To its end. Returns the record, and what was said."""
    said = [] if said is None else said
    sweep.directory.mkdir(parents=True, exist_ok=True)
    record = Record(sweep, sweep.directory / "study.db")
    SweepRun(sweep, record, place, parallel, said.append).to_its_end()
    return record, said


def keep(sweep: Sweep) -> None:
    """Without files: all that it names is elsewhere."""
    keep_setting(sweep, dict, lambda: Record(sweep, SweepDir(sweep.directory).record))


def test_a_failed_trial_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    broken = RankzeroError("no memory")
    failures: dict[str, list[RankzeroError]] = {
        "trial-000": [NonFiniteError("the loss of step 3 is NaN")],
        "trial-001": [RankzeroError("process 0 was killed by SIGKILL")],
        "trial-002": [broken] * 9,
    }
    place = Formula(failures=failures)
    record, said = run_it(sweep_of(tmp_path, trials=4), place)
    assert [trial.state for trial in record.trials] == ["failed", "complete", "failed", "complete"]
    assert [place.started.count(f"trial-00{number}") for number in range(4)] == [1, 2, 4, 1]
    assert "NaN" in record.trials[0].cause
    assert any(line.startswith("[TRIAL 3] done: eval_loss") for line in said)


def test_where_nothing_has_a_result_the_trials_error_is_the_sweeps(tmp_path: Path) -> None:
    failures: dict[str, list[RankzeroError]] = {f"trial-00{n}": [ConfigError("no such module: q")] for n in range(2)}
    sweep = sweep_of(tmp_path, trials=2)
    record, _ = run_it(sweep, Formula(failures=failures))
    with pytest.raises(RankzeroError, match="no trial has a result: no such module: q") as caught:
        require_a_result(sweep, record.trials)
    assert caught.value.exit_code == 78
    assert write_best(sweep, record.trials) is None


@pytest.mark.parametrize("kind", [DataError, ServiceError, AccessError, ConfigError])
def test_what_may_have_been_mended_is_tried_again_by_the_next_start(tmp_path: Path, kind: type[RankzeroError]) -> None:
    """With its values, and in its place: what is wrong with data, a token or a package is nobody's outcome."""
    sweep = sweep_of(tmp_path, trials=3)
    failures: dict[str, list[RankzeroError]] = {
        "trial-000": [NonFiniteError("the loss of step 3 is NaN")],
        "trial-001": [kind("it is not there")] * 4,
    }
    before, _ = run_it(sweep, Formula(failures=failures))
    assert [trial.state for trial in before.trials] == ["failed", "failed", "complete"]
    labels = [trial.labels for trial in before.trials]
    after, said = run_it(sweep, (again := Formula()))
    assert [trial.state for trial in after.trials] == ["failed", "complete", "complete"]
    assert again.started == ["trial-001"]
    assert [trial.labels for trial in after.trials] == labels
    assert after.trials[1].cause == "" and after.trials[1].exit_code is None
    assert "[TRIAL 1] had failed (" in said[0]


def test_where_nothing_was_mended_a_trial_fails_again_and_the_others_stay(tmp_path: Path) -> None:
    parameters = {"train.sharding": {"values": ["zero3", "ddp"]}, "train.offload": {"values": ["optimizer"]}}
    sweep = sweep_of(tmp_path, sampler="grid", parameters=parameters)
    before, _ = run_it(sweep, Formula())
    after, _ = run_it(sweep, (again := Formula()))
    assert [trial.state for trial in after.trials] == ["complete", "failed"]
    assert after.trials == before.trials and again.started == []


def test_a_cause_that_all_trials_share_ends_the_sweep_before_it_is_used_up(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=9, parameters={"lora.r": {"min": 2, "max": 64}})
    bad = {f"trial-00{n}": [DataError("no messages", where="train.jsonl:3", hint="mend it")] for n in range(9)}
    place = Formula(failures={name: list(errors) for name, errors in bad.items()})
    with pytest.raises(RankzeroError, match="the first 3 trials failed alike: train.jsonl:3: no messages") as caught:
        run_it(sweep, place)
    assert caught.value.exit_code == 65
    assert place.started == ["trial-000", "trial-001", "trial-002"]
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 9


def test_a_cause_that_a_value_may_have_ends_no_sweep(tmp_path: Path) -> None:
    """The first six points of this grid have it, and what each of them has in common with the others."""
    values = {"model.attention": {"values": ["varlen", "sdpa"]}, "lora.r": {"values": [2, 4, 6, 8, 10, 12]}}
    failures: dict[str, list[RankzeroError]] = {f"trial-00{n}": [ConfigError("no varlen here")] for n in range(6)}
    record, _ = run_it(sweep_of(tmp_path, sampler="grid", parameters=values, trials=12), Formula(failures=failures))
    assert [trial.state for trial in record.trials] == ["failed"] * 6 + ["complete"] * 6


def test_a_combination_that_no_run_can_have_is_a_failed_trial(tmp_path: Path) -> None:
    parameters = {"train.sharding": {"values": ["ddp", "zero3"]}, "train.offload": {"values": ["none", "optimizer"]}}
    record, _ = run_it(sweep_of(tmp_path, sampler="grid", parameters=parameters), Formula())
    states = {(trial.labels["train.sharding"], trial.labels["train.offload"]): trial.state for trial in record.trials}
    assert states == {
        ("ddp", "none"): "complete",
        ("ddp", "optimizer"): "failed",
        ("zero3", "none"): "complete",
        ("zero3", "optimizer"): "complete",
    }


def test_a_full_volume_ends_the_sweep_and_no_trial_is_lost(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=3)
    full = StorageError("No space left on device", where="/trials")
    with pytest.raises(StorageError, match="No space left"):
        run_it(sweep, Formula(failures={"trial-001": [full] * 4}))
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 3


class Hidden(Formula):
    """Of a trial something cannot be read for a while, as often as is said."""

    def __init__(self, what: str, times: int = 1) -> None:
        super().__init__(failures={"trial-001": [ServiceError("a tracker is away")]} if what == "saved" else None)
        self.what, self.times = what, times

    def look(self, what: str) -> None:
        if what == self.what and self.times:
            self.times -= 1
            raise StorageError("Stale file handle", where=what)

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        start = super().start(spec, slot, known)
        return HiddenStart(self, spec, start._fault) if isinstance(start, FormulaStart) else start

    def saved(self, spec: RunSpec) -> int | None:
        self.look("saved")
        return None


class HiddenStart(FormulaStart):
    def evaluations(self) -> list[float]:
        if self._done > 3:
            self._place.look("the last evaluations")  # type: ignore[attr-defined]
        elif self._done == 2:
            self._place.look("evaluations")  # type: ignore[attr-defined]
        return super().evaluations()

    def result(self) -> float | None:
        self._place.look("result")  # type: ignore[attr-defined]
        return super().result()


@pytest.mark.parametrize(("what", "starts"), [("result", 2), ("the last evaluations", 2), ("evaluations", 1)])
def test_what_cannot_be_read_for_a_while_is_read_when_it_can_be(tmp_path: Path, what: str, starts: int) -> None:
    """It said that the loss is no finite number, for ever, or went on without evaluations that others are judged by."""
    undisturbed, _ = run_it(sweep_of(tmp_path / "other", trials=2), Formula())
    record, said = run_it(sweep_of(tmp_path, trials=2), (place := Hidden(what)))
    assert record.trials == undisturbed.trials
    assert place.started.count("trial-000") == starts
    assert ("[TRIAL 0] is started again, 1 of 3" in said) == (starts == 2)


@pytest.mark.parametrize("what", ["result", "the last evaluations", "saved"])
def test_what_stays_unreadable_ends_the_sweep_and_no_trial_is_lost(tmp_path: Path, what: str) -> None:
    sweep = sweep_of(tmp_path, trials=2)
    with pytest.raises(StorageError, match="Stale file handle"):
        run_it(sweep, Hidden(what, times=99))
    record, _ = run_it(sweep, Formula())
    undisturbed, _ = run_it(sweep_of(tmp_path / "other", trials=2), Formula())
    assert record.trials == undisturbed.trials


def test_a_store_with_another_sweeps_trials_ends_this_one_and_no_trial_is_lost(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=3)
    with pytest.raises(ConfigError, match="another run"):
        run_it(sweep, Formula(failures={"trial-000": [OtherRunError("it holds another run", where="s3://bucket")]}))
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 3


def test_a_trial_that_cannot_be_started_ends_the_sweep_when_the_others_have_saved(tmp_path: Path) -> None:
    class Unreachable(Formula):
        def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
            if spec.name == "trial-001":
                raise StorageError("the store does not answer", where="s3://bucket")
            return super().start(spec, slot, known)

    sweep, place = sweep_of(tmp_path, trials=3), Unreachable()
    with pytest.raises(StorageError, match="does not answer"):
        run_it(sweep, place, parallel=2)
    assert place.asked_to_stop == ["trial-000"]
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 3


def test_a_stop_saves_the_trials_and_the_same_command_goes_on_with_their_values(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=4)
    place = Formula()
    looks = 0

    def stop_later() -> None:
        nonlocal looks
        looks += 1
        if looks == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    place.looked = stop_later
    with pytest.raises(StoppedError, match="1 of 4 trials are over"):
        run_it(sweep, place)
    before = Record(sweep, sweep.directory / "study.db").trials
    assert [trial.state for trial in before] == ["complete", "running"]
    record, _ = run_it(sweep, (again := Formula()))
    assert again.started == ["trial-001", "trial-002", "trial-003"]
    assert record.trials[1].labels == before[1].labels
    undisturbed, _ = run_it(sweep_of(tmp_path / "other", trials=4), Formula())
    assert record.trials == undisturbed.trials


def test_a_stop_in_the_last_trial_is_one_too(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=1)
    place = Formula()
    place.looked = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StoppedError, match="0 of 1 trials are over"):
        run_it(sweep, place)
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"]


def test_a_stop_is_answered_and_a_second_one_says_what_it_leaves(tmp_path: Path) -> None:
    place, looks, said = Formula(), itertools.count(), list[str]()

    def interrupt() -> None:
        if next(looks) < 2:
            os.kill(os.getpid(), signal.SIGINT)

    place.looked = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_it(sweep_of(tmp_path, trials=2), place, said)
    assert [line for line in said if line.startswith("[STOP]")] == [
        "[STOP] 1 trial to save; Ctrl-C again: leave now, losing what they did since they last saved",
        "[STOP] left at once: the same command takes 1 trial up at the newest checkpoint",
    ]
    record, _ = run_it(sweep_of(tmp_path, trials=2), Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 2


def test_a_trial_that_somebody_stopped_goes_on(tmp_path: Path) -> None:
    place = Formula(failures={"trial-000": [StoppedError("stopped")]})
    record, said = run_it(sweep_of(tmp_path, trials=1), place)
    assert place.started == ["trial-000", "trial-000"]
    assert record.trials[0].state == "complete"
    assert any("was stopped by somebody" in line for line in said)


def test_a_trial_that_is_stopped_each_time_before_it_gets_on_is_left_for_the_next_command(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=2)
    place = Formula(failures={"trial-000": [StoppedError("stopped without saving")] * 40})
    record, said = run_it(sweep, place)
    assert place.started.count("trial-000") == 4
    assert [trial.state for trial in record.trials] == ["failed", "complete"]
    assert any("3 restarts in a row have brought nothing new" in line for line in said)
    record, _ = run_it(sweep, Formula())
    assert [trial.state for trial in record.trials] == ["complete"] * 2


def test_a_trial_that_gets_on_between_stops_is_started_as_often_as_it_is_stopped(tmp_path: Path) -> None:
    place = Formula(failures={"trial-000": [StoppedError("stopped")] * 9})
    place.steps = [*range(10, 100, 10)]
    record, _ = run_it(sweep_of(tmp_path, trials=1), place)
    assert place.started.count("trial-000") == 10 and record.trials[0].state == "complete"


def test_a_trial_that_somebody_stopped_is_started_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    starts: list[float] = []

    class Timed(Formula):
        def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
            starts.append(now[0])
            return super().start(spec, slot, known)

    def sleep(_seconds: float) -> None:
        now[0] += 0.5

    monkeypatch.setattr(loop, "PAUSE_SECONDS", (1.0, 10.0, 30.0))
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    run_it(sweep_of(tmp_path, trials=1), Timed(failures={"trial-000": [StoppedError("stopped")] * 3}))
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(pauses) == 3 and all(pause >= least for pause, least in zip(pauses, (1.0, 10.0, 30.0), strict=True))


def test_trials_run_side_by_side_and_never_more(tmp_path: Path) -> None:
    place = Formula()
    record, _ = run_it(sweep_of(tmp_path, trials=5), place, parallel=2)
    assert place.most_at_once == 2 and place.at_once == 0
    assert [trial.state for trial in record.trials] == ["complete"] * 5


def test_a_trial_that_is_worse_than_others_ends_early(tmp_path: Path) -> None:
    record, said = run_it(sweep_of(tmp_path, trials=8, sampler="random", pruner="median"), Formula(evaluations=2))
    pruned = [trial for trial in record.trials if trial.state == "pruned"]
    assert pruned and all(len(trial.evaluations) < 3 and trial.value is not None for trial in pruned)
    assert any("ends here" in line for line in said)


def test_the_best_spec_is_a_run_of_its_own(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, trials=3)
    record, _ = run_it(sweep, Formula(evaluations=0))
    best = write_best(sweep, record.trials)
    assert best is not None and best.value == min(trial.value or 9 for trial in record.trials)
    spec = load_run_spec(sweep.directory / "best.yaml", env={}).spec
    assert (spec.name, spec.output_dir) == ("sweep-best", str(tmp_path / "runs"))
    assert spec.lora is not None and spec.lora.r == best.labels["lora.r"]
    assert spec.train.learning_rate == best.labels["train.learning_rate"]


def test_a_directory_of_another_sweep_is_refused_with_every_difference(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    keep(sweep)
    keep(sweep_of(tmp_path, trials=50, parallel=3))
    run = json.loads(json.dumps({"model": {"name": "org/model"}, "data": {"train": "org/rows"}}))
    run["data"]["eval"] = {"fraction": 0.2}
    other = sweep_of(tmp_path, run, seed=7)
    with pytest.raises(ConfigError) as caught:
        keep(other)
    fields = {problem.where.partition(": ")[2] for problem in caught.value.problems}
    assert {"sweep: seed", "run: data.eval.fraction"} <= fields


def test_a_sweep_whose_setting_cannot_be_read_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, other = sweep_of(tmp_path), sweep_of(tmp_path, seed=7)
    keep(sweep)
    with monkeypatch.context() as away:
        stale(away, SweepDir(sweep.directory).setting)
        away.setattr(Path, "is_file", lambda _path: False)  # as it says from Python 3.14 on
        with pytest.raises(StorageError, match="Stale file handle"):
            keep(other)
        with pytest.raises(StorageError, match="Stale file handle"):
            keep_contents(other, None, {}, [])
    with pytest.raises(ConfigError, match="seed"):
        keep(other)


def test_what_a_run_may_change_a_sweep_may(tmp_path: Path) -> None:
    """As its trials do, which go on across it; not what they are compared by, which changes no step either."""
    keep(sweep_of(tmp_path, RUN))
    mended = {"train": {"micro_batch_tokens": 64}, "output_url": "s3://bucket", "checkpoint": {"keep": 1, "every": 9}}
    keep(sweep_of(tmp_path, {**RUN, **mended}))
    for section, field, value in [
        ("checkpoint", "final", "last"),
        ("eval", "every", 3),
        ("eval", "early_stopping_patience", 2),
        ("model", "name", "org/other"),
        ("train", "seed", 1),
    ]:
        with pytest.raises(ConfigError) as caught:
            keep(sweep_of(tmp_path, {**RUN, section: {**RUN.get(section, {}), field: value}}))
        (problem,) = caught.value.problems
        assert problem.where.endswith(f": run: {section}.{field}")


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_pruner_may_be_given_up_until_it_has_ended_a_trial(tmp_path: Path, pruner: str) -> None:
    """As is advised where evaluations do not compare. Trials are then what they are without one."""
    begun = sweep_of(tmp_path, trials=8, sampler="random", pruner=pruner)
    keep(begun)
    record = Record(begun, SweepDir(begun.directory).record)
    record.draw()
    assert not record.report(0, 1.0)
    keep(without := sweep_of(tmp_path, trials=8, sampler="random"))
    run_it(begun, Formula())
    ended = [trial.number for trial in record.trials if trial.state == "pruned"]
    with pytest.raises(ConfigError) as caught:
        keep(without)
    (problem,) = caught.value.problems
    assert problem.what == f"was {pruner}, is none, and trial {ended[0]} has ended early by it"
    assert problem.where.endswith(": sweep: pruner") and "another name" in problem.hint
    other = sweep_of(tmp_path, trials=8, sampler="random", pruner="median" if pruner == "hyperband" else "hyperband")
    with pytest.raises(ConfigError, match=f"was {pruner}, is {other.spec.pruner}\n"):
        keep(other)


def test_a_pruner_that_was_given_up_stays_so(tmp_path: Path) -> None:
    keep(sweep_of(tmp_path, pruner="median"))
    keep(without := sweep_of(tmp_path))
    keep_contents(without, None, {}, [])
    with pytest.raises(ConfigError, match="was none, is median"):
        keep(sweep_of(tmp_path, pruner="median"))


def test_a_sweep_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Which wrote down neither a field of a run nor one of a sweep that have their defaults."""
    sweep = sweep_of(tmp_path)
    keep(sweep)
    file = SweepDir(sweep.directory).setting
    kept = json.loads(file.read_text())
    del kept["run"]["train"]["expert_parallel"], kept["sweep"]["pruner"], kept["sweep"]["parameters"]["lora.r"]["log"]
    file.write_text(json.dumps(kept))
    keep(sweep)
    file.write_text(json.dumps({**kept, "run": {**kept["run"], "of_the_future": 1}}))
    with pytest.raises(ConfigError, match="whose specs this one does not read"):
        keep(sweep)


def test_the_same_fields_in_another_order_are_another_search(tmp_path: Path) -> None:
    """A grid goes by it, and what samplers draw: what was tried would come again, and other points never."""
    fields = {"lora.r": {"values": [4, 8]}, "lora.alpha": {"values": [1, 2]}}
    keep(sweep_of(tmp_path, sampler="grid", parameters=fields))
    keep(sweep_of(tmp_path, sampler="grid", parameters=dict(fields)))
    turned = dict(reversed(fields.items()))
    with pytest.raises(ConfigError, match="was lora.r, lora.alpha, is lora.alpha, lora.r") as caught:
        keep(sweep_of(tmp_path, sampler="grid", parameters=turned))
    (problem,) = caught.value.problems
    assert problem.where.endswith("sweep: order of parameters")
