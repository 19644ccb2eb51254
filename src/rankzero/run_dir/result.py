"""What commands that use a model are given: a run, an adapter, or a model. Reads JSON and YAML; loads no weights."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rankzero.errors import ConfigError
from rankzero.run_dir.atomic import MANIFEST
from rankzero.run_dir.intact import WEIGHTS, verify_result
from rankzero.run_dir.named import require_here, require_target
from rankzero.run_dir.of_weights import (
    TrainedOn,
    about,
    dtype_of,
    gguf_of,
    labels_of,
    max_length_of,
    stop_ids_of,
    taught_ends_of,
    template_kwargs_of,
    tokenizer_of,
    trained_on_of,
    words,
)
from rankzero.run_dir.paths import LINKS, RunDir, has_tokenizer
from rankzero.run_dir.places import as_from_here, at_place, require_base
from rankzero.spec.names import PLAIN_NOTE, PLAIN_TEMPLATE

if TYPE_CHECKING:
    from rankzero.spec.run_spec import ModelSpec, RunSpec
    from rankzero.spec.tasks import ModelUse

FINAL = "final"
ADAPTER_CONFIG = "adapter_config.json"
_NAME_BASE = f"give --model, or write base_model_name_or_path into {ADAPTER_CONFIG}"


@dataclass(frozen=True, slots=True)
class Result:
    """A model as it is used: how it is loaded, what is put on top of it, and how texts and images become its tokens."""

    model: ModelSpec
    max_length: int
    """Longest text of a classifier, in tokens."""
    adapter: Path | None = None
    labels: tuple[str, ...] | None = None
    """Of a classifier's adapter: the classes by number."""
    changed: tuple[str, ...] = ()
    """Files of a run's result, none with weights, that are not as the run wrote them."""
    chat_template: str | None = None
    """As data.chat_template; None: the tokenizer's."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    image_max_tokens: int | None = None
    """Most tokens that one image becomes; None: as the model's processor has it."""
    own_tokenizer: bool = False
    """Whether the tokenizer was saved with the weights, with the chat template that they were trained with."""
    trained_on: TrainedOn | None = None
    """What the weights of `model` were, where it is a base, when the run was trained; None: nothing says it."""
    base_is_given: bool = False
    """Whether somebody named the base, wherever the run was trained."""
    stop_ids: tuple[int, ...] = ()
    """Of a checkpoint, and of a base: the tokens that answers of what was trained end with, so that both stop at the
    same; () where nothing says them. A result has them in its generation config."""
    tokenizer: str | None = None
    """Of a checkpoint, which has none of its own: by content, the tokenizer and chat template that it was trained with;
    None: nothing says it, or they are those of its run's result."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a run made tokens of texts and images: of a checkpoint, which has no tokenizer of its own."""

    chat_template: str | None
    """As data.chat_template; None: the tokenizer's."""
    image_max_tokens: int | None
    chat_template_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A directory with an adapter, the base that it belongs to, and of a classifier the classes by number."""

    directory: Path
    base: ModelSpec
    labels: tuple[str, ...] | None
    run: Path | None = None
    """The run directory that it lies in."""
    rendering: Rendering | None = None
    """Of a run's checkpoint."""
    trained_on: TrainedOn | None = None
    """What the weights of its base were; None: nothing says it."""
    base_is_given: bool = False
    """Whether somebody named the base, wherever the adapter was trained."""
    stop_ids: tuple[int, ...] = ()
    """As `Result.stop_ids`."""
    max_length: int | None = None
    """Longest text of a classifier, in tokens; None: nothing says it."""
    dtype: str | None = None
    """The precision that the run computed in, and packed its base from; None: nothing says it."""
    tokenizer: str | None = None
    """As `Result.tokenizer`."""


def as_it_was(spec: RunSpec) -> Result:
    """The model of a run before training."""
    data = spec.data
    return Result(
        spec.model,
        data.max_length,
        chat_template=data.chat_template,
        chat_template_kwargs=data.chat_template_kwargs,
        image_max_tokens=data.image_max_tokens,
    )


