"""`rankzero merge`: an adapter and its base as one plain model."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.spec.run_spec import RunSpec

ADAPTER_CONFIG = "adapter_config.json"


class BaseChoice(StrEnum):
    """Which weights of a base that was trained on in 4 or 8 bits; of others there is one kind."""

    TRAINED = "trained"
    FILES = "files"


def merge(
    adapter: Annotated[str, typer.Argument(metavar="RUN|ADAPTER", help="A run directory, or one with an adapter.")],
    output: Annotated[str, typer.Option("-o", "--output", help="Directory to write the model to; must not exist.")],
    base: Annotated[
        BaseChoice,
        typer.Option(
            "--base",
            help="Of a run with model.quantization: add to the weights as they were trained on (the losses that were "
            "measured hold for these), or to those in the base's files.",
        ),
    ] = BaseChoice.TRAINED,
    model: Annotated[
        str | None, typer.Option("--model", help="The base, where it is not where the adapter says.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as an object.")] = False,
) -> None:
    """Write a run's adapter and its base model as one plain model."""
    from rankzero.cli.installed import require_engine
    from rankzero.cli.output import warn_of_changes
    from rankzero.run_dir.result import verify_result

    directory, spec = adapter_of(Path(adapter), model)
    require_engine()
    warn_of_changes(verify_result(directory))
    from rankzero.model.load import quiet_libraries
    from rankzero.model.merge import merge as merge_model
    from rankzero.run_dir.atomic import place_given_by

    quiet_libraries()
    with place_given_by("-o"):
        done = merge_model(
            spec, directory, Path(output), base_weights=base.value, labels=labels_of(directory) or spec.data.labels
        )
    if as_json:
        value = {"directory": str(done.directory), "base": done.base, "dtype": done.dtype, "layers": done.layers}
        typer.echo(json.dumps(value, indent=2))
    else:
        typer.echo(f"{done.directory}: {done.base} with {done.layers} adapted layers, {done.dtype}")


def adapter_of(path: Path, model: str | None) -> tuple[Path, RunSpec]:
    """The directory with the adapter, and what it was trained on: a run says it all, an adapter alone its base's name.

    Raises ConfigError where there is no adapter.
    """
    from rankzero.run_dir.result import require_target
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.tasks import task_that

    require_target(str(path))
    if (path / "run.yaml").is_file():
        path = path / "final"
    if not (path / ADAPTER_CONFIG).is_file():
        run = path.parent / "run.yaml"
        if path.name == "final" and (path / "config.json").is_file() and run.is_file():
            raise ConfigError("this run trained the whole model: final/ needs no merging", where=str(path))
        hint = "name a run directory that has a result, or a directory with an adapter"
        raise ConfigError(f"there is no adapter: {ADAPTER_CONFIG} is missing", where=str(path), hint=hint)
    changed: dict[str, Any] = {} if model is None else {"name": model, "local_dir": None, "tokenizer_dir": None}
    for parent in path.resolve().parents[:3]:  # <run>/final, <run>/checkpoints/step-<n>/model
        if (parent / "run.yaml").is_file():
            loaded = load_run_spec(parent / "run.yaml", env={})
            spec = absolute(loaded.spec, loaded.base)
            return path, spec.model_copy(update={"model": spec.model.model_copy(update=changed)})
    settings = json.loads((path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    name = model or settings.get("base_model_name_or_path")
    if not name:
        raise ConfigError("the adapter does not name its base", where=str(path / ADAPTER_CONFIG), hint="give --model")
    task = task_that(uses="classifies" if settings.get("task_type") == "SEQ_CLS" else "writes")
    return path, RunSpec.model_validate({"task": task, "model": {"name": name}, "data": {"train": "none"}})


def labels_of(directory: Path) -> tuple[str, ...] | None:
    """The classes that a run's result was trained on; None where nothing says them."""
    for place in (directory, directory.parent):
        manifest = place / "manifest.json"
        if manifest.is_file():
            labels = json.loads(manifest.read_text(encoding="utf-8")).get("labels")
            return None if labels is None else tuple(labels)
    return None
