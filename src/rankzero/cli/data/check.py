"""`rankzero data check` and `rankzero data stats`: parse, call, print. Imports the data side inside the commands."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.cli.data.inputs import (
    AllTokensOption,
    ColumnsOption,
    Flags,
    FormatOption,
    HeaderOption,
    HtmlOption,
    ImageRootOption,
    ImagesOption,
    Inputs,
    MaxLengthOption,
    ModelOption,
    ReasoningOption,
    TemplateOption,
    Wanted,
    what_is_wanted,
)
from rankzero.cli.data.tokenizer_option import (
    load_context,
    load_image_rules,
    load_tokenizer,
    served_prompt,
    stop_tokens,
)
from rankzero.cli.installed import require_data
from rankzero.errors import DataError, Problem
from rankzero.wording import counted

if TYPE_CHECKING:
    from rankzero.data.inspect.report import CheckReport, Tolerance
    from rankzero.data.inspect.serving import Comparison

_KEPT_FOR_JSON = 100_000
_SAMPLES = 200


def check(
    inputs: Inputs,
    model: ModelOption = None,
    max_length: MaxLengthOption = None,
    chat_template: TemplateOption = None,
    all_tokens: AllTokensOption = False,
    reasoning: ReasoningOption = "keep",
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    images: ImagesOption = False,
    image_root: ImageRootOption = None,
    header: HeaderOption = None,
    max_bad: Annotated[
        str, typer.Option("--max-bad", metavar="N|N%", help="Pass with a warning while no more rows are bad.")
    ] = "0",
    quarantine: Annotated[
        Path | None,
        typer.Option("--quarantine", metavar="FILE", help="Write bad rows here as they stand, and why beside it."),
    ] = None,
    html: HtmlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every problem.")] = False,
) -> None:
    """Look at every row as training would read it. Exit status 65 when the data cannot be trained on."""
    require_data()
    from rankzero.data.inspect.report import Tolerance

    tolerance = Tolerance.parse(max_bad)
    wanted = what_is_wanted(
        inputs, Flags(model, max_length, chat_template, all_tokens, row_format, columns, image_root, reasoning, header)
    )
    report, comparison = _look(wanted, images=images, quarantine=quarantine, keep_all=as_json)
    if html is not None:
        _write_html(html, report, comparison)
    untrainable = _untrainable(report) or _too_long(report, wanted)
    if as_json:
        found = report.as_json() | {"serving": None if comparison is None else comparison.as_json()}
        _echo_json(found | {"passed": report.passes(tolerance) and not untrainable})
    elif report.counts.rows:
        _echo_lines(report, comparison)
    _judge(report, tolerance, untrainable, in_json=as_json)


def stats(
    inputs: Inputs,
    model: ModelOption = None,
    max_length: MaxLengthOption = None,
    chat_template: TemplateOption = None,
    all_tokens: AllTokensOption = False,
    reasoning: ReasoningOption = "keep",
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    images: ImagesOption = False,
    image_root: ImageRootOption = None,
    header: HeaderOption = None,
    html: HtmlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count rows, turns, lengths, tokens and duplicates. Bad rows are counted, and no error."""
    require_data()
    wanted = what_is_wanted(
        inputs, Flags(model, max_length, chat_template, all_tokens, row_format, columns, image_root, reasoning, header)
    )
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


