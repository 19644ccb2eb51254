"""`rankzero data …`: the commands by name, and `show`. Imports the data side inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankzero.api.installed import require_tokenizer
from rankzero.cli.data.check import check, stats
from rankzero.cli.data.convert import convert
from rankzero.cli.data.inputs import ColumnsOption, FormatOption, ReasoningOption, column_map
from rankzero.cli.help import Sections

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
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file.")],
    model: Annotated[str, typer.Option("--model", help="Model whose tokenizer is used: a directory or a Hub id.")],
    row: Annotated[int | None, typer.Option("--row", min=1, help="Show the row on this line of the file.")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show the first rows.")] = 3,
    max_length: Annotated[int, typer.Option("--max-length", min=8, help="As data.max_length.")] = 2048,
    chat_template: Annotated[Path | None, typer.Option("--chat-template", help="As data.chat_template.")] = None,
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    train_on_all: Annotated[bool, typer.Option("--all-tokens", help="As data.assistant_only_loss: false.")] = False,
    reasoning: ReasoningOption = "keep",
) -> None:
    """Print rows token by token as the model gets them.

    Trained tokens are green, or in ⟦brackets⟧.
    """
    require_tokenizer()
    from rankzero.api.data import Wanted, shown
    from rankzero.api.tokenizers import find_tokenizer
    from rankzero.data.tokens.chat import TokenRules
    from rankzero.spec.run_spec import ModelSpec, SourceSpec

    place = find_tokenizer(ModelSpec(name=model), "--model")
    rules = TokenRules(max_length=max_length, assistant_only_loss=not train_on_all, reasoning=reasoning)
    source = SourceSpec(path=file, format=row_format, columns=column_map(columns))
    wanted = Wanted([source], (), place, chat_template, rules)
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
