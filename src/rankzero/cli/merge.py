"""`rankzero merge`: an adapter and its base as one plain model."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from rankzero.cli.target import AdapterArgument, BaseOption


class BaseChoice(StrEnum):
    """Which weights of a base that was trained on in 4 or 8 bits; of others there is one kind."""

    TRAINED = "trained"
    FILES = "files"


def merge(
    adapter: AdapterArgument,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Directory to write the model to; must not exist.")
    ],
    base: Annotated[
        BaseChoice,
        typer.Option(
            "--base",
            help="Of a run with model.quantization: add to the weights as they were trained on (the losses that were "
            "measured hold for these), or to those in the base's files.",
        ),
    ] = BaseChoice.TRAINED,
    model: BaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as an object.")] = False,
) -> None:
    """Write a run's adapter and its base as one model, and prove it.

    What was written is loaded again and asked about the same texts: a model whose logits differ by more than rounding
    explains is refused.
    """
    from rankzero.api.results import merge as merge_adapter
    from rankzero.cli.output import warn_of_changes
    from rankzero.cli.undoing import undone_where_stopped
    from rankzero.run_dir.atomic import place_given_by

    with undone_where_stopped(), place_given_by("-o"):
        done = merge_adapter(adapter, output, base_weights=base.value, model=model, tell=warn_of_changes)
    if as_json:
        typer.echo(json.dumps({"directory": str(done.directory), **done.to_json()}, indent=2))
    else:
        typer.echo(f"{done.directory}: {done.base} with {done.layers} adapted layers, {done.dtype}")
        typer.echo(done.in_words)
