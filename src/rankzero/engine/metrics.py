"""metrics.jsonl and samples.jsonl, their mirror in trackers, and saves.jsonl. Knows what a step's object holds, not how
it was computed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankzero.engine.console import logger
from rankzero.run_dir.atomic import storage_errors, write_text
from rankzero.run_dir.paths import RunDir
from rankzero.spec.tasks import MEASURES
from rankzero.track.protocol import Tracker


class MetricsLog:
    """One JSON object a step, appended and flushed; trackers get the same numbers.

    On resume, lines of steps that the checkpoint does not contain are removed: the file reads like that of a run that
    was never interrupted. Where a run begins (-1), what an earlier one has left is removed too, and trackers are told
    so. The last line of a run whose evaluation was cut short lacks it (`unevaluated`); it stays until the whole one
    takes its place, since nobody else knows what the step was.

    Trackers are opened at the first step, since importing them takes time that the first step should not wait for. They
    show what is recorded here: one that fails is left out, and the run goes on.
    """

    def __init__(
        self, run_dir: RunDir, *, resume_step: int, unevaluated: bool, trackers: Callable[[int], list[Tracker]]
    ) -> None:
        whole = resume_step - unevaluated
        for path, last in ((run_dir.metrics, resume_step), (run_dir.saves, resume_step), (run_dir.samples, whole)):
            _keep_until(path, last)
        _say_what_lacks(run_dir.metrics, resume_step)
        self._last_saved = max((row["step"] for row in _rows(run_dir.saves)), default=-1)
        with storage_errors(run_dir.metrics):
            self._file = run_dir.metrics.open("a", encoding="utf-8")
        self._saves, self._samples = run_dir.saves, run_dir.samples
        self._open_trackers, self._first_step = trackers, whole + 1
        self._unevaluated = resume_step if unevaluated else None
        self._trackers: list[Tracker] | None = None

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Write a step's object."""
        line = json.dumps({"step": step, **without_nan(values)}) + "\n"
        with storage_errors(self._file.name):
            if step == self._unevaluated:
                self._put_last(step, line)
            else:
                self._file.write(line)
                self._file.flush()
        numbers = {key: float(value) for key, value in values.items() if isinstance(value, (int, float))}
        for tracker in list(self._opened()):
            with self._or_without(type(tracker).__name__, tracker):
                tracker.log(step, numbers)

    def _put_last(self, step: int, line: str) -> None:
        """In the place of what the file has of this step, at once: a kill leaves the one or the other."""
        path = Path(self._file.name)
        self._file.close()
        write_text(path, _lines_until(path, step - 1) + line)
        self._file = path.open("a", encoding="utf-8")
        self._unevaluated = None

    def has_samples(self, step: int) -> bool:
        """Whether prompts have been answered after this step."""
        return any(row.get("step") == step for row in _rows(self._samples))

    def samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write the answers of a step, all or none: whoever reads the file, or goes on after a kill, never sees some
        of them. Raises StorageError."""
        before = self._samples.read_text(encoding="utf-8") if self._samples.is_file() else ""
        write_text(self._samples, before + "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        for tracker in list(self._opened()):
            with self._or_without(type(tracker).__name__, tracker):
                tracker.samples(step, rows)

    def _opened(self) -> list[Tracker]:
        if self._trackers is None:
            self._trackers = []
            with self._or_without("trackers"):
                self._trackers = self._open_trackers(self._first_step)
        return self._trackers

    def saved(self, step: int) -> None:
        """Note that a checkpoint was committed; once of each step, which may be saved again with its evaluation."""
        if step <= self._last_saved:
            return
        entry = {"step": step, "time": time.time(), "checkpoint": f"step-{step}"}
        with storage_errors(self._saves), self._saves.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self._last_saved = step

    def close(self) -> None:
        """Let go of the file and of the trackers."""
        for tracker in list(self._trackers or ()):
            with self._or_without(type(tracker).__name__):
                tracker.close()
        self._file.close()

    @contextmanager
    def _or_without(self, name: str, tracker: Tracker | None = None) -> Iterator[None]:
        """Leave out what fails inside, and say so."""
        try:
            yield
        except Exception as error:  # each tracker has exceptions of its own, and none is worth a run
            logger.warning("[TRACK] %s is left out from here on: %s: %s", name, type(error).__name__, error)
            if tracker is not None and self._trackers is not None:
                self._trackers.remove(tracker)
                with suppress(Exception):  # what cannot be written cannot be closed either
                    tracker.close()


def without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """The same with null for NaN and Inf, which JSON does not have."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def with_nan(values: dict[str, Any]) -> dict[str, Any]:
    """The way back: what was not finite is NaN again."""
    return {k: math.nan if v is None else v for k, v in values.items()}


def evaluations(path: Path, metric: str) -> dict[int, float]:
    """The values of a metric in metrics.jsonl, by step; NaN is not among them. {} where there is no file."""
    found = {}
    for row in _rows(path):
        try:
            found[int(row["step"])] = float(row[metric])
        except (ValueError, KeyError, TypeError):
            continue  # a step without an evaluation, or a value that was not finite
    return found


def all_measures(path: Path) -> dict[int, dict[str, float]]:
    """What each evaluation in metrics.jsonl has measured, by step; null, which was not finite, is NaN."""
    found = {}
    for row in _rows(path):
        if "eval_loss" in row and isinstance(row.get("step"), int):
            found[row["step"]] = with_nan({name: row[name] for name in MEASURES if name in row})
    return found


def step_of(path: Path, step: int) -> dict[str, Any] | None:
    """What metrics.jsonl has of a step besides what an evaluation has measured, null as NaN; None where it has
    nothing."""
    rows = (row for row in _rows(path) if row.get("step") == step)
    return next((with_nan({k: v for k, v in row.items() if k not in ("step", *MEASURES)}) for row in rows), None)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; none where there is no file. A line that a kill has cut off is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _say_what_lacks(path: Path, step: int) -> None:
    """Of the steps up to this one: every step has its line."""
    there = {number for row in _rows(path) if isinstance(number := row.get("step"), int) and 0 < number <= step}
    if step > len(there):
        words = "[STEP] %s lacks %d of the %d steps so far: charts are without them, as is what was best"
        logger.warning(words, path, step - len(there), step)


def _keep_until(path: Path, step: int) -> None:
    if path.is_file():
        write_text(path, _lines_until(path, step))


def _lines_until(path: Path, step: int) -> str:
    """The lines of a file up to those of a step. Lines that cannot be read are left out, and that is said."""
    kept, damaged = [], 0
    *whole, rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in (*whole, rest):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            damaged += bool(line) and line is not rest  # the rest was cut off by the kill that this resume follows
    if damaged:
        logger.warning("[STEP] %s: %d lines cannot be read, and are left out", path, damaged)
    return "".join(f"{line}\n" for line in kept)
