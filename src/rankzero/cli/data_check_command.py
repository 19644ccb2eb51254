"""`rankzero data check` and `rankzero data stats`: parse, call, print. Imports the data side inside the commands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankzero.cli.tokenizer_option import TokenizerPlace, load_tokenizer, require, served_prompt, stop_tokens
from rankzero.errors import DataError, Problem, UsageError

if TYPE_CHECKING:
    from rankzero.data.chat import TokenRules
    from rankzero.data.check_report import CheckReport, Tolerance
    from rankzero.data.serving import Comparison
    from rankzero.spec.run_spec import SourceSpec

FormatOption = Annotated[
    Literal[
        "auto",
        "messages",
        "prompt_completion",
        "text",
        "alpaca",
        "sharegpt",
        "query_response",
        "openorca",
        "oasst",
        "preference",
        "classification",
    ],
    typer.Option("--format", help="Row shape; auto decides row by row."),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="OURS=THEIRS", help="As data.train[].columns: prompt=question. Repeatable."),
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
ImagesOption = Annotated[bool, typer.Option("--images", help="Decode every image.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")]

_KEPT_FOR_JSON = 100_000
_SAMPLES = 200


def check(
    inputs: Inputs,
    model: ModelOption = None,
    max_length: MaxLengthOption = None,
    chat_template: TemplateOption = None,
    all_tokens: AllTokensOption = False,
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    images: ImagesOption = False,
    max_bad: Annotated[
        str, typer.Option("--max-bad", metavar="N|N%", help="Pass with a warning while no more rows are bad.")
    ] = "0",
    quarantine: Annotated[
        Path | None,
        typer.Option("--quarantine", metavar="FILE", help="Write bad rows here, and why to FILE.reasons.jsonl."),
    ] = None,
    html: HtmlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every problem.")] = False,
) -> None:
    """Look at every row as training would read it. Exit status 65 when the data cannot be trained on."""
    require("orjson")
    from rankzero.data.check_report import Tolerance

    tolerance = Tolerance.parse(max_bad)
    wanted = _wanted(inputs, row_format, columns, _Rules(model, max_length, chat_template, all_tokens))
    report, comparison = _look(wanted, images=images, quarantine=quarantine, keep_all=as_json)
    if html is not None:
        _write_html(html, report, comparison)
    if as_json:
        found = report.as_json() | {"serving": None if comparison is None else comparison.as_json()}
        _echo_json(found | {"passed": report.passes(tolerance) and not _untrainable(report)})
    elif report.counts.rows:
        _echo_lines(report, comparison)
    _judge(report, tolerance, in_json=as_json)


def stats(
    inputs: Inputs,
    model: ModelOption = None,
    max_length: MaxLengthOption = None,
    chat_template: TemplateOption = None,
    all_tokens: AllTokensOption = False,
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    images: ImagesOption = False,
    html: HtmlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count what is in the data: rows, turns, lengths, tokens, duplicates. Bad rows are counted, and no error."""
    require("orjson")
    wanted = _wanted(inputs, row_format, columns, _Rules(model, max_length, chat_template, all_tokens))
    report, _ = _look(wanted, images=images, compare=False)
    if report.damaged or not report.counts.readable:
        report.raise_if_bad()
    if html is not None:
        _write_html(html, report, None)
    if as_json:
        found = report.as_json()
        _echo_json({name: value for name, value in found.items() if name not in ("ok", "problems", "quarantined")})
    else:
        _echo_lines(report, None)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The flags that a run spec has values for."""

    model: str | None
    max_length: int | None
    chat_template: Path | None
    all_tokens: bool


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be looked at, whether flags or a run spec say so."""

    train: Sequence[SourceSpec]
    eval: Sequence[SourceSpec] = ()
    tokenizer: TokenizerPlace | None = None
    chat_template: Path | None = None
    rules: TokenRules | None = None
    seed: int = field(default=0)


def _wanted(inputs: list[str], row_format: str, columns: list[str] | None, rules: _Rules) -> _Wanted:
    specs = [name for name in inputs if name.endswith((".yaml", ".yml"))]
    if not specs:
        return _from_flags(inputs, row_format, columns, rules)
    given = [
        flag
        for flag, value in (
            ("--model", rules.model),
            ("--max-length", rules.max_length),
            ("--chat-template", rules.chat_template),
            ("--all-tokens", rules.all_tokens or None),
            ("--columns", columns),
            ("--format", None if row_format == "auto" else row_format),
        )
        if value is not None
    ]
    if given:
        hint = "write key=value: model.name=…, data.max_length=…"
        raise UsageError(f"{specs[0]} says that already: {', '.join(given)}", where="command line", hint=hint)
    return _from_spec(inputs)


def _from_flags(inputs: list[str], row_format: str, columns: list[str] | None, rules: _Rules) -> _Wanted:
    from rankzero.data.chat import TokenRules
    from rankzero.spec.run_spec import SourceSpec

    if rules.model is None and (rules.max_length or rules.chat_template or rules.all_tokens):
        hint = "--model says whose tokens and whose template"
        raise UsageError("there is nothing to count tokens with", where="command line", hint=hint)
    names = column_map(columns)
    sources = [SourceSpec.model_validate({"path": path, "format": row_format, "columns": names}) for path in inputs]
    place = None if rules.model is None else TokenizerPlace(rules.model)
    kept = TokenRules(max_length=rules.max_length or 2048, assistant_only_loss=not rules.all_tokens)
    return _Wanted(sources, (), place, rules.chat_template, kept)


