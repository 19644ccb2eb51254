"""What commands that use a model are given, as their argument. Knows that a run in ./runs is found by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from rankzero.cli.completion import run_names


def place_of(target: str | None) -> str | None:
    """`runs/my-run` for my-run where nothing here is called so; None while a shell completes."""
    from rankzero.run_dir.named import named_run

    return target and named_run(target)


TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run directory or its name in ./runs, or a model: directory or Hub id.",
        callback=place_of,
        autocompletion=run_names,
    ),
]
AdapterArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|ADAPTER",
        help="A run directory or its name in ./runs, or a directory with an adapter.",
        callback=place_of,
        autocompletion=run_names,
    ),
]
BaseOption = Annotated[
    str | None, typer.Option("--model", metavar="DIR|ID", help="The base, where it is not where the adapter says.")
]
