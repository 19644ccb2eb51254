"""`rankzero pull`: a run's results brought to this machine."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Literal

import typer

from rankzero.cli.logs import JsonOption, RunArgument
from rankzero.cli.render import ClusterOption


def pull(
    run: RunArgument,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Object store: s3://bucket/prefix, gs://…, file:///…")
    ] = None,
    cluster: ClusterOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="Where to; by default runs/RUN.")
    ] = None,
    only: Annotated[
        Literal["final", "report"] | None, typer.Option(help="Only the result, or only the reports.")
    ] = None,
    checkpoints: Annotated[
        Literal["none", "best", "last", "all"], typer.Option(help="Checkpoints to bring besides.")
    ] = "none",
    as_json: JsonOption = False,
) -> None:
    """Bring a run's results here, verified.

    From an object store, or from a cluster's volume by a pod that reads it. Given again, it fetches what is missing.
    """
    from rankzero.api import pulling
    from rankzero.cli.cluster_option import say

    done = pulling.pull(run, url, cluster=cluster, output=output, checkpoints=checkpoints, only=only, say=say)
    if as_json:
        value = {"run_dir": str(done.root), "fetched": done.fetched, "kept": done.kept, "bytes": done.fetched_bytes}
        typer.echo(json.dumps({**value, "result": done.result, "checkpoints": list(done.steps)}))
        return
    typer.echo(f"{done.root}: {done.fetched} files fetched ({done.fetched_bytes / 1e6:,.1f} MB), {done.kept} were here")
    if done.steps:
        typer.echo(f"checkpoints {', '.join(f'step-{step}' for step in done.steps)} are here and verified")
    if done.result and only != "report":
        typer.echo(f"final/ is here and verified: rankzero generate {shlex.quote(str(done.root))}")
    elif not done.result and only is None:
        typer.echo("this run has no result yet; --checkpoints last brings its newest weights")
