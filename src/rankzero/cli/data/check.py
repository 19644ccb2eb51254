"""`rankzero data check` and `rankzero data stats`: parse, call, print. Imports the data side inside the commands."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.api.installed import require_data
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
    what_is_wanted,
)
from rankzero.errors import DataError, Problem
from rankzero.wording import counted

if TYPE_CHECKING:
    from rankzero.api.data import DataCheck
    from rankzero.data.inspect.report import CheckReport, Tolerance
    from rankzero.data.inspect.serving import Comparison

_KEPT_FOR_JSON = 100_000
_READ_ALONE = "every row can be read; --model sees if training takes it"
_PAIRS_ALONE = "every row can be read as a pair; `data check` of a run.yaml with task: dpo sees if training takes it"


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
    from rankzero.api.data import look
    from rankzero.cli.own_file import require_page, require_quarantine
    from rankzero.cli.undoing import undone_where_stopped
    from rankzero.data.inspect.report import Tolerance
    from rankzero.run_dir.atomic import place_given_by

    tolerance = Tolerance.parse(max_bad)
    if html is not None:
        require_page(html, "--html")
    if quarantine is not None:
        require_quarantine(quarantine, "--quarantine")
    wanted = what_is_wanted(
        inputs, Flags(model, max_length, chat_template, all_tokens, row_format, columns, image_root, reasoning, header)
    )
    with undone_where_stopped() if quarantine else nullcontext(), place_given_by("--quarantine"):
        found = look(wanted, images=images, quarantine=quarantine, keep=_KEPT_FOR_JSON if as_json else None)
    report, comparison = found.report, found.serving
    if html is not None:
        _write_html(html, found)
    if as_json:
        facts = report.as_json() | {"serving": None if comparison is None else comparison.as_json()}
        _echo_json(facts | {"passed": report.passes(tolerance)})
    elif report.counts.rows:
        _echo_lines(report, comparison)
    _judge(report, tolerance, in_json=as_json)
    if report.ok and not as_json:
        alone = _PAIRS_ALONE if report.counts.preferences else _READ_ALONE
        seen = "training takes it as it is" if wanted.tokenizer else alone
        typer.echo(f"\nok: {seen}")


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
    from rankzero.api.data import look
    from rankzero.cli.own_file import require_page

    if html is not None:
        require_page(html, "--html")
    wanted = what_is_wanted(
        inputs, Flags(model, max_length, chat_template, all_tokens, row_format, columns, image_root, reasoning, header)
    )
    looked = look(wanted, images=images, compare=False)
    report = looked.report
    if report.damaged or not report.counts.readable:
        report.raise_if_bad()
    if html is not None:
        _write_html(html, looked)
    if as_json:
        found = report.as_json()
        _echo_json({name: value for name, value in found.items() if name not in ("ok", "problems", "quarantined")})
    else:
        _echo_lines(report, None)


def _judge(report: CheckReport, tolerance: Tolerance, *, in_json: bool) -> None:
    """Raise DataError where the data cannot be trained on; say so on stderr where it is only not quite clean."""
    counts = report.counts
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
        raise DataError(f"{counted(report.problem_count, 'problem')}; the JSON lists them")
    error = report.error()
    if str(tolerance) != "0" and not report.damaged and not tolerance.allows(counts.bad, counts.rows):
        raise DataError([Problem(f"{found}, more than --max-bad {tolerance}"), *error.problems])
    raise error


def _write_html(path: Path, found: DataCheck) -> None:
    from rankzero.data.inspect.quarantine import require_new
    from rankzero.run_dir.atomic import place_given_by, write_text

    require_new(path, found.report.files)
    with place_given_by("--html"):
        write_text(path, found.page())


def _echo_lines(report: CheckReport, comparison: Comparison | None) -> None:
    from rankzero.data.inspect.report_text import report_lines

    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    typer.echo("\n".join(report_lines(report, comparison, width)))


def _echo_json(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    typer.echo(text.encode("utf-8", "backslashreplace").decode())
