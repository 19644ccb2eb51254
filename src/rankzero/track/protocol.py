"""Trackers: where a run's numbers go besides metrics.jsonl. Knows no tracker; each is a file beside this one.

A tracker is named by a field of `tracking` in run.yaml and by the module of the same name here. One that writes files
has a function `open_tracker(setting, run, step)` and is told of each step by the process that trains. One that is a
server has a function `connect(run_dir)`, which a process of its own calls (`server.py`, `send.py`). Nothing else has to
know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from rankzero.spec.run_spec import TrackingSpec
from rankzero.spec.tasks import MEASURES


class Tracker(Protocol):
    """Files of a tracker, written by the process that trains."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """What the model answered after a step: objects of samples.jsonl."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of the run: `events` is the directory for files of its own."""

    name: str
    events: Path


def plotted_as(name: str) -> str:
    """`eval/eval_loss`, `train/loss`: what a number of metrics.jsonl is called in trackers."""
    return f"eval/{name}" if name in MEASURES else f"train/{name.removeprefix('train_')}"


def open_trackers(tracking: TrackingSpec, run: TrackedRun, step: int) -> list[Tracker]:
    """The trackers with files that the spec switches on. `step` is the first that this start may write: what an earlier
    one has from there on is void. Imports only what is switched on."""
    wanted = {name: getattr(tracking, name) for name in type(tracking).model_fields}
    modules = {name: import_module(f"{__package__}.{name}") for name, setting in wanted.items() if setting}
    return [
        module.open_tracker(wanted[name], run, step)
        for name, module in modules.items()
        if hasattr(module, "open_tracker")
    ]