def find_result(target: str, use: ModelUse, *, base: bool = False, model: str | None = None) -> Result:
    """What `target` stands for: a run directory or the final/ in it, the adapter of one of its checkpoints, another
    adapter's directory, or any model, by directory or Hub id. `base`: the model of the run, or of an adapter, as it
    was before training.
    `model`: another place to take that from, of the result where it is an adapter.

    Reads the whole result, to see that it is what the run wrote. Raises ConfigError where a run has no result yet, or
    a model with another use, where there is no such run, or its base is not here any more; StorageError where its
    weights are damaged.
    """
    target = os.path.expanduser(target)
    directory = Path(target)
    if (run := run_at(directory)) is not None:
        found = _of_run(run, use, base=base)
        return _with_base(found, model, target) if base or found.adapter is not None else found
    if (directory / ADAPTER_CONFIG).is_file():
        run = _run_of(directory)
        if base:
            found = _base_alone(directory, model) if run is None else as_it_was(_spec_for(run, directory, use))
            found = replace(found, trained_on=trained_on_of(directory), stop_ids=taught_ends_of(directory))
        else:
            found = _of_adapter(directory, model) if run is None else _of_checkpoint(directory, run, use)
        return _with_base(found, model, target)
    require_target(target)
    if base:
        what, hint = "nothing says what it was before training", "name a run or an adapter, or leave the base out"
        raise ConfigError(what, where=target, hint=hint)
    if _is_checkpoint(directory) and _run_of(directory) is not None:
        hint = f"`rankzero export {shlex.quote(target)} -o DIR` makes a model of it"
        raise ConfigError("these are a checkpoint's weights, without their tokenizer", where=target, hint=hint)
    whole = _untrained({"name": str(directory.absolute()) if directory.is_dir() else target}, directory)
    return replace(whole, chat_template_kwargs=template_kwargs_of(directory))


def _with_base(found: Result, base: str | None, target: str) -> Result:
    """The same with its base taken from another place, where one is named. Raises ConfigError where none is, and the
    base is not here, or its tokenizer."""
    if base is None:
        require_base(found.model, target, None if found.adapter is None else gguf_of(found.adapter))
        return found
    return replace(found, model=at_place(found.model, base, target), base_is_given=True)


def find_adapter(path: Path, base: str | None = None) -> Adapter:
    """The adapter of a run directory, of the final/ in it or of a checkpoint, or one alone. A run says all about its
    base, an adapter alone its name; `base` is another place to take it from. Reads no weights.

    Raises ConfigError where there is no adapter, or none that names its base.
    """
    from rankzero.spec.run_spec import ModelSpec

    require_here(path)
    if (path / "run.yaml").is_file():
        if not (path / FINAL).is_dir():
            raise _no_result(path)
        path = path / FINAL
    if not (path / ADAPTER_CONFIG).is_file():
        run = path.parent / "run.yaml"
        if path.name == FINAL and (path / "config.json").is_file() and run.is_file():
            raise ConfigError("this run trained the whole model: final/ needs no merging", where=str(path))
        hint = "name a run directory that has a result, or a directory with an adapter"
        raise ConfigError(f"there is no adapter: {ADAPTER_CONFIG} is missing", where=str(path), hint=hint)
    of_run = _run_of(path)
    if of_run is None:
        model = ModelSpec.model_validate(_base_of(path, base))
        if base is None:
            require_base(model, str(path), gguf_of(path))
        return Adapter(
            path,
            model,
            labels_of(path),
            trained_on=trained_on_of(path),
            base_is_given=base is not None,
            stop_ids=stop_ids_of(path),
            max_length=max_length_of(path),
            dtype=dtype_of(path),
        )
    spec = _spec_for(of_run, path)
    model, labels = spec.model, labels_of(path) or spec.data.labels
    if base is None:
        require_base(model, str(path), gguf_of(path))
    else:
        model = at_place(model, base, str(path))
    rendering, tokenizer = None, None
    if _is_checkpoint(path):
        rendering, tokenizer = _rendering(of_run, spec), _tokenizer(path, of_run, spec)
    return Adapter(
        path,
        model,
        labels,
        of_run,
        rendering,
        trained_on_of(path),
        base is not None,
        stop_ids_of(path),
        spec.data.max_length,
        dtype_of(path),
        tokenizer,
    )


def find_weights(path: Path, base: str | None = None) -> tuple[Path, Adapter | None]:
    """The directory with the weights of a run's result, or of any model here, and what it is an adapter of, where it
    is one. Raises ConfigError where there are none."""
    place = find_files(path)
    return place, find_adapter(place, base) if (place / ADAPTER_CONFIG).is_file() else None


