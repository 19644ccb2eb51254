"""`rankzero render`: exactly what submit would apply, as YAML. Needs no cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.cli.completion import profile_names
from rankzero.cli.planning import plan_from

if TYPE_CHECKING:
    from rankzero.launch.labels import Manifest


def there_option(words: str) -> Any:
    """`--cluster`, with what it does."""
    return typer.Option("--cluster", metavar="FILE|PROFILE", help=words, autocompletion=profile_names)


ClusterOption = Annotated[str | None, there_option("Where; default $RANKZERO_CLUSTER, cluster.yaml.")]
ThereOption = Annotated[str | None, there_option("On a cluster instead of here.")]
"""Of commands that are for this machine without it, whatever cluster is the default."""
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="job, jobset, trainjob, pytorchjob, statefulset, docker or slurm, whatever the cluster says.",
    ),
]


def render(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN.yaml|key=value", help="Run spec, overrides; cluster.KEY=VALUE for the cluster."),
    ] = None,
    cluster: ClusterOption = None,
    kind: KindOption = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="DIR", help="One file per object.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="On a terminal too, print the contents of files that are shipped.")
    ] = False,
) -> None:
    """Print the objects that a run becomes on a cluster, as YAML.

    For Slurm it is the batch script.
    """
    from rankzero.launch.render import render as render_plan

    objects = render_plan(plan_from(arguments or [], cluster, kind))
    if output is None:
        print_objects(objects, full=full)
    else:
        write_files(objects, Path(output))


def print_objects(objects: list[Manifest], *, full: bool = False, as_json: bool = False) -> None:
    """Exactly what is sent; on a terminal without `full`, with the long lines of shipped files left out. As JSON it is
    for programs: a list of all objects, whole."""
    from rankzero.launch.render.content import SCRIPT, shortened, to_yaml

    if as_json:
        typer.echo(json.dumps(objects, indent=2))
        return
    scripts = [one for one in objects if SCRIPT in one.get("spec", {})]
    if len(scripts) > 1:
        objects = scripts[-1:]
        typer.echo("the script of the preparation is left out here; rankzero render -o DIR writes both", err=True)
    if full or not sys.stdout.isatty():
        typer.echo(to_yaml(objects), nl=False)
        return
    short = shortened(objects)
    typer.echo(to_yaml(short), nl=False)
    if short != objects:
        typer.echo("long lines are left out here; rankzero render --full, a pipe and -o have them", err=True)


def write_files(objects: list[Manifest], directory: Path, *, as_json: bool = False) -> None:
    """One file an object, numbered in the order of application; prints their paths. Raises StorageError."""
    from rankzero.launch.render.content import file_name, to_document
    from rankzero.run_dir.atomic import place_given_by, write_text

    written = []
    for index, manifest in enumerate(objects, start=1):
        path = directory / file_name(index, manifest)
        with place_given_by("-o"):
            write_text(path, to_document(manifest))
        written.append(str(path))
        if not as_json:
            typer.echo(path)
    if as_json:
        typer.echo(json.dumps({"files": written}, indent=2))
