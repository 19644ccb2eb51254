"""`rankzero plan`: what a run would take on a cluster, beside what the cluster has. Applies nothing, trains nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.render import ClusterOption, KindOption

if TYPE_CHECKING:
    from rankzero.forecast.forecast import Forecast
    from rankzero.launch.survey import Survey
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.run_spec import RunSpec


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
    from rankzero.cli.planning import local_run, plan_from
    from rankzero.launch.render import render
    from rankzero.spec.kinds import kind_section

    made = plan_from(arguments or [], cluster, kind)
    survey = open_backend(made.cluster).survey(render(made))
    run = local_run(arguments or [])
    forecast, unknown = _forecast(run, made.cluster, survey)
    place = "this machine" if kind_section(made.cluster.kind).on_this_machine else f"namespace {made.cluster.namespace}"
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


def _forecast(run: RunSpec, cluster: ClusterSpec, survey: Survey) -> tuple[Forecast | None, str]:
    """The forecast; or None, and why the model's shapes are not known here."""
    from rankzero.api.installed import require_data, require_engine
    from rankzero.cli.first_line import say_step
    from rankzero.errors import RankzeroError
    from rankzero.wording import first_line

    try:
        require_data()
        from rankzero.forecast.elsewhere import facts_from_files, forecast_elsewhere, model_files, place_of

        place, precision = place_of(run, cluster, survey.gpu, survey.gpu_bytes)
        directory = model_files(run.model)
        facts = facts_from_files(run, directory, precision)
        if facts is None:
            require_engine()
            say_step("the model's files do not tell all its shapes; import torch and transformers")
            from rankzero.engine.forecasting import facts_from_config

            facts = facts_from_config(run, directory, precision)
        return forecast_elsewhere(run, directory, facts, place, precision), ""
    except RankzeroError as error:
        return None, f"its shapes are not known here, so neither is its memory: {first_line(error)}"