def _look(
    wanted: Wanted,
    *,
    images: bool = False,
    quarantine: Path | None = None,
    keep_all: bool = False,
    compare: bool = True,
) -> tuple[CheckReport, Comparison | None]:
    from rankzero.data.inspect.validate import CheckOptions
    from rankzero.data.inspect.validate import check as check_rows
    from rankzero.data.progress import show_progress
    from rankzero.data.rows.problems import KEPT
    from rankzero.run_dir.atomic import place_given_by

    tokens, tokenizer = None, None
    if wanted.tokenizer is not None and wanted.rules is not None:
        from rankzero.data.inspect.token_counts import Tokens
        from rankzero.data.tokens.tokenizer import take_apart

        tokenizer = load_tokenizer(wanted.tokenizer, wanted.chat_template)
        rules = wanted.rules
        if rules.trains == "answers":
            vision = load_image_rules(wanted.tokenizer, tokenizer, wanted.chat_template, wanted.image_max_tokens)
            rules = replace(rules, vision=vision)
        tokens = Tokens(take_apart(tokenizer, rules.trains), rules)
    options = CheckOptions(
        tokens=tokens,
        images=images,
        quarantine=quarantine,
        seed=wanted.seed,
        samples=_SAMPLES if tokens and compare else 0,
        keep=_KEPT_FOR_JSON if keep_all else KEPT,
    )
    show = partial(show_progress, "checking")
    with place_given_by("--quarantine"):
        report = check_rows(wanted.train, options, evaluation=wanted.eval, show=show)
    if tokens is None or not compare or wanted.tokenizer is None:
        return report, None
    from rankzero.data.inspect.serving import compare as compare_rows

    serve = partial(served_prompt, tokenizer, kwargs=tokens.rules.template_kwargs)
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


def _too_long(report: CheckReport, wanted: Wanted) -> Problem | None:
    """Rows beyond the model's context, which training refuses."""
    tokens, rules = report.counts.tokens, wanted.rules
    if tokens is None or rules is None or wanted.tokenizer is None:
        return None
    context = load_context(wanted.tokenizer)
    if context is None or context.extended or rules.max_length <= context.length:
        return None
    from rankzero.model.context import beyond_context

    longest = {length: count for length, count in tokens.lengths.items() if length > context.length}
    if rules.over_length == "drop":
        longest = {length: count for length, count in longest.items() if length <= rules.max_length}
    if not longest:
        return None
    where = ", ".join(source.path for source in (*wanted.train, *wanted.eval))
    kept = min(max(longest), rules.max_length)
    return beyond_context(context, sum(longest.values()), tokens.examples, kept, where)


def _judge(report: CheckReport, tolerance: Tolerance, untrainable: Problem | None, *, in_json: bool) -> None:
    """Raise DataError where the data cannot be trained on; say so on stderr where it is only not quite clean."""
    counts = report.counts
    if untrainable is not None:
        raise DataError(untrainable)
    if report.ok:
        return
    found = f"{counted(counts.bad, 'bad row')} of {counts.rows:,}"
    if report.passes(tolerance):
        typer.echo(
            f"warning: {found}, within --max-bad {tolerance}; training itself stops at a bad row\n"
            "  hint: `rankzero data convert … --quarantine bad.jsonl -o good.jsonl` leaves them out",
            err=True,
        )
        return
    if in_json:
        raise DataError(f"{counted(report.log.total, 'problem')}; the JSON lists them")
    error = report.log.error()
    if str(tolerance) != "0" and not report.damaged:
        raise DataError([Problem(f"{found}, more than --max-bad {tolerance}"), *error.problems])
    raise error


def _write_html(path: Path, report: CheckReport, comparison: Comparison | None) -> None:
    from rankzero.data.inspect.quarantine import require_new
    from rankzero.data.inspect.report_html import report_html
    from rankzero.run_dir.atomic import place_given_by, write_text

    require_new(path, report.files)
    names = ", ".join(Path(name).name for name in report.files[:3]) + (" …" if len(report.files) > 3 else "")
    with place_given_by("--html"):
        write_text(path, report_html(report, comparison, f"Data check: {names}"))


def _echo_lines(report: CheckReport, comparison: Comparison | None) -> None:
    from rankzero.data.inspect.report_text import report_lines

    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    typer.echo("\n".join(report_lines(report, comparison, width)))


def _echo_json(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    typer.echo(text.encode("utf-8", "backslashreplace").decode())
