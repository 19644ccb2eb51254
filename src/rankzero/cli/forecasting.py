"""`--dry-run` of `rankzero train`: the forecast of a run on this machine, without torch where files say enough."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rankzero.forecast.forecast import Forecast
    from rankzero.spec.run_options import RunOptions
    from rankzero.spec.run_spec import RunSpec


def dry_run(spec: RunSpec, nproc: int, options: RunOptions | None = None, *, as_json: bool) -> None:
    """Print what the run would take. Raises what training would raise before it loads weights: also that it does not
    fit into memory."""
    from rankzero.api.forecasts import forecast_here
    from rankzero.cli.first_line import say_step
    from rankzero.model.fitting import require_room

    forecast = forecast_here(spec, nproc, say_step, options)
    if as_json:
        typer.echo(json.dumps(forecast.to_json(), indent=2))
    else:
        print_forecast(forecast)
    place = forecast.place
    require_room(forecast.memory.need, place.limit, place.free, packed=None, where=place.name)


def print_forecast(forecast: Forecast, more: list[tuple[str, str]] | None = None) -> None:
    """The box, to stdout."""
    from rankzero.forecast.text import printed

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 80
    typer.echo("\n".join(printed(forecast, terminal=terminal, width=width, more=more or ())))


def print_table(title: str, named: list[tuple[str, str]]) -> None:
    """Of a run of which there is no forecast, what else there is to say."""
    from rankzero.forecast.text import boxed, table

    terminal = sys.stdout.isatty()
    width = min(100, shutil.get_terminal_size().columns) if terminal else 80
    typer.echo("\n".join(boxed(named, title, width) if terminal else [title, *table(named, width)]))
