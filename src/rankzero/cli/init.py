"""`rankzero init`: files to start from, a commented run.yaml or a whole recipe. Knows which recipes there are."""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from rankzero.errors import UsageError

RUN_FILE = "run.yaml"
CLUSTER_FILE = "cluster.yaml"
INFRA_FILE = "infra.yaml"
_SCHEMA = "{}.schema.json"

RECIPES = {
    "quickstart": "docker",
    "lora-jsonl": "shared-fs-4x1",
    "llama-pytorchjob": "pytorchjob-2x1",
    "qwen3-8b-alpaca-2gpu": "rook-ceph-1x2",
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
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the JSON schemas beside them too, and name these for editors.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is listed or written as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented run.yaml, or a recipe's files, to start from."""
    if show:
        if recipe is not None or output is not None or schema:
            raise UsageError("--list writes nothing", hint="give --recipe NAME without --list to write its files")
        typer.echo(listing(as_json=as_json))
        return
    wanted = _default(output) if recipe is None else _of_recipe(recipe, Path(output or "."))
    if schema:
        wanted = with_schemas(wanted)
    from rankzero.run_dir.atomic import place_given_by

    with place_given_by("-o"):
        write_all(wanted, force=force)
    written = [str(path) for path in wanted]
    if as_json:
        typer.echo(json.dumps({"recipe": recipe, "files": written}, indent=2))
        return
    lines = [f"wrote {path}" for path in written]
    typer.echo("\n".join([*lines, _next(recipe, written[0])]))


def listing(*, as_json: bool) -> str:
    """The recipes, a line each."""
    found = [{"name": name, "cluster": profile, "summary": summary(name)} for name, profile in RECIPES.items()]
    if as_json:
        return json.dumps(found, indent=2)
    width = max(map(len, RECIPES))
    return "\n".join(f"{entry['name']:{width}}  {entry['summary']}" for entry in found)


def summary(recipe: str) -> str:
    """What a recipe is: the first line of its run.yaml."""
    return (_folder(recipe) / RUN_FILE).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def recipe_files(recipe: str) -> dict[str, str]:
    """Names and texts of a recipe's files: run.yaml, cluster.yaml, then what else it brings."""
    profile = files("rankzero") / "recipes" / "clusters" / f"{RECIPES[recipe]}.yaml"
    more = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(_folder(recipe).iterdir(), key=lambda entry: entry.name)
        if entry.is_file() and entry.name != RUN_FILE
    }
    run = (_folder(recipe) / RUN_FILE).read_text(encoding="utf-8")
    return {RUN_FILE: run, CLUSTER_FILE: profile.read_text(encoding="utf-8"), **more}


def write_all(wanted: Mapping[Path, str], *, force: bool) -> None:
    """Write all of the files, or none: every byte is on the disk before the first gets its name.

    Raises UsageError where one exists already (`force` replaces it), and StorageError.
    """
    from rankzero.run_dir.atomic import whole_file

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
            file.flush()
            os.fsync(file.fileno())


def _default(output: str | None) -> dict[Path, str]:
    path = Path(output or RUN_FILE)
    if path.is_dir():
        path = path / RUN_FILE
    return {path: (files("rankzero") / "recipes" / "default" / RUN_FILE).read_text(encoding="utf-8")}


def _of_recipe(name: str, directory: Path) -> dict[Path, str]:
    if name not in RECIPES:
        close = [known for known in RECIPES if name and name in known] or difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(RECIPES)}"
        raise UsageError("there is no such recipe", where=f"--recipe {name}", hint=hint)
    if directory.suffix in (".yaml", ".yml") and not directory.is_dir():
        hint = f"with --recipe it is a directory: -o {directory.with_suffix('')}"
        raise UsageError("a recipe is more than one file", where=f"-o {directory}", hint=hint)
    return {directory / file: text for file, text in recipe_files(name).items()}


def with_schemas(wanted: Mapping[Path, str]) -> dict[Path, str]:
    """The files with a line by which editors find the schema of each spec, and these schemas beside them: a path that
    holds wherever the directory is copied to."""
    found: dict[Path, str] = {}
    for path, text in wanted.items():
        name = schema_of(path, wanted)
        if name is None:
            found[path] = text
            continue
        head, body = _opening_comment(text)
        found[path] = f"{head}# yaml-language-server: $schema={name}\n{body}"
        found[path.with_name(name)] = (files("rankzero") / "spec" / name).read_text(encoding="utf-8")
    return found


def schema_of(path: Path, wanted: Mapping[Path, str]) -> str | None:
    """The name of a spec's schema; None of what is no spec. A file that is written alone is a run's."""
    if len(wanted) == 1:
        return _SCHEMA.format("run")
    return _SCHEMA.format(path.stem) if path.name in (RUN_FILE, CLUSTER_FILE, INFRA_FILE) else None


def _opening_comment(text: str) -> tuple[str, str]:
    """The comment that a file begins with, and the rest."""
    lines = text.splitlines(keepends=True)
    count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:count]), "".join(lines[count:])


def _folder(recipe: str) -> Traversable:
    return files("rankzero") / "recipes" / recipe


def _next(recipe: str | None, run: str) -> str:
    if recipe is None:
        return f"next: set model.name and data.train in it, then: rankzero train {shlex.quote(run)}"
    directory = str(Path(run).parent)
    go = "" if directory == "." else f"cd {shlex.quote(directory)}; "
    return f"next: {go}the first lines of {RUN_FILE} say how it is run, {CLUSTER_FILE} wants your image and storage"
