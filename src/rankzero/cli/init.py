"""`rankzero init`: files to start from, a commented run.yaml or a whole recipe. Knows which recipes there are."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from rankzero.cli.completion import profile_names
from rankzero.errors import UsageError

RUN_FILE = "run.yaml"
CLUSTER_FILE = "cluster.yaml"
INFRA_FILE = "infra.yaml"

RECIPES = {
    "quickstart": "docker",
    "lora-jsonl": "shared-fs-4x1",
    "llama-pytorchjob": "pytorchjob-2x1",
    "qwen3-8b-alpaca-2gpu": "rook-ceph-1x2",
    "dpo": "rook-ceph-1x2",
    "qwen3-vl-32b-fire-4gpu": "rook-ceph-1x4",
    "qwen3-vl-32b-volcano-4gpu": "rook-ceph-1x4",
    "distilbert-sst2": "nebius-2x1",
    "qwen3-30b-qlora-2x8": "infiniband-2x8",
    "qwen3-30b-full-2x8": "infiniband-2x8",
}
"""Each recipe, and the cluster profile that becomes its cluster.yaml; so each profile is written down once."""


def init(
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="PATH", help="File to write; with --recipe a directory.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="Write run.yaml and cluster.yaml of this recipe.",
            autocompletion=lambda incomplete: [name for name in RECIPES if name.startswith(incomplete)],
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="PROFILE",
            help="The profile that becomes cluster.yaml; without --recipe the only file.",
            autocompletion=profile_names,
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the JSON schemas beside them too, and name these for editors.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is listed or written as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented run.yaml, or a recipe's files, to start from."""
    if show:
        if recipe is not None or output is not None or cluster is not None or schema:
            raise UsageError("--list writes nothing", hint="give --recipe NAME without --list to write its files")
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        typer.echo(listing(as_json=as_json, columns=columns))
        return
    if recipe is not None:
        _refuse_a_file(output or ".")
        wanted = _of_recipe(recipe, Path(output or "."), cluster)
    else:
        file = RUN_FILE if cluster is None else CLUSTER_FILE
        wanted = {_path(output, file): _default() if cluster is None else profile_text(cluster)}
    if schema:
        wanted = with_schemas(wanted, RUN_FILE if cluster is None else CLUSTER_FILE)
    from rankzero.run_dir.atomic import place_given_by

    with place_given_by("-o"):
        write_all(wanted, force=force)
    written = [str(path) for path in wanted]
    if as_json:
        typer.echo(json.dumps({"recipe": recipe, "files": written}, indent=2))
        return
    lines = [f"wrote {path}" for path in written]
    typer.echo("\n".join([*lines, _next(recipe, cluster, written[0])]))


def listing(*, as_json: bool, columns: int | None = None) -> str:
    """The recipes, a line each; on a terminal of so many columns, more where they need them."""
    found = [{"name": name, "cluster": profile, "summary": summary(name)} for name, profile in RECIPES.items()]
    if as_json:
        return json.dumps(found, indent=2)
    width = max(map(len, RECIPES))
    lines = [f"{entry['name']:{width}}  {entry['summary']}" for entry in found]
    if columns is None or columns < 2 * width:
        return "\n".join(lines)
    return "\n".join(_filled(line, columns, width + 2) for line in lines)


def _filled(line: str, columns: int, indent: int) -> str:
    return textwrap.fill(line, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def summary(recipe: str) -> str:
    """What a recipe is: the first line of its run.yaml."""
    return (_folder(recipe) / RUN_FILE).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def recipe_files(recipe: str, cluster: str | None = None) -> dict[str, str]:
    """Names and texts of a recipe's files: run.yaml, cluster.yaml (of another profile where one is named), then what
    else it brings."""
    more = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(_folder(recipe).iterdir(), key=lambda entry: entry.name)
        if entry.is_file() and entry.name != RUN_FILE
    }
    run = (_folder(recipe) / RUN_FILE).read_text(encoding="utf-8")
    return {RUN_FILE: run, CLUSTER_FILE: profile_text(cluster or RECIPES[recipe]), **more}


