"""Trials on this machine whose results an object store has too: copying keeps nobody waiting."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product, takewhile
from pathlib import Path

import pytest

from rankzero.engine.checkpoint import Position, with_eval
from rankzero.engine.metrics import without_nan
from rankzero.errors import DataError, ExitCode, RankzeroError, StorageError
from rankzero.persist.copying import copied
from rankzero.persist.run_store import RunStore
from rankzero.run_dir.goodput import Start, StartLine
from rankzero.run_dir.lease import Watch
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from rankzero.sweep import here
from rankzero.sweep.here import Finished, Here, Kept
from rankzero.sweep.trainer import Known, TrialStart
from tests.support.unreadable import stale


def until(true: Callable[[], bool]) -> None:
    """It takes another thread a moment."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Store:
    """What copies a run, as slowly as is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.takes = threading.Event(), threading.Event()
        self.error: RankzeroError | None = None
        self.was_hurried = False
        monkeypatch.setattr("rankzero.sweep.here.kept_elsewhere", self.kept)

    @contextmanager
    def kept(self, _spec: RunSpec, _say: object, *, hurried: Callable[[], bool]) -> Iterator[None]:
        self.answers.wait()
        if self.error is not None:
            raise self.error
        yield
        self.was_hurried = hurried()
        if not self.was_hurried:
            self.takes.wait()


class Training(Finished):
    """The trial itself."""

    alive, stopped, closed = True, False, False

    def running(self) -> bool:
        return self.alive

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    spec = {"name": "trial-000", "model": {"name": "m"}, "data": {"train": "t"}, "output_dir": str(tmp_path)}
    return Training(RunSpec.model_validate(spec))


def kept(training: Training) -> Kept:
    return Kept(training._spec, lambda: training, print)


def test_a_slow_store_keeps_nobody_waiting(store: Store, training: Training) -> None:
    """Neither before the trial, nor while it is trained, nor after it, when the last of it is copied."""
    trial = kept(training)
    assert trial.running() and trial.running(), "it is being brought back"
    store.answers.set()
    until(lambda: trial.running() and trial._start is training)
    trial.stop()
    assert training.stopped
    training.alive = False
    assert trial.running(), "the last of it is being copied"
    store.takes.set()
    until(lambda: not trial.running())
    assert trial.failure() is None and not store.was_hurried


def test_a_stop_before_it_has_begun_begins_nothing(store: Store, training: Training) -> None:
    def begin() -> TrialStart:
        raise AssertionError("it was to stop")

    trial = Kept(training._spec, begin, print)
    assert trial.running()
    trial.stop()
    store.answers.set()
    store.takes.set()
    until(lambda: not trial.running())
    failure = trial.failure()
    assert failure is not None and failure.exit_code == ExitCode.STOPPED


def test_a_trial_that_cannot_be_begun_is_one_that_failed(store: Store, training: Training) -> None:
    def begin() -> TrialStart:
        raise StorageError("no space left", where="/tmp")

    store.answers.set()
    store.takes.set()
    trial = Kept(training._spec, begin, print)
    until(lambda: not trial.running())
    failure = trial.failure()
    assert failure is not None and failure.exit_code == ExitCode.STORAGE


def test_a_store_that_does_not_answer_is_the_trials_failure(store: Store, training: Training) -> None:
    store.error = StorageError("it does not answer", where="s3://bucket")
    store.answers.set()
    trial = kept(training)
    until(lambda: not trial.running())
    assert trial.failure() is store.error and trial._start is None


@pytest.mark.parametrize("hurried", [True, False])
def test_a_last_copy_is_left_out_in_a_hurry(hurried: bool, tmp_path: Path, training: Training) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/report.json").write_text("{}")
    store = RunStore(RunDir(tmp_path / "run"), (tmp_path / "store").as_uri(), training._spec)
    with copied([store], print, hurried=lambda: hurried) as failures:
        pass
    assert not failures and (tmp_path / "store/report.json").exists() is not hurried


def test_who_leaves_at_once_waits_for_no_copy(store: Store, training: Training) -> None:
    """As at a second Ctrl-C."""
    store.answers.set()
    trial = kept(training)
    until(lambda: trial.running() and trial._start is training)
    trial.close()
    until(lambda: not trial._thread.is_alive())
    assert training.closed and store.was_hurried


def test_a_trial_whose_owner_may_live_is_waited_for_while_it_does(
    tmp_path: Path, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on another host: to start it failed, again and again, until the sweep ended by it."""
    now = 1000.0
    monkeypatch.setattr(here, "Watch", partial(Watch, clock=lambda: now))
    monkeypatch.setattr(here, "is_finished", lambda *_: True)
    said: list[str] = []
    place, unknown = Here(1, 1, 0, {}, said.append), Known(None, False, (), lambda name, digest: None)
    lease = tmp_path / "trial-000/lease.json"
    lease.parent.mkdir()
    for beat in range(4):
        lease.write_text(json.dumps({"token": 3, "beat": beat, "host": "other-host", "pid": 7, "process": "x"}))
        assert place.start(training._spec, 0, unknown) is None
        now += 10.0
    assert said == ["trial-000: process 7 on other-host has its run directory, or had; waiting while it lives"]
    now += 10.0
    assert place.start(training._spec, 0, unknown) is not None


