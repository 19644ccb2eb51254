"""Sweeps without training: a sweep over a spec that names no file, and a place whose runs score by a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rankzero.errors import RankzeroError, StoppedError
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_load import Sweep, SweepReading, read_sweep
from rankzero.sweep.trainer import Known, TrialStart

RUN: dict[str, Any] = {
    "model": {"name": "org/model"},
    "data": {"train": "org/rows", "eval": {"fraction": 0.1}},
    "lora": {"r": 8},
}
PARAMETERS: dict[str, Any] = {
    "train.learning_rate": {"min": 1e-5, "max": 1e-2, "log": True},
    "lora.r": {"min": 2, "max": 64},
}


def written(directory: Path, run: dict[str, Any] | None = None, **fields: Any) -> Path:
    """sweep.yaml beside its run.yaml."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.yaml").write_text(yaml.safe_dump(run or RUN))
    value = {"run": "run.yaml", "trials": 6, "parameters": PARAMETERS, **fields}
    file = directory / "sweep.yaml"
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


def reading_of(directory: Path, run: dict[str, Any] | None = None, **fields: Any) -> SweepReading:
    """What such files come to."""
    return read_sweep(written(directory, run, **fields), env={})


def sweep_of(directory: Path, run: dict[str, Any] | None = None, **fields: Any) -> Sweep:
    """The sweep in such files."""
    reading = reading_of(directory, run, **fields)
    assert reading.sweep is not None, reading.problems
    return reading.sweep


def score(spec: RunSpec) -> float:
    """Best near a learning rate of 1e-3 and a rank of 20."""
    assert spec.lora is not None and isinstance(spec.train.learning_rate, float)
    return (math.log10(spec.train.learning_rate) + 3) ** 2 + abs(spec.lora.r - 20) / 40


class Formula:
    """Trains nothing: a run has `evaluations` evaluations and then its score."""

    def __init__(self, evaluations: int = 3, failures: dict[str, list[RankzeroError]] | None = None) -> None:
        self.evaluations, self.failures = evaluations, failures or {}
        self.started: list[str] = []
        self.asked_to_stop: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.looked: Callable[[], None] = lambda: None
        self.steps: list[int] = []
        """Of the newest checkpoint each time that it is asked for; none, when these are over."""

    def start(self, spec: RunSpec, slot: int, known: Known) -> TrialStart | None:
        self.started.append(str(spec.name))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        failures = self.failures.get(str(spec.name), [])
        return FormulaStart(self, spec, failures.pop(0) if failures else None)

    def saved(self, spec: RunSpec) -> int | None:
        return self.steps.pop(0) if self.steps else None


class FormulaStart:
    """One evaluation each time that it is looked at."""

    def __init__(self, place: Formula, spec: RunSpec, fault: RankzeroError | None) -> None:
        self._place, self._spec, self._fault = place, spec, fault
        self._done = 0
        self._stopped = False

    def running(self) -> bool:
        self._place.looked()
        if self._stopped or self._fault is not None or self._done > self._place.evaluations:
            return False
        self._done += 1
        return self._done <= self._place.evaluations

    def evaluations(self) -> list[float]:
        count = min(self._done, self._place.evaluations)
        return [score(self._spec) + 1 / (number + 1) for number in range(count)]

    def stop(self) -> None:
        if not self._stopped:
            self._place.asked_to_stop.append(str(self._spec.name))
        self._stopped = True

    def failure(self) -> RankzeroError | None:
        finished = self._done > self._place.evaluations
        return self._fault or (StoppedError("stopped") if self._stopped and not finished else None)

    def result(self) -> float | None:
        return score(self._spec)

    def close(self) -> None:
        self._place.at_once -= 1