def checkpoint_of_whole(weights: Path, base: str | None) -> tuple[RunSpec, Result] | None:
    """Of a full fine-tune's checkpoint, as its weights lie there: the run's spec, and the base with these weights as
    `adapter`. None of anything else. `base`: another place to take that from. Raises as `find_adapter` does."""
    run = None if (weights / ADAPTER_CONFIG).is_file() or not _is_checkpoint(weights) else _run_of(weights)
    if run is None or (spec := _spec_for(run, weights)).lora is not None:
        return None
    return spec, _with_base(_of_checkpoint(weights, run, spec.task_section.uses), base, str(weights))


def find_files(path: Path) -> Path:
    """The directory with the files of a run's result, or of any model or adapter here. Raises ConfigError where there
    are none."""
    require_here(path)
    place = path / FINAL if (path / "run.yaml").is_file() else path
    if (place / ADAPTER_CONFIG).is_file() or (place / "config.json").is_file():
        return place
    if place != path:
        raise _no_result(path)
    hint = "name a run directory, or a directory with a model or an adapter"
    raise ConfigError("there is no model here: config.json is missing", where=str(path), hint=hint)


def _no_result(run: Path) -> ConfigError:
    hint = "give its `rankzero train` command again; it continues from the newest checkpoint"
    return ConfigError("this run has no result yet: final/ is missing", where=str(run), hint=hint)


def run_at(directory: Path) -> Path | None:
    """The run directory that this is, or whose final/ it is; None where it is neither."""
    if (directory / "run.yaml").is_file():
        return directory
    return None if _is_checkpoint(directory) else _run_of(directory)


def _run_of(weights: Path) -> Path | None:
    """The run that wrote <run>/final or <run>/checkpoints/step-<n>/model; None of any other directory, and of a copy
    beside the run.yaml of something else."""
    for place in (weights, Path(os.path.realpath(weights))):
        saved = place if place.name == FINAL else place.parent
        run = _run_around(place)
        if run is not None and (run / "run.yaml").is_file() and _is_of(run, saved, place):
            return run
    return None


def _run_around(weights: Path) -> Path | None:
    """Where a run would be that has its weights here: in final/, in a checkpoint, or in best/ or last/ of a copy that
    followed the links."""
    if weights.name == FINAL:
        return weights.parent
    if weights.name == WEIGHTS and weights.parent.name in LINKS:
        return weights.parent.parent
    run = weights.parent.parent.parent
    return run if weights.name == WEIGHTS and RunDir(run).is_checkpoint(weights.parent) else None


def _is_of(run: Path, saved: Path, weights: Path) -> bool:
    """Whether what was saved is of the run that run.yaml describes. In a run directory it is: names and places of a run
    may change. Beside some spec, as copies are, by the manifest, else by the adapter's own words."""
    if RunDir(run).environment.is_file():
        return True
    try:
        spec = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
        name, model = spec.get("name"), spec["model"]["name"]
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError):
        return True  # read again where it is used, which says what is wrong with it
    by = words(saved / MANIFEST).get("spec")
    if isinstance(by, dict) and isinstance(by.get("model"), dict):
        return (by.get("name"), by["model"].get("name")) == (name, model)
    base = words(weights / ADAPTER_CONFIG).get("base_model_name_or_path")
    return base in (None, model, os.path.realpath(run / model)) or model.endswith(".gguf")  # whose files are elsewhere


def _is_checkpoint(weights: Path) -> bool:
    return os.path.basename(os.path.realpath(weights)) == WEIGHTS


def _of_checkpoint(weights: Path, run: Path, use: ModelUse) -> Result:
    """As the run's result would be, had it ended there."""
    spec = _spec_for(run, weights, use)
    return replace(
        as_it_was(spec),
        adapter=weights,
        labels=labels_of(weights) or spec.data.labels,
        changed=verify_result(weights),
        chat_template=_rendering(run, spec).chat_template,
        trained_on=trained_on_of(weights),
        stop_ids=stop_ids_of(weights),
        tokenizer=_tokenizer(weights, run, spec),
    )


