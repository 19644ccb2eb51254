"""A search over a run spec's fields: checked, run to its end, its best spec written. Knows no terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rankzero.launch.labels import Manifest
    from rankzero.launch.plan import Plan
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.sweep_load import Sweep
    from rankzero.sweep.record import Trial
    from rankzero.sweep.trainer import Trainer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep that has ended."""

    sweep: Sweep
    trials: tuple[Trial, ...]
    best: Trial | None

    @property
    def directory(self) -> Path:
        return self.sweep.directory

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        from rankzero.sweep.outcome import to_json

        return to_json(self.sweep, self.trials)


def load_sweep(path: Path, overrides: Sequence[str] = (), *, warn: Callable[[Problem], None] = lambda _: None) -> Sweep:
    """The sweep in a file, with what its run spec names looked at. Raises ConfigError, or the error of the worst
    finding, with every problem of both files; UsageError for an override that cannot be read."""
    from rankzero.preflight import Part, look
    from rankzero.spec.load import Reading, in_reading_order
    from rankzero.spec.sweep_load import read_sweep

    reading = read_sweep(path, overrides, env=os.environ)
    if reading.run is None:
        raise ConfigError(in_reading_order(reading.problems))
    run = reading.run
    parts: tuple[Part, ...] = ("paths", "model", "device", "copies", "trackers")
    look(Reading(run.found, reading.problems, run.doubtful), parts, warn=warn)
    if reading.sweep is None:
        raise ConfigError(in_reading_order(reading.problems))
    return reading.sweep


