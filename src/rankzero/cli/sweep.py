"""`rankzero sweep`: a search over a run spec's fields, here or on a cluster. Parse, call, print."""

from __future__ import annotations

import json
import os
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.cli.render import KindOption, there_option
from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.api.sweeps import SweepResult
    from rankzero.launch.labels import Manifest
    from rankzero.spec.sweep_load import Sweep

_MOST_SHOWN = 30


def sweep(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="SWEEP.yaml|key=value", help="Sweep file, overrides of it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the space, and train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What is printed, as JSON on stdout.")] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Print the sweep as Katib's Experiment, for --cluster; applies nothing.")
    ] = False,
    cluster: Annotated[
        str | None,
        there_option("Train on a cluster; with --kind or --render default $RANKZERO_CLUSTER, cluster.yaml."),
    ] = None,
    kind: KindOption = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="DIR", help="One file per object.")] = None,
) -> None:
    """Search fields of a run spec for the best run, or continue.

    Each trial is a run with a directory of its own. The best one's spec is written as best.yaml, which `rankzero train`
    takes.
    """
    from rankzero.api.sweeps import katib_objects, load_sweep, load_sweep_on, parallel_of, run_sweep, run_sweep_on
    from rankzero.cli.argv import spec_arguments
    from rankzero.cli.output import print_warning
    from rankzero.cli.planning import warn_of_what_has_no_effect
    from rankzero.cli.train import stopped_by_sigterm
    from rankzero.machine import local_gpu_count

    given = spec_arguments(arguments or [])
    if given.file is None:
        hint = "rankzero sweep SWEEP.yaml; docs/sweeps.md has one to start from"
        raise UsageError("a sweep file is needed", hint=hint)
    if output is not None and not render:
        raise UsageError("only --render writes files", where="--output", hint="add --render, or leave it out")
    on_cluster = cluster is not None or kind is not None
    for_cluster = [text.removeprefix("cluster.") for text in given.overrides if text.startswith("cluster.")]
    for_sweep = [text for text in given.overrides if not text.startswith("cluster.")]
    if render:
        objects = katib_objects(
            given.file, for_sweep, cluster=cluster, cluster_overrides=for_cluster, kind=kind, warn=print_warning
        )
        _print(objects, output, as_json=as_json)
        return
    with stopped_by_sigterm():
        if dry_run and on_cluster:
            found, plan = load_sweep_on(
                given.file, for_sweep, cluster=cluster, cluster_overrides=for_cluster, kind=kind
            )
            warn_of_what_has_no_effect(plan)
        elif dry_run:
            found = load_sweep(given.file, given.overrides, warn=print_warning)
            parallel_of(found, local_gpu_count(os.environ))
        if dry_run:
            typer.echo(json.dumps(space_json(found), indent=2) + "\n" if as_json else space_text(found), nl=False)
            return
        if on_cluster:
            result = run_sweep_on(
                given.file, for_sweep, cluster=cluster, cluster_overrides=for_cluster, kind=kind, say=_say
            )
        else:
            result = run_sweep(load_sweep(given.file, given.overrides, warn=print_warning), say=_say)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        typer.echo(table_text(result), nl=False)


def _print(objects: list[Manifest], output: str | None, *, as_json: bool) -> None:
    """As `rankzero render` does it."""
    from rankzero.cli.render import print_objects, write_files

    if output is None:
        print_objects(objects, as_json=as_json)
    else:
        write_files(objects, Path(output), as_json=as_json)


def _say(line: str) -> None:
    from rankzero.redaction import Redactor
    from rankzero.stderr import write_stderr
    from rankzero.wording import printable

    write_stderr(Redactor(os.environ)(printable(f"{datetime.now():%H:%M:%S} {line}\n")))


def space_text(sweep: Sweep) -> str:
    """What would be searched, and how."""
    from rankzero.spec.nearby import shown

    spec = sweep.spec
    width = max(len(name) for name in sweep.space)
    better = "highest" if sweep.higher_is_better else "lowest"
    lines = [
        f"sweep       {sweep.name}, in {shown(sweep.directory)}",
        f"run         {spec.run}",
        f"looks for   the {better} {sweep.metric}",
        f"trials      {sweep.trials}, by {spec.sampler}{_pruned_by(spec.pruner)}",
        *(f"  {name:{width}}  {dimension}" for name, dimension in sweep.space.items()),
    ]
    return "\n".join(lines) + "\n"


def space_json(sweep: Sweep) -> dict[str, Any]:
    """As `space_text`, as plain JSON; a result has the same names (sweep/outcome.py)."""
    return {
        "name": sweep.name,
        "directory": str(sweep.directory),
        "run": sweep.spec.run,
        "metric": sweep.metric,
        "direction": "maximize" if sweep.higher_is_better else "minimize",
        "trials": sweep.trials,
        "sampler": sweep.spec.sampler,
        "pruner": sweep.spec.pruner,
        "space": {name: dimension.to_json() for name, dimension in sweep.space.items()},
    }


def _pruned_by(pruner: str) -> str:
    return "" if pruner == "none" else f", ended early by {pruner}"


def table_text(result: SweepResult) -> str:
    """The trials, the best first, and what to type next."""
    from rankzero.spec.nearby import shown
    from rankzero.spec.search_space import chosen_values
    from rankzero.spec.search_space import shown as value_text
    from rankzero.sweep.outcome import best_file
    from rankzero.sweep.page import STATES
    from rankzero.sweep.place import SweepDir

    sweep, place = result.sweep, SweepDir(result.directory)
    sign = -1.0 if sweep.higher_is_better else 1.0
    order = {"complete": 0, "pruned": 1, "running": 2, "failed": 3}
    trials = sorted(
        result.trials,
        key=lambda trial: (order[trial.state], 0.0 if trial.value is None else sign * trial.value, trial.number),
    )
    rows = [["trial", sweep.metric, *sweep.space, ""]]
    for trial in trials[:_MOST_SHOWN]:
        values = chosen_values(sweep.space, trial.labels)
        score = "" if trial.value is None else f"{trial.value:.4f}"
        why = f": {trial.cause.splitlines()[0]}" if trial.cause else ""
        rows.append([str(trial.number), score, *map(value_text, values.values()), f"{STATES[trial.state]}{why}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(trials) > _MOST_SHOWN:
        lines.append(f"… and {len(trials) - _MOST_SHOWN} more in {shown(place.page)}")
    if result.best is not None:
        command = "submit" if sweep.for_pods else "train"
        directory = os.path.join(sweep.runs, result.best.run_name(sweep))
        lines += ["", f"best        trial {result.best.number}, {shown(directory)}"]
        lines += [
            f"report      {shown(place.page)}",
            f"next        rankzero {command} {shlex.quote(shown(best_file(sweep)))}",
        ]
    return "\n".join(lines) + "\n"
