"""What commands that look at data take: files and flags, or a run spec. Knows both ways to say it; looks at nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.errors import UsageError
from rankzero.spec.row_formats import ROW_FORMATS, Reasoning, RowFormat

if TYPE_CHECKING:
    from rankzero.api.data import Wanted

FormatOption = Annotated[
    RowFormat,
    typer.Option(
        "--format", metavar="SHAPE", help=f"Row shape; auto decides row by row. One of {', '.join(ROW_FORMATS)}."
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="OURS=THEIRS", help="As data.train[].columns: prompt=question,completion=reply."),
]
HeaderOption = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="As data.train[].header: whether the first line of a table has names."),
]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="FILE|RUN.yaml", help="Data as in data.train, or a run spec with key=value overrides."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="DIR|ID", help="Count its tokens and try its chat template.")
]
MaxLengthOption = Annotated[int | None, typer.Option("--max-length", min=8, help="As data.max_length [2048].")]
TemplateOption = Annotated[Path | None, typer.Option("--chat-template", metavar="FILE", help="As data.chat_template.")]
AllTokensOption = Annotated[bool, typer.Option("--all-tokens", help="As data.assistant_only_loss: false.")]
ReasoningOption = Annotated[Reasoning, typer.Option("--reasoning", help="As data.reasoning.")]
ImagesOption = Annotated[bool, typer.Option("--images", help="Decode every image.")]
ImageRootOption = Annotated[
    str | None, typer.Option("--image-root", metavar="DIR", help="As data.train[].image_root: where images are.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")]


@dataclass(frozen=True, slots=True)
class Flags:
    """What is said by flags where there is no run spec."""

    model: str | None
    max_length: int | None
    chat_template: Path | None
    all_tokens: bool
    row_format: str
    columns: list[str] | None
    image_root: str | None
    reasoning: Reasoning = "keep"
    header: bool | None = None


def what_is_wanted(inputs: list[str], flags: Flags) -> Wanted:
    """The sources, and how they are looked at. Raises UsageError for flags that the run spec has values for, and as
    `read_spec` does."""
    specs = [name for name in inputs if name.endswith((".yaml", ".yml"))]
    if not specs:
        return _from_flags(inputs, flags)
    given = [
        flag
        for flag, value in (
            ("--model", flags.model),
            ("--max-length", flags.max_length),
            ("--chat-template", flags.chat_template),
            ("--all-tokens", flags.all_tokens or None),
            ("--reasoning", None if flags.reasoning == "keep" else flags.reasoning),
            ("--columns", flags.columns),
            ("--format", None if flags.row_format == "auto" else flags.row_format),
            ("--image-root", flags.image_root),
            ("--header", flags.header),
        )
        if value is not None
    ]
    if given:
        hint = "write key=value: model.name=…, data.max_length=…"
        raise UsageError(f"{specs[0]} says that already: {', '.join(given)}", where="command line", hint=hint)
    from rankzero.api.data import wanted_by
    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.cli.train import read_spec

    return wanted_by(read_spec(inputs, SeedFlags(), world_size=1))


def _from_flags(inputs: list[str], flags: Flags) -> Wanted:
    from rankzero.api.data import Wanted
    from rankzero.api.data_sources import path_text
    from rankzero.api.tokenizers import find_tokenizer
    from rankzero.data.tokens.chat import TokenRules
    from rankzero.spec.run_spec import ModelSpec, SourceSpec

    reads_tokens = flags.max_length or flags.chat_template or flags.all_tokens or flags.reasoning != "keep"
    if flags.model is None and reads_tokens:
        hint = "--model says whose tokens and whose template"
        raise UsageError("there is nothing to count tokens with", where="command line", hint=hint)
    shape = {
        "format": flags.row_format,
        "columns": column_map(flags.columns),
        "image_root": flags.image_root,
        "header": "auto" if flags.header is None else flags.header,
    }
    sources = [SourceSpec.model_validate({"path": path_text(path, "data"), **shape}) for path in inputs]
    place = None if flags.model is None else find_tokenizer(ModelSpec(name=flags.model), "--model")
    kept = TokenRules(
        max_length=flags.max_length or 2048, assistant_only_loss=not flags.all_tokens, reasoning=flags.reasoning
    )
    return Wanted(sources, (), place, flags.chat_template, kept)


def column_map(texts: Sequence[str] | None) -> dict[str, str]:
    """`prompt=question,completion=reply` as names. Raises UsageError."""
    names: dict[str, str] = {}
    pairs = [pair for text in texts or () for pair in re.split(r",(?=\w+=)", text)]
    for text in pairs:
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            hint = "write our name and the data's: --columns prompt=question"
            raise UsageError(f"{text!r} names no column", where="--columns", hint=hint)
        names[ours] = theirs
    return names
