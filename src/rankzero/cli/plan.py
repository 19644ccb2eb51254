"""`rankzero plan`: what a run would take on a cluster, beside what the cluster has. Applies nothing, trains nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.render import ClusterOption, KindOption

if TYPE_CHECKING:
    from rankzero.api.forecasts import ClusterForecast


def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN.yaml|key=value", help="Run spec, overrides; cluster.KEY=VALUE for the cluster."),
    ] = None,
    cluster: ClusterOption = None,
    kind: KindOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """What a run would take on a cluster, beside what the cluster has. Nothing is applied.

    Ends with 0 where a submit would be taken, the run fits and pods would start, else with every reason why not.
    """
    from rankzero.api.forecasts import forecast_of
    from rankzero.cli.first_line import say_step
    from rankzero.cli.planning import local_run, plan_from

    made = plan_from(arguments or [], cluster, kind)
    found = forecast_of(made, local_run(arguments or []), say_step)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found, found.beside())
    found.require()


def _show(found: ClusterForecast, more: list[tuple[str, str]]) -> None:
    from rankzero.cli.forecasting import print_forecast, print_table

    if found.run is None:
        print_table(found.name, more)
    else:
        print_forecast(found.run, more)
