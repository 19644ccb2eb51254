"""metrics.jsonl and its mirror in trackers. Knows what a step's object holds, not how it was computed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankzero.run_dir.atomic import storage_errors, write_text
from rankzero.run_dir.paths import RunDir
from rankzero.track.protocol import Tracker


class MetricsLog:
    """One JSON object a step, appended and flushed; trackers get the same numbers.

    On resume, lines of steps that the checkpoint does not contain are removed: the file reads like that of a run that
    was never interrupted. Trackers are opened at the first step, since importing them takes time that the first step
    should not wait for.
    """

    def __init__(self, run_dir: RunDir, *, resume_step: int, trackers: Callable[[int], list[Tracker]]) -> None:
        _keep_until(run_dir.metrics, resume_step)
        with storage_errors(run_dir.metrics):
            self._file = run_dir.metrics.open("a", encoding="utf-8")
        self._open_trackers = trackers
        self._trackers: list[Tracker] | None = None

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Write a step's object. NaN and Inf become null: JSON has neither."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with storage_errors(self._file.name):
            self._file.write(json.dumps({"step": step, **clean}) + "\n")
            self._file.flush()
        if self._trackers is None:
            self._trackers = self._open_trackers(step)
        for tracker in self._trackers:
            tracker.log(step, {key: float(value) for key, value in values.items() if isinstance(value, (int, float))})

    def close(self) -> None:
        self._file.close()
        for tracker in self._trackers or []:
            tracker.close()


def _keep_until(path: Path, step: int) -> None:
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # blank, or cut off by the kill that this resume follows
    write_text(path, "".join(f"{line}\n" for line in kept))