def _rendering(run: Path, spec: RunSpec) -> Rendering:
    template = spec.data.chat_template
    try:
        parts = json.loads((run / "data.json").read_text(encoding="utf-8")).values()
    except (OSError, ValueError):  # of a run that somebody has copied in part
        parts = ()
    if template is None and any(PLAIN_NOTE in part.get("notes", ()) for part in parts):
        template = PLAIN_TEMPLATE
    return Rendering(template, spec.data.image_max_tokens, spec.data.chat_template_kwargs)


def _tokenizer(weights: Path, run: Path, spec: RunSpec) -> str | None:
    """As `Result.tokenizer`. What was saved with a result is not compared by what a library reads from it."""
    said, final = tokenizer_of(weights), run / FINAL
    of_result = spec.model.tokenizer_dir == str(final) and tokenizer_of(final) == said
    return None if of_result else said


def _spec_for(run: Path, weights: Path, use: ModelUse | None = None) -> RunSpec:
    """A run's spec as these weights of it are used. Raises ConfigError where they have another use than `use`."""
    from rankzero.run_dir.as_trained import as_trained

    spec = as_trained(_given(run), about(weights), run)
    task = spec.task_section
    if use not in (None, task.uses):
        raise ConfigError(f"this run {task.result}", where=str(run), hint=f"use `{task.command.format(run=run)}`")
    return spec


def _of_run(run: Path, use: ModelUse, *, base: bool) -> Result:
    final = run / FINAL
    spec = _spec_for(run, final, use)
    if base:
        return replace(as_it_was(spec), trained_on=trained_on_of(final), stop_ids=taught_ends_of(final))
    if not final.is_dir():
        raise _no_result(run)
    weights = {"tokenizer_dir": str(final)} if spec.lora else {"local_dir": str(final), "tokenizer_dir": None}
    return replace(
        as_it_was(spec),
        model=spec.model.model_copy(update=weights),
        adapter=final if spec.lora else None,
        labels=labels_of(final) or spec.data.labels,
        changed=verify_result(final),
        chat_template=None,  # the tokenizer of the result carries the one that was trained with
        own_tokenizer=True,
        trained_on=trained_on_of(final) if spec.lora else None,
    )


def spec_of(run: Path) -> RunSpec:
    """What a run was given, with its paths as they are from here."""
    return as_from_here(_given(run), run)


def _given(run: Path) -> RunSpec:
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.local_paths import absolute

    loaded = load_run_spec(run / "run.yaml", env={})
    return absolute(loaded.spec, loaded.base)


def _base_alone(adapter: Path, base: str | None) -> Result:
    """What an adapter was trained on, with the tokenizer and template that it came with."""
    found = _untrained(_base_of(adapter, base), adapter)
    return replace(found, chat_template_kwargs=template_kwargs_of(adapter))


def _of_adapter(directory: Path, base: str | None) -> Result:
    own = has_tokenizer(directory)
    named = _base_of(directory, base)
    result = _untrained({**named, "tokenizer_dir": str(directory) if own else None}, directory)
    return replace(
        result,
        adapter=directory,
        labels=labels_of(directory),
        chat_template_kwargs=template_kwargs_of(directory),
        own_tokenizer=own,
        trained_on=trained_on_of(directory),
        stop_ids=stop_ids_of(directory),
    )


def _base_of(adapter: Path, base: str | None) -> dict[str, Any]:
    """Name and revision of the model that an adapter says it belongs to, as a spec has them; of `base` the name, where
    one is named. Raises ConfigError where nothing says it."""
    if base is not None:
        return {"name": os.path.expanduser(base)}
    file = adapter / ADAPTER_CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        again = "it may be cut off: copy the adapter again"
        raise ConfigError(f"it cannot be read: {error}", where=str(file), hint=again) from error
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not name:
        what = "the adapter does not say which model it belongs to"
        raise ConfigError(what, where=str(file), hint=_NAME_BASE)
    return {"name": str(name), "revision": config.get("revision") or None}


def _untrained(model: dict[str, Any], directory: Path) -> Result:
    """A model that no run here has trained, with what a spec says where the model's directory says nothing."""
    from rankzero.spec.run_spec import DataSpec, ModelSpec

    longest = max_length_of(directory) or DataSpec.model_fields["max_length"].default
    return Result(ModelSpec.model_validate(model), longest)
