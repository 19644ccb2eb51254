"""`rankzero smoke`: whether devices, processes, links, clocks and the volume work, minutes before a run needs them."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.cli.render import KindOption, ThereOption, print_objects
from rankzero.cli.train import ProcessesOption
from rankzero.cli.typed import refuse_typed
from rankzero.errors import INTERRUPTED, RankzeroError, UsageError
from rankzero.spec.run_options import SmokeSettings

if TYPE_CHECKING:
    from rankzero.launch.backend import Backend
    from rankzero.launch.plan import Plan

_DEFAULTS = SmokeSettings()


def smoke(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="cluster.KEY=VALUE", help="Changes of the cluster spec.")
    ] = None,
    nproc_per_node: ProcessesOption = "auto",
    epochs: Annotated[int, typer.Option(min=1, help="Times that the rows are trained on.")] = _DEFAULTS.epochs,
    batch: Annotated[int, typer.Option(min=1, help="Rows per process and step.")] = _DEFAULTS.batch,
    samples: Annotated[int, typer.Option(min=1, help="Rows that are made up.")] = _DEFAULTS.samples,
    features: Annotated[int, typer.Option(min=1, help="Numbers per row.")] = _DEFAULTS.features,
    classes: Annotated[int, typer.Option(min=2, help="Classes of rows.")] = _DEFAULTS.classes,
    lr: Annotated[float, typer.Option(min=0, help="Learning rate of AdamW.")] = _DEFAULTS.lr,
    seed: Annotated[int, typer.Option(min=0, help="Decides rows and weights.")] = _DEFAULTS.seed,
    output: Annotated[str, typer.Option(metavar="DIR", help="Where results would go: its volume is tried.")] = "runs",
    cluster: ThereOption = None,
    kind: KindOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --cluster: print what would be applied.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The outcome, or what would be applied, as JSON on stdout.")
    ] = False,
) -> None:
    """Test devices, processes, links and disk, without a model.

    With --cluster as the pods that a run would be. Works under torchrun too.

    Ends with 0 where everything agrees: 69 where processes cannot talk to each other, 74 for the volume, 70 where the
    devices compute wrongly.
    """
    settings = SmokeSettings(epochs, batch, samples, features, classes, lr, seed)
    if cluster is None:
        if arguments or kind or dry_run:
            raise UsageError("this is for a cluster", where=_first_for_clusters(arguments, kind), hint="add --cluster")
        _here(settings, nproc_per_node, output, as_json=as_json)
    else:
        changes = cluster_settings(arguments or [])
        hint = "cluster.nproc_per_node=N; its volume is storage.outputs"
        refuse_typed(context, ("nproc_per_node", "output"), "cluster.yaml says it", hint)
        from rankzero.api.clusters import submitter
        from rankzero.api.smoke import smoke_plan
        from rankzero.cli.planning import warn_of_what_has_no_effect

        who = "" if dry_run else submitter()
        try:
            plan = smoke_plan(settings, cluster, changes, kind, submitter=who)
            warn_of_what_has_no_effect(plan)
            _there(plan, cluster, dry_run=dry_run, as_json=as_json)
        except RankzeroError as error:
            if as_json:
                _echo_refusal(error)
            raise


def _first_for_clusters(arguments: list[str] | None, kind: str | None) -> str:
    return arguments[0] if arguments else "--kind" if kind else "--dry-run"


def cluster_settings(arguments: list[str]) -> list[str]:
    """`cluster.num_nodes=4` without its prefix. Raises UsageError for anything else."""
    from rankzero.spec.written import CLUSTER_PREFIX

    for text in arguments:
        if not text.startswith(CLUSTER_PREFIX) or "=" not in text:
            hint = f"only the cluster's settings: {CLUSTER_PREFIX}num_nodes=4"
            raise UsageError(f"cannot read {text!r}", hint=hint)
    return [text.removeprefix(CLUSTER_PREFIX) for text in arguments]


def _here(settings: SmokeSettings, nproc_per_node: str, output: str, *, as_json: bool) -> None:
    from rankzero.api.smoke import smoke as run_smoke
    from rankzero.cli.train import process_count, stopped_by_sigterm

    speaks = os.environ.get("RANK", "0") == "0"
    with stopped_by_sigterm():
        nproc = process_count(nproc_per_node)
        try:
            report = run_smoke(settings, nproc_per_node=nproc, output_dir=output, in_process=nproc == 1)
        except RankzeroError as error:
            if as_json and speaks:
                _echo_refusal(error)
            raise
    if speaks:
        typer.echo(json.dumps({"ok": True, **report}, indent=2) if as_json else summary(report))


def _echo_refusal(error: RankzeroError) -> None:
    """For programs, on stdout; for people it is raised."""
    from rankzero.redaction import Redactor

    redact = Redactor(os.environ)
    problems = [
        {"what": redact(one.what), "where": redact(one.where), "hint": redact(one.hint)} for one in error.problems
    ]
    typer.echo(json.dumps({"ok": False, "exit_code": int(error.exit_code), "problems": problems}, indent=2))


def summary(report: dict[str, Any]) -> str:
    """What a person wants to know: that it works, on what, how fast."""
    hosts, ranks = len(report["hosts"]), report["world_size"]
    volume, loss = report["volume"], report["loss"]
    lines = [
        f"devices     {', '.join(dict.fromkeys(report['devices']))}",
        f"processes   {ranks} on {hosts} host{'s' * (hosts > 1)}{', weights equal on all' if ranks > 1 else ''}",
        f"loss        {loss['before']:.4f} -> {loss['after']:.4f}",
    ]
    largest = {one["operation"]: one for one in report["collectives"]}  # sizes rise
    for name, one in largest.items():
        link = report["link"]
        share = f", {one['bus_bandwidth'] / link['bytes_per_second']:.0%} of {link['name']}" if link else ""
        lines.append(f"{name:11} {one['bus_bandwidth'] / 1e9:.2f} GB/s of bus bandwidth{share}")
    for skew in report["clocks"]:
        lines.append(f"clock       {skew['host']} {skew['offset'] * 1e3:+.1f} ms, ± {skew['uncertainty'] * 1e3:.1f} ms")
    lines.append(f"volume      {volume['bytes'] / volume['seconds'] / 1e6:.0f} MB/s with fsync, {volume['directory']}")
    lines += [f"look at     {note}" for note in report["notes"]]
    return "\n".join([*lines, f"ok          in {report['seconds']:.1f} s"])


def _there(plan: Plan, cluster: str, *, dry_run: bool, as_json: bool) -> None:
    from rankzero.api.clusters import open_backend
    from rankzero.cli.cluster_option import say
    from rankzero.cli.submit import apply, conclude, follow
    from rankzero.launch.render import render

    objects = render(plan)
    if dry_run:
        print_objects(objects, as_json=as_json)
        return
    backend = open_backend(plan.cluster, say=say)
    delete = f"rankzero delete {plan.name} --cluster {shlex.quote(cluster)}"
    applied = False
    try:
        apply(backend, objects, plan)
        applied = True
        follow(backend, plan.name)
        code = conclude(backend, plan.name, as_json=as_json)
    except KeyboardInterrupt:
        say(f"\nit goes on; {delete} ends it")
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        if applied:
            say(f"{plan.name} goes on, and keeps its GPUs until it has ended; {delete} removes it")
        raise
    if code == 0:
        _clean_up(backend, plan.name, delete)
    else:
        say(f"its pods stay to be looked at; {delete} removes them")
    raise typer.Exit(code)


def _clean_up(backend: Backend, run: str, command: str) -> None:
    """The test is over and was good, whatever becomes of its objects."""
    from rankzero.cli.cluster_option import say
    from rankzero.cli.output import print_warning

    try:
        backend.delete(run, claims=False, say=say)
    except RankzeroError as error:
        for problem in error.problems:
            print_warning(replace(problem, hint=problem.hint.replace("the same command", command)))
