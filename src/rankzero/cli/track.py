"""`rankzero track sync`: send what servers of trackers lack of a run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from rankzero.cli.completion import run_names
from rankzero.cli.help import Sections

app = typer.Typer(cls=Sections, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Send to trackers what they lack of a run."""


@app.command()
def sync(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run directory, or a name in ./runs.", autocompletion=run_names)
    ],
) -> None:
    """Send what trackers have not got yet of a run: a server was away, or the run was killed."""
    from rankzero.api.runs import Run
    from rankzero.errors import ConfigError, Problem, ServiceError, StorageError
    from rankzero.run_dir.paths import RunDir
    from rankzero.spec.load import load_run_spec
    from rankzero.track.send import Delivery, only_sender, server_modules

    run_dir = RunDir(Run.open(run).path)
    spec = load_run_spec(run_dir.spec, env={}).spec
    modules = server_modules(spec.tracking)
    if not modules:
        hint = "give the run's own command again with one, such as tracking.mlflow=true: it sends a run that is over"
        raise ConfigError("this run sends its numbers to no server", where=str(run_dir.spec), hint=hint)
    found = {name: module.problems(os.environ) for name, module in modules.items()}
    missing = [replace(problem, where=f"tracking.{name}") for name, some in found.items() for problem in some]
    able = {name: module for name, module in modules.items() if not found[name]}
    failed = []
    with only_sender(run_dir) as alone:
        if not alone:
            hint = "it sends by itself while it runs; see tracking/ in its directory"
            raise StorageError("this run's numbers are being sent by another process", where=run, hint=hint)
        for name, module in able.items():
            delivery = Delivery(name, module.connect, run_dir, spec)
            try:
                delivery.round(is_last=True)
            except Exception:  # noted by the delivery; a tracker's client has exceptions of its own
                failed.append(Problem(str(delivery.sent.error), name, "give the same command again later"))
            else:
                typer.echo(f"{name} has everything of this run: {delivery.sent.link}")
    if missing:  # of both kinds the exit code is that of what never mends itself
        raise ConfigError([*missing, *failed])
    if failed:
        raise ServiceError(failed)
