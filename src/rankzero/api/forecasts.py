"""What a run will take, here or on a cluster: from files where they say enough, else from torch and transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.api.arguments import process_count
from rankzero.api.installed import engine_is_there, require_data, require_engine
from rankzero.api.places import places_told
from rankzero.api.specs import SpecSource
from rankzero.errors import Problem, RankzeroError, ServiceError
from rankzero.redaction import Redactor
from rankzero.wording import first_line

if TYPE_CHECKING:
    from rankzero.forecast.forecast import Forecast
    from rankzero.launch.plan import Plan
    from rankzero.launch.survey import Survey
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.run_options import RunOptions
    from rankzero.spec.run_spec import RunSpec

Say = Callable[[str], None]
"""Told what takes seconds, before it does, and while something is tried again."""


def _silent(_line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class ClusterForecast:
    """What a run would take on a cluster, beside what the cluster has. Nothing was applied."""

    name: str
    where: str
    """The namespace, or this machine."""
    run: Forecast | None
    """None where the model's shapes are not known here."""
    unknown: str
    """Why not."""
    survey: Survey

    def beside(self) -> list[tuple[str, str]]:
        """What there is to say besides what the run takes, by name."""
        unknown = [("model", self.unknown)] if self.unknown else []
        doubts = [("waits" if one.waits else "look at", f"{one.what}; {one.fix}") for one in self.survey.doubts]
        return [*unknown, ("place", self.where), *self.survey.has, *doubts]

    def __repr__(self) -> str:
        """The lines that `rankzero plan` prints."""
        from rankzero.forecast.text import printed, table

        if self.run is None:
            return "\n".join([self.name, *table(self.beside(), 80)])
        return "\n".join(printed(self.run, terminal=False, width=80, more=self.beside()))

    def require(self) -> None:
        """Raise what stands in the way of a submit, every reason of the cluster, or the memory that is missing; else
        ServiceError with everything that pods would wait for."""
        from rankzero.model.fitting import require_room

        if self.survey.refused is not None:
            raise self.survey.refused
        if self.run is not None and self.run.place.limit and self.survey.gpu_bytes:
            require_room(self.run.memory.need, self.run.place.limit, 0, packed=None, where=self.run.place.name)
        waits = [Problem(one.what, one.name, one.fix) for one in self.survey.doubts if one.waits]
        if waits:
            raise ServiceError(waits)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        redact, refused = Redactor(os.environ), self.survey.refused
        problems = [] if refused is None else [redact(str(problem)) for problem in refused.problems]
        run = None if self.run is None else self.run.to_json()
        doubts = [
            {"name": one.name, "what": one.what, "fix": one.fix, "waits": one.waits} for one in self.survey.doubts
        ]
        return {"run": run, "cluster": dict(self.survey.has), "doubts": doubts, "refused": problems}


@places_told()
def dry_run(
    spec: SpecSource, overrides: Mapping[str, object] | None = None, *, nproc_per_node: int | None = None
) -> Forecast:
    """What a run would take on this machine: steps, passes, memory, disk and, where one of its shape was timed, time.

    `spec` and `nproc_per_node` as for `train`. Rows that are not in the cache are tokenised; no weights are loaded.
    Raises what `train` would raise before it loads them.
    """
    from rankzero.api.python_warnings import doubts_told
    from rankzero.api.specs import checked, read
    from rankzero.api.training import require_same_run
    from rankzero.preflight import EVERYTHING
    from rankzero.spec.process_groups import require_whole_groups
    from rankzero.spec.run_options import RunOptions

    processes = process_count(nproc_per_node)
    with doubts_told() as warn:
        run = checked(read(spec, overrides), EVERYTHING, warn=warn)
        require_same_run(run, RunOptions())
        require_whole_groups(run, processes)
    return forecast_here(run, processes, _silent)


@places_told()
def plan(
    spec: SpecSource,
    cluster: str | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    cluster_overrides: Mapping[str, object] | None = None,
) -> ClusterForecast:
    """What a run would take on a cluster, beside what the cluster has. Applies nothing.

    Arguments as for `submit`; `require` of what is returned raises what stands in its way, also that the cluster does
    not answer. Raises ConfigError with all problems of the specs.
    """
    from rankzero.api.planning import plan_of, without_effect
    from rankzero.api.python_warnings import warn_of
    from rankzero.api.specs import read
    from rankzero.preflight import look_for_files
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    made = plan_of(spec, cluster, overrides, cluster_overrides=cluster_overrides)
    for doubtful in without_effect(made):
        warn_of(doubtful)
    loaded = look_for_files(read(spec, overrides, for_pods=True))
    return forecast_of(made, absolute(resolve(loaded.spec), loaded.base), _silent)


