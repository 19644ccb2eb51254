"""`rankzero data …`: the commands by name, and `show`. Imports the data side inside the commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rankzero.api.installed import require_tokenizer
from rankzero.cli.data.check import check, stats
from rankzero.cli.data.convert import convert
from rankzero.cli.data.inputs import (
    AllTokensOption,
    ColumnsOption,
    Flags,
    FormatOption,
    HeaderOption,
    ImageRootOption,
    Inputs,
    MaxLengthOption,
    ReasoningOption,
    TemplateOption,
    what_is_wanted,
)
from rankzero.cli.help import Sections
from rankzero.errors import UsageError

LOOK, MAKE = "Look", "Make"
"""Sections of the help."""

app = typer.Typer(
    cls=Sections,
    no_args_is_help=True,
    help="Check, count, show, convert and prepare training data.",
    rich_markup_mode=None,
)
app.command(rich_help_panel=LOOK)(check)
app.command(rich_help_panel=LOOK)(stats)
app.command(rich_help_panel=MAKE)(convert)


@app.command(rich_help_panel=LOOK)
def show(
    inputs: Inputs,
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR|ID", help="Whose tokens they are; needed without a run spec.")
    ] = None,
    row: Annotated[
        int | None, typer.Option("--row", min=1, help="Show what is on this line of the (first) file.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show the first rows.")] = 3,
    max_length: MaxLengthOption = None,
    chat_template: TemplateOption = None,
    all_tokens: AllTokensOption = False,
    reasoning: ReasoningOption = "keep",
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    image_root: ImageRootOption = None,
    header: HeaderOption = None,
) -> None:
    """Print rows token by token as the model gets them.

    Trained tokens are green, or in ⟦brackets⟧. Of several sources, rows of the first one are shown.
    """
    require_tokenizer()
    from rankzero.api.data import shown

    wanted = what_is_wanted(
        inputs, Flags(model, max_length, chat_template, all_tokens, row_format, columns, image_root, reasoning, header)
    )
    if wanted.tokenizer is None:
        hint = f"add --model DIR|ID, or give the run.yaml that trains on {inputs[0]}"
        raise UsageError("it takes a model to say what its tokens are", where="--model", hint=hint)
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for number, one in enumerate(shown(wanted, line=row, rows=rows)):
        if number:
            typer.echo()
        if colours:
            from rich.console import Console

            console = Console(highlight=False)
            console.print(one.headline, style="bold", markup=False)
            console.print(one.coloured())
        else:
            typer.echo(one.headline)
            typer.echo(one.plain())
