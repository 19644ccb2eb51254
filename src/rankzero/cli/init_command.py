"""`rankzero init`: write a commented run.yaml to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from rankzero.errors import UsageError
from rankzero.run_dir.atomic import write_text


def init(
    output: Annotated[str, typer.Option("-o", "--output", help="File to write.")] = "run.yaml",
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
) -> None:
    """Write a commented run.yaml."""
    path = Path(output)
    if path.is_dir():
        path = path / "run.yaml"
    if path.exists() and not force:
        raise UsageError("the file exists already", where=str(path), hint="choose another with -o, or pass --force")
    write_text(path, (files("rankzero") / "recipes/default/run.yaml").read_text(encoding="utf-8"))
    typer.echo(f"wrote {path}\nnext: set model.name and data.train in it, then: rankzero train {path}")