def _from_spec(inputs: list[str]) -> _Wanted:
    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.cli.train_command import read_spec
    from rankzero.data.training_data import parts_of, token_rules

    spec = read_spec(inputs, SeedFlags(), world_size=1)
    parts = parts_of(spec.data)
    template = None if spec.data.chat_template is None else Path(spec.data.chat_template)
    place = TokenizerPlace.of(spec.model)
    return _Wanted(parts["train"], parts.get("eval", ()), place, template, token_rules(spec.data), spec.train.seed)


def column_map(texts: Sequence[str] | None) -> dict[str, str]:
    """`prompt=question` as names. Raises UsageError."""
    names: dict[str, str] = {}
    for text in texts or ():
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            hint = "write our name and the data's: --columns prompt=question"
            raise UsageError(f"{text!r} names no column", where="--columns", hint=hint)
        names[ours] = theirs
    return names


def _look(
    wanted: _Wanted,
    *,
    images: bool = False,
    quarantine: Path | None = None,
    keep_all: bool = False,
    compare: bool = True,
) -> tuple[CheckReport, Comparison | None]:
    from rankzero.data.problems import KEPT
    from rankzero.data.progress import show_progress
    from rankzero.data.validate import CheckOptions
    from rankzero.data.validate import check as check_rows

    tokens, tokenizer = None, None
    if wanted.tokenizer is not None and wanted.rules is not None:
        require("numpy", "tokenizers", "transformers")
        from rankzero.data.token_counts import Tokens
        from rankzero.data.tokenizer import take_apart

        tokenizer = load_tokenizer(wanted.tokenizer, wanted.chat_template)
        tokens = Tokens(take_apart(tokenizer), wanted.rules)
    options = CheckOptions(
        tokens=tokens,
        images=images,
        quarantine=quarantine,
        seed=wanted.seed,
        samples=_SAMPLES if tokens and compare else 0,
        keep=_KEPT_FOR_JSON if keep_all else KEPT,
    )
    show = partial(show_progress, "checking")
    report = check_rows(wanted.train, options, evaluation=wanted.eval, show=show)
    if tokens is None or not compare or wanted.tokenizer is None:
        return report, None
    from rankzero.data.serving import compare as compare_rows

    serve = partial(served_prompt, tokenizer)
    stops = stop_tokens(tokenizer, wanted.tokenizer)
    return report, compare_rows(report.samples, tokens.parts, tokens.rules, serve, stops)


def _untrainable(report: CheckReport) -> Problem | None:
    """Why nothing can be trained although rows can be read."""
    counts = report.counts
    if counts.rows and not counts.readable and not counts.bad:
        reasons = ", ".join(f"{rows:,} by {name.replace('_', ' ')}" for name, rows in counts.dropped.most_common())
        return Problem(f"no row is left: all are left out ({reasons})")
    if counts.tokens is not None and counts.tokens.examples and not counts.tokens.kept:
        reasons = ", ".join(f"{rows:,} × {name}" for name, rows in counts.tokens.dropped.most_common())
        return Problem(f"no example has a trained token: all are dropped ({reasons})", hint="raise the length limit")
    return None


def _judge(report: CheckReport, tolerance: Tolerance, *, in_json: bool) -> None:
    """Raise DataError where the data cannot be trained on; say so on stderr where it is only not quite clean."""
    counts = report.counts
    if problem := _untrainable(report):
        raise DataError(problem)
    if report.ok:
        return
    found = f"{_count(counts.bad, 'bad row')} of {counts.rows:,}"
    if report.passes(tolerance):
        typer.echo(
            f"warning: {found}, within --max-bad {tolerance}; training itself stops at a bad row\n"
            "  hint: `rankzero data convert … --quarantine bad.jsonl -o good.jsonl` leaves them out",
            err=True,
        )
        return
    if in_json:
        raise DataError(f"{_count(report.log.total, 'problem')}; the JSON lists them")
    error = report.log.error()
    if str(tolerance) != "0" and not report.damaged:
        raise DataError([Problem(f"{found}, more than --max-bad {tolerance}"), *error.problems])
    raise error


def _write_html(path: Path, report: CheckReport, comparison: Comparison | None) -> None:
    from rankzero.data.quarantine import require_new
    from rankzero.data.report_html import report_html
    from rankzero.run_dir.atomic import write_text

    require_new(path, report.files)
    names = ", ".join(Path(name).name for name in report.files[:3]) + (" …" if len(report.files) > 3 else "")
    write_text(path, report_html(report, comparison, f"Data check: {names}"))


def _echo_lines(report: CheckReport, comparison: Comparison | None) -> None:
    from rankzero.data.report_text import report_lines

    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    typer.echo("\n".join(report_lines(report, comparison, width)))


def _echo_json(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    typer.echo(text.encode("utf-8", "backslashreplace").decode())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