def parallel_of(sweep: Sweep, gpus: int) -> int:
    """How many trials run at a time on a machine with so many GPUs. Raises ConfigError where they have no room."""
    processes = sweep.spec.nproc_per_node
    if gpus and processes > gpus:
        hint = f"{gpus} at most; a run over several machines is for a cluster (--cluster)"
        what = f"a trial of {processes} GPUs has no room, and there are {gpus}"
        raise ConfigError(what, where="nproc_per_node", hint=hint)
    if sweep.spec.parallel == "auto":
        return max(1, gpus // processes) if gpus else 1
    wanted = sweep.spec.parallel
    if gpus and wanted * processes > gpus:
        hint = f"parallel: {max(1, gpus // processes)}, or auto"
        what = f"{wanted} trials of {processes} GPUs at a time need {wanted * processes} GPUs, and there are {gpus}"
        raise ConfigError(what, where="parallel", hint=hint)
    return wanted


def run_sweep(sweep: Sweep, *, say: Say, trainer: Callable[[int], Trainer] | None = None) -> SweepResult:
    """Run a sweep to its end on this machine, or continue it where it stopped.

    `trainer` trains somewhere else; it is given how many trials run at a time. Raises StoppedError where a signal came
    before the end, with the trials saved, StorageError where the directory is held by another or cannot be written,
    ConfigError where it holds another sweep, and the trials' own error where none has a result.
    """
    from rankzero.api.installed import require_engine, require_sweep
    from rankzero.machine import local_gpu_count
    from rankzero.run_dir.lease import Lease

    require_sweep()
    if trainer is None:
        require_engine()
    from rankzero.sweep.contents import Digests, contents, eval_files
    from rankzero.sweep.here import Here
    from rankzero.sweep.outcome import keep_contents, keep_setting, require_a_result, write_best
    from rankzero.sweep.page import write_sweep_page
    from rankzero.sweep.place import SweepDir
    from rankzero.sweep.record import Record
    from rankzero.sweep.run import SweepRun, is_finished

    gpus = 0 if trainer is not None else local_gpu_count(os.environ)
    parallel = parallel_of(sweep, gpus)
    place = SweepDir(sweep.directory)
    lease = Lease(place.root)
    lease.acquire(say=say)
    try:
        digests = Digests(sweep, say)
        there = cache(lambda: contents(sweep, _weights, digests))
        opened = cache(lambda: Record(sweep, place.record))
        for words in keep_setting(sweep, there, opened):
            say(words)
        record = opened()
        is_read = there.cache_info().currsize > 0
        if is_read or not is_finished(sweep, record.trials):  # one that is can be asked again without its files
            keep_contents(sweep, eval_files(sweep, digests), there(), record.trials)
        place_of_trials: Trainer
        if trainer is None:
            place_of_trials = Here(sweep.spec.nproc_per_node, parallel, gpus, os.environ, say)
        else:
            place_of_trials = trainer(parallel)
        try:
            SweepRun(sweep, record, place_of_trials, parallel, say).to_its_end()
        finally:
            trials = record.trials
            best = write_best(sweep, trials)
            write_sweep_page(sweep, trials, record.importances())
        require_a_result(sweep, trials)
        return SweepResult(sweep, tuple(trials), best)
    finally:
        lease.release()


def _weights(run: RunSpec) -> str:
    """As a checkpoint's manifest has it. Raises as `locate` does."""
    import logging

    from rankzero.model.source import locate, weights_fingerprint

    directory = locate(run.model, run.task_section.uses).weights
    return weights_fingerprint(directory, own_code=run.own_code, level=logging.WARNING)


def katib_objects(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    cluster: str | None,
    cluster_overrides: Sequence[str] = (),
    kind: str | None = None,
    warn: Callable[[Problem], None] = lambda _: None,
) -> list[Manifest]:
    """A sweep as Katib's Experiment, with what its trials share before it. `warn` is told what has no effect.

    Raises ConfigError with every problem of the three files, or UsageError. Applies nothing.
    """
    from rankzero.api.planning import without_effect
    from rankzero.launch.render.katib import Search, experiment_objects

    sweep = sweep_for_pods(path, overrides)
    plan = plan_of_sweep(sweep, cluster, cluster_overrides, kind)
    for doubtful in without_effect(plan):
        warn(doubtful)
    search = Search(
        space=sweep.space,
        metric=sweep.metric,
        higher_is_better=sweep.higher_is_better,
        final=sweep.run.checkpoint.final,
        algorithm=sweep.spec.sampler,
        seed=sweep.spec.seed,
        trials=sweep.trials,
        parallel=1 if sweep.spec.parallel == "auto" else sweep.spec.parallel,
        pruner=sweep.spec.pruner,
        evaluations=_evaluations(sweep),
    )
    return experiment_objects(plan, search)


def _evaluations(sweep: Sweep) -> int | None:
    """How often each trial is evaluated once it is trained; None where only its data can tell, or trials differ."""
    from rankzero.spec.sweep_load import specs_of

    counts = {_evaluations_of(spec) for name in sweep.space for spec in specs_of(sweep, name)}
    return counts.pop() if len(counts) == 1 else None


def _evaluations_of(run: RunSpec) -> int | None:
    every, steps = run.eval.every, run.train.max_steps
    if (every == "epoch") != (steps is None):
        return None
    last = run.train.num_train_epochs if steps is None else steps / int(every)
    return math.ceil(last)


def sweep_for_pods(path: Path, overrides: Sequence[str]) -> Sweep:
    """The sweep in a file, for trials on a cluster. Raises ConfigError with every problem of both files."""
    from rankzero.spec.load import in_reading_order
    from rankzero.spec.sweep_load import read_sweep

    reading = read_sweep(path, overrides, env=os.environ, for_pods=True)
    sweep = reading.sweep
    if sweep is None:
        raise ConfigError(in_reading_order(reading.problems))
    if problems := files_searched(sweep, path):
        raise ConfigError(problems)
    return sweep


def plan_of_sweep(sweep: Sweep, cluster: str | None, cluster_overrides: Sequence[str], kind: str | None) -> Plan:
    """The plan of the run that is varied, named as the sweep is. Raises as `planned`."""
    from rankzero.api.planning import planned
    from rankzero.spec.load import Setting, read_run_spec

    run = read_run_spec(sweep.run_file, [Setting("name", sweep.name, "sweep")], env=os.environ, for_pods=True)
    return planned(run, cluster, cluster_overrides, kind)


def files_searched(sweep: Sweep, path: Path) -> list[Problem]:
    """Files of this machine among the values: they do not travel with a trial."""
    from rankzero.spec.load import Setting, read_spec
    from rankzero.spec.local_paths import local_part, path_fields
    from rankzero.spec.renames import RENAMES
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.search_space import Choices

    whole = sweep.run.model_dump(mode="json")
    problems = []
    for name, dimension in sweep.space.items():
        for value in dimension.values if isinstance(dimension, Choices) else ():
            settings = [*(Setting(key, inner, "run") for key, inner in whole.items()), Setting(name, value, "sweep")]
            found = read_spec(RunSpec, None, settings, env={}, renames=RENAMES).found
            inside = [] if found is None else [one for one in path_fields(found.spec) if one.field.startswith(name)]
            parts = [part for one in inside if (part := local_part(one, sweep.base)) is not None]
            problems += [
                Problem(f"{part.path} is a file here, and only the run's own files are shipped", f"{path} {name}", hint)
                for part in parts
                if not part.path.startswith("/")
                for hint in ("put it on a volume of the pods, and give its absolute path there",)
            ]
    return problems


def load_sweep_on(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    cluster: str | None,
    cluster_overrides: Sequence[str] = (),
    kind: str | None = None,
) -> tuple[Sweep, Plan]:
    """The sweep in a file, for trials that a cluster trains, with the plan of the run that is varied.

    Raises ConfigError with every problem of a file, also where that cluster has no such sweeps, or UsageError.
    """
    from rankzero.sweep.cluster import require_time_to_look

    sweep = sweep_for_pods(path, overrides)
    if sweep.spec.pruner != "none":
        hint = "pruner: none; trials on a cluster say what they scored when they end. With Katib (--render): median"
        raise ConfigError("here trials of a cluster do not end early", where=f"{path} pruner", hint=hint)
    plan = plan_of_sweep(sweep, cluster, cluster_overrides, kind)
    require_time_to_look(plan.cluster)
    return sweep, plan


def run_sweep_on(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    cluster: str | None,
    cluster_overrides: Sequence[str] = (),
    kind: str | None = None,
    say: Say,
) -> SweepResult:
    """Run a sweep whose trials a cluster trains, `parallel` at a time; this process chooses them and keeps the record.

    Raises as `run_sweep`, and ServiceError where the cluster does not answer: its runs go on, as does the same call.
    """
    from rankzero.api.clusters import open_backend, submitter
    from rankzero.api.planning import without_effect
    from rankzero.sweep.cluster import OnCluster

    sweep, plan = load_sweep_on(path, overrides, cluster=cluster, cluster_overrides=cluster_overrides, kind=kind)
    for doubtful in without_effect(plan):
        say(f"warning: {doubtful}")
    backend = open_backend(plan.cluster, say=say, detach=False)
    place = OnCluster(backend, plan.cluster, sweep.run_base, submitter(), say)
    return run_sweep(sweep, say=say, trainer=lambda _: place)