def forecast_of(made: Plan, run: RunSpec, say: Say) -> ClusterForecast:
    """As `plan`, of a plan and the same run with the paths of this machine. Of a cluster that does not answer the
    forecast says why, and `require` raises it."""
    from rankzero.api.clusters import open_backend
    from rankzero.launch.render import render
    from rankzero.launch.survey import Survey
    from rankzero.spec.kinds import kind_section

    objects = render(made)
    try:
        survey = open_backend(made.cluster, say=say).survey(objects)
    except RankzeroError as error:  # the run can be looked at all the same
        why = f"not asked what it has, nor what it would take: {first_line(error)}"
        survey = Survey((("cluster", why),), refused=error)
    found, unknown = forecast_on(run, made.cluster, survey, say)
    section, names = kind_section(made.cluster.kind), {"docker": "this machine", "slurm": "Slurm"}
    where = names.get(section.place, f"namespace {made.cluster.namespace}")
    redact = Redactor(os.environ)
    return ClusterForecast(made.name, where, found, redact(unknown), survey.redacted(redact))


def forecast_here(spec: RunSpec, nproc: int, say: Say, options: RunOptions | None = None) -> Forecast:
    """The forecast of a run of `nproc` processes on this machine. `spec` is resolved, its paths absolute. Rows that are
    not in the cache are tokenised; no weights are loaded. Raises what training would raise before it loads them."""
    from rankzero.api.training import require_packages_of
    from rankzero.spec.process_groups import require_whole_groups

    require_whole_groups(spec, nproc)
    require_data()
    require_packages_of(spec)
    from rankzero.forecast.without_torch import forecast_without_torch

    found = forecast_without_torch(spec, nproc)
    if found is not None and _goes_on_with_its_base(spec, say):
        return found
    require_engine()
    say("files alone do not say enough; import torch and transformers")
    from rankzero.engine.forecasting import dry_run

    return dry_run(spec, nproc, options)


def _goes_on_with_its_base(spec: RunSpec, say: Say) -> bool:
    """Whether a checkpoint of the run, if there is one, was made with the weights that are here. Where it was not, the
    engine says whether others may be."""
    from rankzero.forecast.without_torch import model_directory
    from rankzero.model.source import weights_fingerprint
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.setting import newest_manifest

    manifest = newest_manifest(RunDir(Path(spec.output_dir) / str(spec.name)))
    directory = None if manifest is None else model_directory(spec.model)
    if manifest is None or directory is None:
        return True
    say("compare the base with the one of the checkpoint; its files are read where their hash is not known yet")
    return bool(manifest.get("model") == weights_fingerprint(directory, own_code=spec.own_code))


def forecast_on(run: RunSpec, cluster: ClusterSpec, survey: Survey, say: Say) -> tuple[Forecast | None, str]:
    """The forecast of a run on a cluster, which a survey has looked at; or None, and why the model's shapes are not
    known here. `run` has the paths of this machine. Raises ConfigError for what the run would be refused for.

    Its memory is of a simulated pass where torch is installed here, else of sums.
    """
    try:
        require_data()
        from rankzero.forecast.elsewhere import facts_from_files, forecast_elsewhere, model_files, place_of

        place, precision = place_of(run, cluster, survey.gpu, survey.gpu_bytes)
        directory = model_files(run.model)
        facts, simulates = facts_from_files(run, directory, precision, place.kind), engine_is_there()
        if facts is None or simulates:
            require_engine()
            say("import torch and transformers, and simulate a pass")
        if facts is None:
            from rankzero.engine.forecasting import facts_from_config

            facts = facts_from_config(run, directory, precision, place.kind)
    except RankzeroError as error:
        return None, f"its shapes are not known here, so neither is its memory: {first_line(error)}"
    found = forecast_elsewhere(run, directory, facts, place, precision)
    if not simulates:
        return found, ""
    from rankzero.engine.forecasting import simulated

    return simulated(run, directory, found), ""
