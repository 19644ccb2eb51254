"""`rankzero logs`: what the pods of a run say, all in one stream."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rankzero.cli.completion import run_names
from rankzero.cli.render import ClusterOption
from rankzero.errors import ConfigError, StorageError, UsageError
from rankzero.wording import printable

FOLLOW_SECONDS = 0.5

RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of a run, its directory or its run.yaml.", autocompletion=run_names),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    run: RunArgument,
    cluster: ClusterOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run has ended.")] = False,
    since: Annotated[str | None, typer.Option(metavar="10m", help="Only what is younger: 30s, 10m, 2h, 1d.")] = None,
    node: Annotated[int | None, typer.Option(min=0, help="Only this node.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this process of all.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines, of each pod.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of a run.

    Of one on a cluster those of all pods, each line with its node; of one of this machine that of one process (--rank).
    """
    from rankzero.api.clusters import backend_for, find_run, local_run, told_of_this_machine
    from rankzero.cli import log_view
    from rankzero.cli.cluster_option import say, wants_colour
    from rankzero.launch.backend import LogQuery

    here = local_run(run, cluster)
    if here is not None:
        if since is not None or node is not None:
            where = "--since" if since is not None else "--node"
            raise UsageError("a run of this machine has one log for each process", where=where, hint="--rank, --tail")
        for text in log_lines(here, rank or 0, tail, follow=follow):
            typer.echo(json.dumps({"rank": rank or 0, "text": text}) if as_json else printable(text))
        return
    query = LogQuery(follow=follow, since_seconds=seconds(since), node=node, rank=rank, tail=tail)
    with told_of_this_machine(run, cluster):
        _, backend = backend_for(cluster, say)
        name = find_run(backend, run)
    colour, spoken = wants_colour(), False
    for line in backend.logs(name, query):
        text = json.dumps(log_view.as_json(line)) if as_json else log_view.as_line(line, colour=colour)
        typer.echo(text)
        spoken = True
    if not spoken and query == LogQuery(tail=tail) and tail != 0:  # of a part there may be none
        say(f"no pod of {name} has a log; `rankzero status {name}` says how it is")


def log_lines(root: Path, rank: int, tail: int | None, *, follow: bool) -> Iterator[str]:
    """The log of a process of a run of this machine. With `follow` until the run has ended. Raises ConfigError, and
    StorageError where nobody can tell whether it has: its directory cannot be read, at two looks."""
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.view import view_run

    path = RunDir(root).log(rank)
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        there = ", ".join(sorted(one.name for one in path.parent.glob("rank-*.log")))
        hint = f"in {path.parent}: {there}" if there else "it has written none"
        raise ConfigError(error.strerror or str(error), where=str(path), hint=hint) from None
    with file:
        lines = file.read().splitlines()
        yield from lines[len(lines) - min(tail, len(lines)) :] if tail is not None else lines
        part, unread = "", list[str]()
        while follow:
            run = view_run(root)  # before the last look, so that nothing is missed
            while line := file.readline():
                part += line
                if part.endswith("\n"):
                    yield part[:-1]
                    part = ""
            if run.is_over:
                break
            if run.phase == "Unknown" and run.unread and run.unread == unread:
                what = f"nobody can tell whether it is over: {run.unread[0]}"
                raise StorageError(what, where=str(root), hint="without --follow its log is printed once")
            unread = run.unread
            time.sleep(FOLLOW_SECONDS)


def seconds(text: str | None) -> int | None:
    """`10m` in seconds. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a time", where="--since", hint="30s, 10m, 2h or 1d")
    return max(1, int(match[1]) * _SECONDS[match[2]])
