"""`rankzero data convert`: parse, call, print. Imports the data side inside the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankzero.api.installed import require_data
from rankzero.cli.data.inputs import ColumnsOption, FormatOption, HeaderOption, column_map
from rankzero.wording import named_keys

if TYPE_CHECKING:
    from rankzero.data.convert.convert import Conversion


def convert(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Data as in data.train: files, patterns, Hub ids.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="One file, of the kind its name says.")
    ],
    shape: Annotated[
        str, typer.Option("--as", metavar="SHAPE", help="messages, openai, sharegpt, alpaca, prompt_completion, …")
    ] = "messages",
    container: Annotated[
        Literal["jsonl", "csv", "tsv", "parquet"] | None,
        typer.Option("--to", help="Kind of file; absent: what the name says."),
    ] = None,
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    header: HeaderOption = None,
    quarantine: Annotated[
        Path | None,
        typer.Option("--quarantine", metavar="FILE", help="Set rows aside that cannot be converted; else an error."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of a sample (#500 at the end of a path), as train.seed.")] = 42,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write data as one file of another kind or row shape. Every row is accounted for."""
    require_data()
    from rankzero.cli.undoing import undone_where_stopped
    from rankzero.data.convert.convert import SampledFiles
    from rankzero.data.convert.convert import convert as convert_rows
    from rankzero.data.progress import show_progress
    from rankzero.data.read.locate import expand, input_bytes
    from rankzero.run_dir.atomic import is_own_output, place_given_by
    from rankzero.spec.run_spec import SourceSpec

    names = column_map(columns)
    shape_in = {"format": row_format, "columns": names, "header": "auto" if header is None else header}
    given = [SourceSpec.model_validate({"path": path, **shape_in}) for path in inputs]
    located = expand(given)
    sampled = SampledFiles(located, seed)
    beside_rows = is_own_output(output)
    flag = "-o" if quarantine is None else "-o or --quarantine"
    shown = show_progress("converting", input_bytes(located))
    with undone_where_stopped(), shown as advance, place_given_by(flag):
        done = convert_rows(
            sampled.files,
            output,
            shape,
            container=container,
            quarantine=quarantine,
            overwrite=force,
            read=sampled.read,
            progress=advance,
        )
    if as_json:
        told = json.dumps(done.as_json() | {"output": str(output)}, ensure_ascii=False, indent=2)
    else:
        told = "\n".join(_summary(done, output, quarantine))
    typer.echo(told, err=beside_rows)


def _summary(done: Conversion, output: Path, quarantine: Path | None) -> list[str]:
    lines = [f"{done.rows_in:,} rows in, {done.rows_out:,} written to {output}"]
    why = ", ".join(f"{count:,} × {reason}" for reason, count in done.log.reasons.most_common())
    parts = [
        ("messages became part of a tree", done.merged),
        (f"rows set aside in {quarantine}: {why}", done.quarantined),
        *((f"rows left out: {name.replace('_', ' ')}", count) for name, count in done.dropped.most_common()),
        ("rows more, since one row became several", done.added),
        *((f"rows: {rule}", count) for rule, count in done.rules.most_common()),
    ]
    lines += [f"  {count:,} {what}" for what, count in parts if count]
    if done.ignored_keys:
        lines.append(f"  keys that are not read, and so not written: {', '.join(named_keys(done.ignored_keys))}")
    if done.image_root:
        lines.append(f"in run.yaml: data.train: [{{path: {output}, image_root: {done.image_root}}}]")
    return lines
