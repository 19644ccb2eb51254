"""`rankzero submit`: render a run, have the cluster check it, apply it, and follow it to its end."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.render import ClusterOption, KindOption, print_objects
from rankzero.errors import INTERRUPTED

if TYPE_CHECKING:
    from rankzero.launch.backend import Backend
    from rankzero.launch.labels import Manifest
    from rankzero.launch.plan import Plan


def submit(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN.yaml|key=value", help="Run spec, overrides; cluster.KEY=VALUE for the cluster."),
    ] = None,
    cluster: ClusterOption = None,
    kind: KindOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be applied; needs no cluster.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait and do not follow.")] = False,
    allow_change: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Continue although this field changed; repeatable.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="End another run of this name without asking.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The outcome, or what would be applied, as JSON on stdout.")
    ] = False,
) -> None:
    """Run on a cluster, or continue there, and follow it to its end.

    Ends with the run's exit code. Ctrl-C leaves it running.
    """
    from rankzero.api.clusters import submitter
    from rankzero.cli.planning import plan_from
    from rankzero.launch.render import render

    who = "" if dry_run else submitter()
    plan = plan_from(arguments or [], cluster, kind, allow_changes=allow_change or (), submitter=who)
    objects = render(plan)
    if dry_run:
        print_objects(objects, as_json=as_json)
        return
    from rankzero.api.clusters import open_backend
    from rankzero.cli.cluster_option import say

    backend = open_backend(plan.cluster, say=say, detach=detach)
    place = f" --cluster {shlex.quote(cluster)}" if cluster else ""
    try:
        apply(backend, objects, plan, replace=replace)
    except KeyboardInterrupt:
        say("\ninterrupted; the same command continues")
        raise typer.Exit(INTERRUPTED) from None
    if detach:
        where = {"namespace": plan.cluster.namespace, "run_dir": plan.known_run_dir}
        facts = {"run": plan.name, "kind": plan.kind, **where}
        typer.echo(json.dumps(facts) if as_json else f"submitted {plan.name}")
        say(f"rankzero status {plan.name}{place}\nrankzero logs {plan.name} --follow{place}")
        return
    try:
        follow(backend, plan.name)
    except KeyboardInterrupt:
        say(f"\nthe run goes on; rankzero logs {plan.name} --follow{place} shows it again,")
        say(f"rankzero cancel {plan.name}{place} stops it")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(conclude(backend, plan.name, as_json=as_json))


def apply(backend: Backend, objects: list[Manifest], plan: Plan, *, replace: bool = False, otherwise: str = "") -> None:
    """Submit; where another run of this name goes on, ask the person at the terminal. `otherwise` says what else there
    is to do, where that is another command's than submit's."""
    from rankzero.api.clusters import submitted
    from rankzero.cli.cluster_option import say
    from rankzero.launch.backend import AlreadyRunsError

    try:
        submitted(backend, objects, plan, say=say, replace=replace)
    except AlreadyRunsError as error:
        (problem,) = error.problems
        problem = replaced(problem, hint=otherwise or problem.hint)
        if not sys.stdin.isatty():
            raise AlreadyRunsError(problem) from None
        say(str(problem))
        typer.confirm("end it, and run this instead?", abort=True, err=True)
        submitted(backend, objects, plan, say=say, replace=True)


def follow(backend: Backend, run: str) -> None:
    """Lines to stderr until the run has ended: the result is the verdict."""
    from rankzero.cli.log_view import as_line
    from rankzero.launch.backend import LogQuery

    colour = sys.stderr.isatty()
    for line in backend.logs(run, LogQuery(follow=True)):
        typer.echo(as_line(line, colour=colour), err=True)


def conclude(backend: Backend, run: str, *, as_json: bool) -> int:
    """Print the verdict. Returns the run's exit code."""
    from rankzero.cli.cluster_option import say, terminal_width, wants_colour
    from rankzero.errors import ExitCode
    from rankzero.launch.status import as_text, run_status

    status = run_status(backend.collect(run))
    if as_json:
        typer.echo(json.dumps(status.to_json(), indent=2))
    else:
        typer.echo(as_text(status, width=terminal_width(), colour=wants_colour()), nl=False)
    if status.exit_code is None:
        say("how the run ended is not known (yet)")
        return ExitCode.SERVICE
    return status.exit_code
