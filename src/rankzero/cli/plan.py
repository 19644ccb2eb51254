"""`rankzero plan`: what a run would take on a cluster, beside what the cluster has. Applies nothing, trains nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.render import ClusterOption, KindOption

if TYPE_CHECKING:
    from rankzero.forecast.forecast import Forecast
    from rankzero.launch.survey import Survey


def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN.yaml [key=value …]", help="Run spec, overrides; cluster.KEY=VALUE for the cluster."
        ),
    ] = None,
    cluster: ClusterOption = None,
    kind: KindOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """What a run would take on a cluster, beside what the cluster has. Nothing is applied.

    Ends with 0 where a submit would be taken and the run fits, else with every reason why not.
    """
    from rankzero.api.clusters import open_backend
    from rankzero.api.forecasts import forecast_on
    from rankzero.cli.first_line import say_step
    from rankzero.cli.planning import local_run, plan_from
    from rankzero.launch.render import render
    from rankzero.spec.kinds import kind_section

    made = plan_from(arguments or [], cluster, kind)
    survey = open_backend(made.cluster).survey(render(made))
    run = local_run(arguments or [])
    forecast, unknown = forecast_on(run, made.cluster, survey, say_step)
    section, names = kind_section(made.cluster.kind), {"docker": "this machine", "slurm": "Slurm"}
    place = names.get(section.place, f"namespace {made.cluster.namespace}")
    if as_json:
        value = None if forecast is None else forecast.to_json()
        problems = [str(problem) for problem in survey.refused.problems] if survey.refused is not None else []
        typer.echo(json.dumps({"run": value, "cluster": dict(survey.has), "refused": problems}, indent=2))
    else:
        _show(made.name, forecast, [*([("model", unknown)] if unknown else []), ("place", place), *survey.has])
    _require(forecast, survey)


def _show(name: str, forecast: Forecast | None, more: list[tuple[str, str]]) -> None:
    from rankzero.cli.forecasting import print_forecast, print_table

    if forecast is None:
        print_table(name, more)
    else:
        print_forecast(forecast, more)


def _require(forecast: Forecast | None, survey: Survey) -> None:
    """Raise what stands in the way."""
    from rankzero.model.fitting import require_room

    if survey.refused is not None:
        raise survey.refused
    if forecast is not None and forecast.place.limit and survey.gpu_bytes:
        require_room(forecast.memory.need, forecast.place.limit, 0, packed=None, where=forecast.place.name)
