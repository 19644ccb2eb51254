"""What commands that look at data take: files and flags, or a run spec. Knows both ways to say it; looks at nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.data.tokenizer_option import TokenizerPlace, find_tokenizer
from rankzero.errors import UsageError
from rankzero.spec.nearby import shown
from rankzero.spec.row_formats import Reasoning, RowFormat

if TYPE_CHECKING:
    from rankzero.data.tokens.chat import TokenRules
    from rankzero.spec.run_spec import SourceSpec

FormatOption = Annotated[RowFormat, typer.Option("--format", help="Row shape; auto decides row by row.")]
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
    typer.Argument(metavar="FILE…|RUN.yaml", help="Data as in data.train, or a run spec with key=value overrides."),
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be looked at, whether flags or a run spec say so."""

    train: Sequence[SourceSpec]
    eval: Sequence[SourceSpec] = ()
    tokenizer: TokenizerPlace | None = None
    chat_template: Path | None = None
    rules: TokenRules | None = None
    seed: int = 0
    image_max_tokens: int | None = None


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
    return _from_spec(inputs)


def _from_flags(inputs: list[str], flags: Flags) -> Wanted:
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
    sources = [SourceSpec.model_validate({"path": path, **shape}) for path in inputs]
    place = None if flags.model is None else find_tokenizer(ModelSpec(name=flags.model), "--model")
    kept = TokenRules(
        max_length=flags.max_length or 2048, assistant_only_loss=not flags.all_tokens, reasoning=flags.reasoning
    )
    return Wanted(sources, (), place, flags.chat_template, kept)


def _from_spec(inputs: list[str]) -> Wanted:
    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.cli.train import read_spec
    from rankzero.data.cache.training_data import parts_of, token_rules

    spec = read_spec(inputs, SeedFlags(), world_size=1)
    if spec.data.streaming:
        hint = "name one of its files and --model; or add data.streaming=false, which fetches and looks at all of them"
        raise UsageError("rows of a stream are looked at as they are trained", where="data.streaming", hint=hint)
    parts = parts_of(spec.data)
    template = None if spec.data.chat_template is None else Path(spec.data.chat_template)
    place = find_tokenizer(spec.model)
    return Wanted(
        [_as_read(source) for source in parts["train"]],
        [_as_read(source) for source in parts.get("eval", ())],
        place,
        template,
        token_rules(spec),
        spec.train.seed,
        spec.data.image_max_tokens,
    )


def _as_read(source: SourceSpec) -> SourceSpec:
    """With its path as a person reads it, since reports name its files; it is looked at from here alone."""
    return source.model_copy(update={"path": shown(source.path)})


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