def profile_text(name: str) -> str:
    """A cluster profile as it is shipped. Raises UsageError."""
    from rankzero.spec.cluster_load import profiles

    known = profiles()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise UsageError("there is no such profile", where=f"--cluster {name}", hint=hint)
    return (files("rankzero") / "recipes" / "clusters" / f"{name}.yaml").read_text(encoding="utf-8")


def write_all(wanted: Mapping[Path, str], *, force: bool) -> None:
    """Write all of the files, or none: every byte is on the disk before the first gets its name.

    Raises UsageError where one exists already (`force` replaces it), and StorageError.
    """
    from rankzero.run_dir.atomic import flush_to_disk, whole_file

    for path in wanted:
        if path.is_dir():
            raise UsageError("a directory has this name", where=str(path), hint="choose another place with -o")
    there = [str(path) for path in wanted if os.path.lexists(path)]
    if there and not force:
        what = "the file exists already" if len(there) == 1 else "the files exist already"
        raise UsageError(what, where=", ".join(there), hint="choose another place with -o, or pass --force")
    with ExitStack() as open_files:
        for path, text in wanted.items():
            file = open_files.enter_context(whole_file(path))
            file.write(text.encode("utf-8"))
            flush_to_disk(file)


def _path(output: str | None, file: str) -> Path:
    path = Path(output or file)
    return path / file if path.is_dir() or _is_named_directory(output) else path


def _is_named_directory(output: str | None) -> bool:
    """Whether it ends as only a directory's name does."""
    return output is not None and output.endswith("/")


def _refuse_a_file(output: str) -> None:
    """Raise UsageError where one file is meant for a recipe."""
    directory = Path(output)
    if directory.suffix in (".yaml", ".yml") and not directory.is_dir() and not _is_named_directory(output):
        hint = f"with --recipe it is a directory: -o {directory.with_suffix('')}"
        raise UsageError("a recipe is more than one file", where=f"-o {directory}", hint=hint)


def _default() -> str:
    return (files("rankzero") / "recipes" / "default" / RUN_FILE).read_text(encoding="utf-8")


def _of_recipe(name: str, directory: Path, cluster: str | None) -> dict[Path, str]:
    if name not in RECIPES:
        close = [known for known in RECIPES if name and name in known] or difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(RECIPES)}"
        raise UsageError("there is no such recipe", where=f"--recipe {name}", hint=hint)
    return {directory / file: text for file, text in recipe_files(name, cluster).items()}


def with_schemas(wanted: Mapping[Path, str], alone: str) -> dict[Path, str]:
    """The files with a line by which editors find the schema of each spec, and these schemas beside them: a path that
    holds wherever the directory is copied to. `alone`: what a file is that is written alone, whatever it is called."""
    found: dict[Path, str] = {}
    for path, text in wanted.items():
        file = alone if len(wanted) == 1 else path.name
        if file not in (RUN_FILE, CLUSTER_FILE, INFRA_FILE):
            found[path] = text
            continue
        name = f"{file.removesuffix('.yaml')}.schema.json"
        head, body = _opening_comment(text)
        found[path] = f"{head}# yaml-language-server: $schema={name}\n{body}"
        found[path.with_name(name)] = (files("rankzero") / "spec" / name).read_text(encoding="utf-8")
    return found


def _opening_comment(text: str) -> tuple[str, str]:
    """The comment that a file begins with, and the rest."""
    lines = text.splitlines(keepends=True)
    count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:count]), "".join(lines[count:])


def _folder(recipe: str) -> Traversable:
    return files("rankzero") / "recipes" / recipe


def _next(recipe: str | None, cluster: str | None, first: str) -> str:
    if recipe is None and cluster is None:
        return f"next: set model.name and data.train in it, then: rankzero train {shlex.quote(first)}"
    if recipe is None:
        return f"next: make it yours, then: rankzero plan {RUN_FILE} --cluster {shlex.quote(first)}"
    directory = str(Path(first).parent)
    go = "" if directory == "." else f"cd {shlex.quote(directory)}; "
    return f"next: {go}the first lines of {RUN_FILE} say how it is run, {CLUSTER_FILE} wants your image and storage"
