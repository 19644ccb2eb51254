"""`rankzero list`, `status`, `compare`, `describe`, `cancel` and `delete`: looking at runs, here and on a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankzero.cli.completion import run_names
from rankzero.cli.local_runs import SortKey
from rankzero.cli.logs import JsonOption, RunArgument
from rankzero.cli.render import ClusterOption
from rankzero.errors import UsageError


def list_runs(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A directory of runs of this machine; default runs.")
    ] = None,
    cluster: ClusterOption = None,
    sort: Annotated[SortKey, typer.Option(help="Order of this machine's runs.")] = "age",
    as_json: JsonOption = False,
) -> None:
    """List the runs of this machine, or those of a cluster.

    A cluster's where --cluster, $RANKZERO_CLUSTER or ./cluster.yaml names one and no DIR is given.
    """
    from rankzero.api.clusters import backend_for, runs_of_this_machine, told_of_this_machine
    from rankzero.api.planning import chosen_by, cluster_is_chosen
    from rankzero.cli import local_runs
    from rankzero.cli.cluster_option import say, terminal_width, wants_colour
    from rankzero.launch.status import as_table, summarise
    from rankzero.run_dir.named import DEFAULT_OUTPUT

    if directory is not None and cluster is not None:
        raise UsageError("runs of a directory are of this machine", where="--cluster", hint="leave one of them out")
    if cluster is None and (directory is not None or not cluster_is_chosen()):
        found = local_runs.local_runs(directory or Path(DEFAULT_OUTPUT), sort)
        if as_json:
            typer.echo(json.dumps([run.to_json() for run in found], indent=2))
        else:
            typer.echo(local_runs.as_table(found, terminal_width(), wants_colour()), nl=False)
        return
    with told_of_this_machine(None, cluster):
        spec, backend = backend_for(cluster, say)
        rows = summarise(backend.runs())
    here = "" if rows or cluster is not None else runs_of_this_machine(None)
    if here:
        say(f"the cluster that was asked ({spec.kind}, by {chosen_by()}) has none; {here}")
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
    else:
        typer.echo(as_table(rows, width=terminal_width(), colour=wants_colour()), nl=False)


def status(run: RunArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Say in one verdict how a run is, and what to do about it."""
    from rankzero.api.clusters import local_run
    from rankzero.cli import local_runs
    from rankzero.cli.cluster_option import terminal_width, wants_colour
    from rankzero.run_dir.view import view_run

    here = local_run(run, cluster)
    if here is not None:
        seen = view_run(here)
        text = local_runs.as_text(seen, terminal_width(), wants_colour())
        typer.echo(json.dumps(seen.to_json(), indent=2) if as_json else text, nl=as_json)
        return
    _look(run, cluster, as_json=as_json, whole=False)


def compare(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A run directory, or a name in ./runs.", autocompletion=run_names)
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=run_names)],
    as_json: JsonOption = False,
) -> None:
    """Put two runs of this machine beside each other.

    What differs in their specs, how they ended, and their curves.
    """
    from rankzero.api.runs import Run
    from rankzero.cli import local_runs
    from rankzero.cli.cluster_option import terminal_width, wants_colour

    one, other = (Run.open(name).status for name in (first, second))
    if as_json:
        changed = {field: [old, new] for field, old, new in local_runs.differences(one, other)}
        typer.echo(json.dumps({"spec": changed, "runs": [one.to_json(), other.to_json()]}, indent=2))
    else:
        typer.echo(local_runs.compared(one, other, terminal_width(), wants_colour()), nl=False)


def describe(run: RunArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Show all that the cluster knows of a run.

    The verdict, objects, pods with their containers, and events.
    """
    _require_cluster(run, cluster, "`rankzero status` says what there is to know of it")
    _look(run, cluster, as_json=as_json, whole=True)


def _require_cluster(run: str, cluster: str | None, instead: str) -> None:
    """Raise UsageError for a run of this machine, with what to do `instead`, where no cluster is chosen."""
    from rankzero.api.planning import cluster_is_chosen
    from rankzero.cli.target import place_of

    place = place_of(run)
    if cluster is None and not cluster_is_chosen() and place and (Path(place) / "run.yaml").is_file():
        raise UsageError("this run is of this machine", where=place, hint=f"{instead}; of a cluster's run: --cluster")


def _look(run: str, cluster: str | None, *, as_json: bool, whole: bool) -> None:
    from rankzero.api.clusters import backend_for, object_name_of, told_of_this_machine, unknown_run
    from rankzero.cli.cluster_option import say, terminal_width, wants_colour
    from rankzero.cli.describe_text import described, described_json
    from rankzero.launch.status import as_text, run_status

    with told_of_this_machine(run, cluster):
        _, backend = backend_for(cluster, say)
        name = object_name_of(run)
        evidence = backend.collect(name)
        if not evidence.objects and not evidence.pods:
            raise unknown_run(run, name, [one.run for one in backend.runs()])
    verdict = run_status(evidence)
    if as_json:
        facts = verdict.to_json()
        typer.echo(json.dumps({**facts, **described_json(evidence)} if whole else facts, indent=2))
        return
    typer.echo(as_text(verdict, width=terminal_width(), colour=wants_colour()), nl=False)
    if whole:
        typer.echo("\n" + described(evidence), nl=False)


def cancel(run: RunArgument, cluster: ClusterOption = None) -> None:
    """Stop a run, which saves and leaves its GPUs. Submitting it again continues it."""
    from rankzero.api.clusters import backend_for, find_run
    from rankzero.cli.cluster_option import say

    _require_cluster(run, cluster, "Ctrl-C, or SIGTERM to its process, saves and stops it")
    _, backend = backend_for(cluster, say)
    backend.cancel(find_run(backend, run), say)


def delete(
    run: RunArgument,
    cluster: ClusterOption = None,
    claims: Annotated[
        bool,
        typer.Option("--claims", help="Also the volumes that no other run uses or used, with all results on them."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what submit made for a run. Volumes and the results on them stay, unless asked for."""
    from rankzero.api.clusters import backend_for, find_run
    from rankzero.cli.cluster_option import say

    _require_cluster(run, cluster, "all that there is of it is this directory")
    _, backend = backend_for(cluster, say)
    name = find_run(backend, run)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask", where="delete", hint="--yes deletes without asking")
        also = " AND ITS VOLUMES WITH ALL RESULTS" if claims else ""
        typer.confirm(f"delete {name}{also}?", abort=True, err=True)
    removed = backend.delete(name, claims=claims, say=say)
    if as_json:
        typer.echo(json.dumps(removed))
    else:
        typer.echo("\n".join(f"removed {one}" for one in removed) or "nothing was left to remove")
