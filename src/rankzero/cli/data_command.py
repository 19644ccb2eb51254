"""`rankzero data check` and `rankzero data show`: parse, call, print. Imports the data side inside the commands."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankzero.errors import ConfigError, DataError, UsageError

if TYPE_CHECKING:
    from rankzero.data.validate import CheckReport

app = typer.Typer(no_args_is_help=True, help="Look at training data: check every row, see what a row becomes.")

FormatOption = Annotated[
    Literal["auto", "messages", "prompt_completion", "text"],
    typer.Option("--format", help="Row shape; auto decides row by row."),
]

_KEPT_FOR_JSON = 100_000


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="JSONL files.")],
    row_format: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every problem.")] = False,
) -> None:
    """Look at every row and list the bad ones with file and line. Needs no model. Exit status 65 when any is bad."""
    _require("orjson")
    from rankzero.data.problems import KEPT
    from rankzero.data.progress import show_progress
    from rankzero.data.validate import check as check_rows
    from rankzero.spec.run_spec import SourceSpec

    sources = [SourceSpec(path=path, format=row_format) for path in files]
    size = sum(os.path.getsize(path) for path in files if os.path.isfile(path))
    with show_progress("checking", size) as advance:
        report = check_rows(sources, progress=advance, keep=_KEPT_FOR_JSON if as_json else KEPT)
    if as_json:
        typer.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=2))
        if not report.ok:
            raise DataError(f"{_count(report.log.total, 'problem')}; the JSON lists them")
        return
    if report.counts.rows:
        typer.echo(_summary(report))
    report.raise_if_bad()


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file.")],
    model: Annotated[str, typer.Option("--model", help="Model whose tokenizer is used: a directory or a Hub id.")],
    row: Annotated[int | None, typer.Option("--row", min=1, help="Show the row on this line of the file.")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show the first rows.")] = 3,
    max_length: Annotated[int, typer.Option("--max-length", min=8, help="As data.max_length.")] = 2048,
    chat_template: Annotated[Path | None, typer.Option("--chat-template", help="As data.chat_template.")] = None,
    row_format: FormatOption = "auto",
    train_on_all: Annotated[bool, typer.Option("--all-tokens", help="As data.assistant_only_loss: false.")] = False,
) -> None:
    """Print rows token by token as the model gets them; trained tokens are green, or in ⟦brackets⟧."""
    _require("orjson", "numpy", "tokenizers", "transformers")
    from rankzero.data.chat import TokenRules
    from rankzero.data.show import rows_to_show
    from rankzero.spec.run_spec import SourceSpec

    tokenizer = _load_tokenizer(model, chat_template)
    rules = TokenRules(max_length=max_length, assistant_only_loss=not train_on_all)

    source = SourceSpec(path=file, format=row_format)
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for number, shown in enumerate(rows_to_show(source, tokenizer, rules, line=row, count=rows)):
        if number:
            typer.echo()
        if colours:
            from rich.console import Console

            console = Console(highlight=False)
            console.print(shown.headline, style="bold", markup=False)
            console.print(shown.coloured())
        else:
            typer.echo(shown.headline)
            typer.echo(shown.plain())


def _summary(report: CheckReport) -> str:
    counts = report.counts
    lines = [
        f"{_count(counts.rows, 'row')} in {_count(len(report.files), 'file')}: "
        + (", ".join(f"{rows:,} {name}" for name, rows in counts.formats.most_common()) or "none can be read")
    ]
    if counts.roles:
        roles = ", ".join(f"{turns:,} {role}" for role, turns in counts.roles.most_common())
        lines.append(
            f"chat turns: {roles}; {counts.roles.total() / counts.turns.total():.1f} a row, at most {max(counts.turns)}"
        )
    if counts.blank:
        lines.append(f"blank lines skipped: {counts.blank:,}")
    if counts.ignored_keys:
        keys = ", ".join(f"{key} ({rows:,})" for key, rows in counts.ignored_keys.most_common(8))
        lines.append(f"keys that are not read: {keys}")
    if report.ok:
        lines.append("no problems")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _require(*modules: str) -> None:
    """The launcher alone can be installed without what reads data."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ValueError:
            found = None
        if found is None:
            hint = 'pip install "rankzero[train]"'
            raise ConfigError(f"this command needs {name}, which is not installed", hint=hint)


def _load_tokenizer(model: str, chat_template: Path | None) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "give a directory with tokenizer.json and tokenizer_config.json, or a Hub id"
        raise ConfigError(f"the tokenizer cannot be loaded: {reason}", where=model, hint=hint) from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{chat_template} cannot be read: {error}", hint="give a Jinja file") from error
    return tokenizer
