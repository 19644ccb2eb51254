"""`rankzero logs`: what the pods of a run say, all in one stream."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from rankzero.cli.render import ClusterOption
from rankzero.errors import UsageError

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its run.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    run: RunArgument,
    cluster: ClusterOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run has ended.")] = False,
    since: Annotated[str | None, typer.Option(metavar="10m", help="Only what is younger: 30s, 10m, 2h, 1d.")] = None,
    node: Annotated[int | None, typer.Option(min=0, help="Only this node.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this process of all.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines of each pod.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of all pods of a run, each line with its node."""
    from rankzero.cli import log_view
    from rankzero.cli.cluster_option import backend_for, find_run, wants_colour
    from rankzero.launch.backend import LogQuery

    query = LogQuery(follow=follow, since_seconds=seconds(since), node=node, rank=rank, tail=tail)
    _, backend = backend_for(cluster)
    colour = wants_colour()
    for line in backend.logs(find_run(backend, run), query):
        text = json.dumps(log_view.as_json(line)) if as_json else log_view.as_line(line, colour=colour)
        typer.echo(text)


def seconds(text: str | None) -> int | None:
    """`10m` in seconds. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a time", where="--since", hint="30s, 10m, 2h or 1d")
    return max(1, int(match[1]) * _SECONDS[match[2]])