def evaluated(
    directory: Path, scores: Sequence[float | None], patience: int | None, metric: str
) -> tuple[Finished, RunDir]:
    """A trial that is evaluated at every second of twelve steps, and has these scores so far."""
    spec = {
        **{"name": "trial-000", "task": "classify", "model": {"name": "m"}, "output_dir": str(directory)},
        **{"data": {"train": "t", "eval": "e"}, "checkpoint": {"best_metric": metric}},
        "eval": {"every": 2, "on_start": True, "early_stopping_patience": patience},
    }
    trial = Finished(RunSpec.model_validate(spec))
    run_dir = RunDir(directory / "trial-000")
    run_dir.root.mkdir(parents=True)
    assert trial.evaluations() == []
    line = StartLine(run_dir.starts, Start(100.0, 100.0, total_steps=12))
    line.write({})
    line.close()
    rows = [{"step": 0, metric: 9.0}, *({"step": 2 + 2 * at, metric: score} for at, score in enumerate(scores))]
    written = [*map(without_nan, rows), {"step": 11, "loss": 1.0}]
    run_dir.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in written))
    return trial, run_dir


@pytest.mark.parametrize("metric", ["eval_loss", "accuracy"])
def test_patience_is_counted_as_a_run_counts_it(tmp_path: Path, metric: str) -> None:
    """Also over scores that are no finite numbers, which the run knows and its metrics.jsonl has as null."""
    for at, scores in enumerate(product([0.25, 0.5, math.nan, math.inf, -math.inf], repeat=3)):
        trial, _ = evaluated(tmp_path / str(at), scores, 2, metric)
        position, waited = Position(), []
        for step, score in enumerate(scores, start=1):
            position, _ = with_eval(replace(position, step=step), {metric: score, "eval_loss": score}, metric)
            waited.append(position.evals_since_best)
        going_on = takewhile(lambda pair: pair[1] < 2, zip(scores, waited, strict=True))
        assert trial.evaluations() == [score for score, _ in going_on if math.isfinite(score)], scores
        assert position.best is None or math.isfinite(position.best[metric])


@pytest.mark.parametrize(
    ("scores", "patience", "metric", "judged"),
    [
        ([3.0, 2.0, 2.5], 1, "eval_loss", [3.0, 2.0]),
        ([3.0, 2.0, 2.5, 2.0], 2, "eval_loss", [3.0, 2.0, 2.5]),
        ([3.0, 2.0, 2.5, None], 2, "eval_loss", [3.0, 2.0, 2.5]),
        ([3.0, None], 1, "eval_loss", [3.0]),
        ([3.0, 2.0, 2.5, 1.0, 2.0], 2, "eval_loss", [3.0, 2.0, 2.5, 1.0, 2.0]),
        ([3.0, 2.0, 2.5], None, "eval_loss", [3.0, 2.0, 2.5]),
        ([0.5, 0.6, 0.6], 1, "accuracy", [0.5, 0.6]),
    ],
)
def test_the_evaluation_that_ends_a_run_ends_no_trial_early(
    tmp_path: Path, scores: list[float | None], patience: int | None, metric: str, judged: list[float]
) -> None:
    """Behind it the run has its result, however soon that is seen: whether by its steps or by its patience."""
    trial, run_dir = evaluated(tmp_path, scores, patience, metric)
    assert trial.evaluations() == judged
    run_dir.metrics.write_text(f"{json.dumps({'step': 12, metric: 1.0})}\n")
    assert trial.evaluations() == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "starts.jsonl"])
def test_evaluations_that_cannot_be_read_are_not_none(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, run_dir = evaluated(tmp_path, [3.0, 2.0], None, "eval_loss")
    assert trial.evaluations() == [3.0, 2.0]
    with monkeypatch.context() as away:
        stale(away, run_dir.root / name)
        with pytest.raises(StorageError, match="Stale file handle"):
            trial.evaluations()
    assert trial.evaluations() == [3.0, 2.0]


def test_a_result_that_cannot_be_read_is_no_score_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, run_dir = evaluated(tmp_path, [], None, "eval_loss")
    run_dir.report.write_text('{"eval_loss": 1.25}')
    with monkeypatch.context() as away:
        stale(away, run_dir.report)
        with pytest.raises(StorageError, match="Stale file handle"):
            trial.result()
    assert trial.result() == 1.25
    for text in ("", "[1]"):
        run_dir.report.write_text(text)
        with pytest.raises(DataError, match="does not say what the trial scored"):
            trial.result()
    run_dir.report.write_text('{"eval_loss": null}')
    assert trial.result() is None


def test_checkpoints_that_cannot_be_listed_are_an_error_of_the_place(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, run_dir = Here(1, 1, 0, {}, print), RunDir(Path(training._spec.output_dir) / "trial-000")
    run_dir.checkpoints.mkdir(parents=True)
    assert place.saved(training._spec) is None
    stale(monkeypatch, run_dir.checkpoints)
    with pytest.raises(StorageError, match="Stale file handle"):
        place.saved(training._spec)
