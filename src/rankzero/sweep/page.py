"""The values of a sweep's page, from its record. What the page shows and how is the report's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankzero.report.sweep import Dimension, SweepPage, TrialRow, sweep_page
from rankzero.run_dir.atomic import write_text
from rankzero.run_dir.paths import RunDir
from rankzero.spec.search_space import Numbers, chosen_values, shown
from rankzero.spec.sweep_load import Sweep
from rankzero.sweep.place import SweepDir
from rankzero.sweep.record import Trial
from rankzero.sweep.run import best_of

STATES = {"complete": "done", "pruned": "ended early", "failed": "failed", "running": "not over"}


def write_sweep_page(sweep: Sweep, trials: Sequence[Trial], importances: Mapping[str, float]) -> Path:
    """Write report.html of a sweep. Returns where it is. Raises StorageError."""
    place, best = SweepDir(sweep.directory), best_of(sweep, trials)
    pruner = "" if sweep.spec.pruner == "none" else f", ended early by {sweep.spec.pruner}"
    page = SweepPage(
        name=sweep.name,
        metric=sweep.metric,
        higher_is_better=sweep.higher_is_better,
        method=f"{sweep.spec.sampler}{pruner}, seed {sweep.spec.seed}",
        dimensions=tuple(
            Dimension(name, "numbers", one.log) if isinstance(one, Numbers) else Dimension(name, "names")
            for name, one in sweep.space.items()
        ),
        trials=tuple(_row(sweep, place, trial) for trial in trials),
        planned=sweep.trials,
        importances=importances,
        best=None if best is None else best.number,
    )
    write_text(place.page, sweep_page(page))
    return place.page


def _run_of(sweep: Sweep, place: SweepDir, trial: Trial) -> str:
    """Its page, relative to the sweep's; on a cluster the run's name."""
    name = trial.run_name(sweep)
    return name if sweep.for_pods else os.path.relpath(RunDir(place.trials / name).page, place.root)


def _row(sweep: Sweep, place: SweepDir, trial: Trial) -> TrialRow:
    values = chosen_values(sweep.space, trial.labels)
    return TrialRow(
        trial.number,
        STATES[trial.state],
        trial.value,
        trial.state == "complete",
        {name: value if isinstance(sweep.space[name], Numbers) else shown(value) for name, value in values.items()},
        _run_of(sweep, place, trial),
        trial.cause.partition("\n")[0],
    )
