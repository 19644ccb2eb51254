"""`rankzero report`: the page of a run, of several beside each other, or of all while they go on. Parse and call."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from rankzero.cli.completion import run_names
from rankzero.errors import ConfigError, ServiceError, UsageError


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run directories, or names in ./runs; with --live also what holds them.",
            autocompletion=run_names,
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="One page with all of them beside each other.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the pages on loopback and refresh them while runs go on.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the page goes (-: to stdout); else RUN/report.html, or compare.html here.",
        ),
    ] = None,
) -> None:
    """Make the page of a run, or of several, in one file.

    Curves, where its time went, data, samples, cost. It is one file without scripts, which needs no network. A run
    makes it by itself when it ends; this makes it again at any time, also of a run that was killed.
    """
    from rankzero.api.installed import require_pages

    require_pages()
    targets = runs or []
    if compare and len(targets) < 2:
        raise UsageError("there is nothing to compare", where="--compare", hint="name two runs or more")
    if live:
        if output is not None:
            raise UsageError("what is served is written nowhere", where="--output", hint="leave it or --live out")
        _serve(targets, compare=compare)
    elif not targets:
        raise UsageError("which run?", where="report", hint="name a run directory, such as runs/NAME")
    elif compare:
        _write(output if output is not None else "compare.html", [_run(target) for target in targets])
    elif output is not None and len(targets) > 1:
        raise UsageError("several pages do not fit in one file", where="--output", hint="did you mean --compare?")
    else:
        for root in [_run(target) for target in targets]:
            _write(output, [root])


def _write(output: str | None, roots: list[Path]) -> None:
    """The page of one run, or of several beside each other."""
    from rankzero.cli.own_file import require_page
    from rankzero.report.page import compare_page, run_page
    from rankzero.report.run import read_run
    from rankzero.run_dir.atomic import place_given_by, write_text
    from rankzero.run_dir.paths import RunDir
    from rankzero.spec.nearby import shown

    read = [read_run(root, time.time()) for root in roots]
    page = run_page(read[0]) if len(read) == 1 else compare_page(read)
    if output == "-":
        typer.echo(page, nl=False)
        return
    path = RunDir(roots[0]).page if output is None else Path(output)
    if output is not None:
        require_page(path, "--output")
    with place_given_by("--output"):
        write_text(path, page)
    typer.echo(shown(path))


def _run(target: str) -> Path:
    """A run directory by its path, or by its name in ./runs. Raises ConfigError."""
    from rankzero.api.runs import Run

    return Run.open(target).path


def _serve(targets: list[str], *, compare: bool) -> None:
    """Until Ctrl-C."""
    from rankzero.api.places import place
    from rankzero.report.live import served
    from rankzero.run_dir.named import DEFAULT_OUTPUT, named_run

    places = [place(named_run(target)) for target in targets or [DEFAULT_OUTPUT]]
    missing = [str(place) for place in places if not place.is_dir()]
    if targets and missing:  # without a name it is for the runs here, also for the first one, which makes the directory
        raise ConfigError(
            "there is no such directory", where=missing[0], hint="name runs, or a directory that holds runs"
        )
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        try:
            url, site = stack.enter_context(served([_run(str(place)) for place in places] if compare else places))
        except OSError as error:
            raise ServiceError(f"loopback cannot be served on: {error.strerror or error}", where="--live") from error
        chosen = urlencode([("run", name) for name in site.runs()])
        typer.echo(f"{url}compare?{chosen}" if compare else url)
        typer.echo("the page refreshes itself; Ctrl-C ends this", err=True)
        while True:
            time.sleep(3600)
