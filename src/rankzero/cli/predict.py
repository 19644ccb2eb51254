"""`rankzero predict`: the classes of texts, with their probabilities."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rankzero.cli.data.inputs import ColumnsOption, HeaderOption, column_map
from rankzero.cli.target import BaseOption, TargetArgument
from rankzero.errors import UsageError


def predict(
    target: TargetArgument,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Rows with text or sentence: JSONL, CSV, Parquet …")
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="A text; repeatable.")] = None,
    columns: ColumnsOption = None,
    header: HeaderOption = None,
    model: BaseOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object {text, label, probabilities} a line.")
    ] = False,
) -> None:
    """Put texts into the classes of a classifier, one line for each."""
    from rankzero.api.installed import require_engine
    from rankzero.api.results import predict as put_into_classes
    from rankzero.cli.output import warn_of_changes

    if not files and not text:
        raise UsageError("there is no text", where="command line", hint="pass --text '…', or a file of rows")
    require_engine()
    from rankzero.data.read.texts import read_texts

    names = column_map(columns)
    rows = (row for file in files or () for row in read_texts(file, names, "auto" if header is None else header))
    texts = [*(text or ()), *(row.text for row in rows)]
    predictions = put_into_classes(target, texts, model=model, tell=warn_of_changes)
    for one, found in zip(texts, predictions, strict=True):
        if as_json:
            value = {"text": one, "label": found.label, "probabilities": found.probabilities}
            typer.echo(json.dumps(value, ensure_ascii=False))
        else:
            typer.echo(f"{found.label}\t{found.probabilities[found.label]:.4f}\t{' '.join(one.split())}")
