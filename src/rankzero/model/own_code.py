"""The modules that a model is made of where it brings its own code: beside its weights, or in other repositories, which
its config names. Runs none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankzero.errors import Problem
from rankzero.model.files import read_config
from rankzero.spec.tasks import ModelUse


def modules_beside(directory: Path) -> list[Path]:
    """Those that lie beside the weights."""
    return sorted(directory.glob("*.py"))


def modules_elsewhere(directory: Path, use: ModelUse | None) -> tuple[list[Path], list[Problem]]:
    """Those of other repositories, as they lie in the Hub's cache, from which they are run, with what they import
    beside them; and what to say of those that are not there. Of the model's classes only that for this use is run,
    without one its config alone."""
    from transformers.dynamic_module_utils import get_relative_imports

    found: dict[tuple[str, str], Path] = {}
    missing = []
    wanted = sorted(set(_named_elsewhere(directory, use)))
    while wanted:
        repo, name = wanted.pop(0)
        file = _where(repo, name)
        if file is None:
            what = f"the model's code is {name} of {repo}, which is not in the local cache"
            hint = f"run once: hf download {repo} --include '*.py'"
            missing.append(Problem(what, str(directory / "config.json"), hint))
            continue
        found[repo, name] = file
        beside = [(repo, f"{module}.py") for module in get_relative_imports(file)]
        wanted += [one for one in beside if one not in found and one not in wanted]
    return [found[known] for known in sorted(found)], missing


def _where(repo: str, name: str) -> Path | None:
    """A module of a repository, or of a directory; None where it is not here."""
    from huggingface_hub import errors, try_to_load_from_cache

    if Path(repo).is_dir():
        file = Path(repo, name)
        return file if file.is_file() else None
    try:
        known = try_to_load_from_cache(repo, name)
    except errors.HFValidationError:
        return None
    return Path(known) if isinstance(known, str) else None


def _named_elsewhere(directory: Path, use: ModelUse | None) -> Iterator[tuple[str, str]]:
    """Repository and module of each class of `auto_map` that is run, and of another one: `owner/name--module.Class`."""
    config = read_config(directory)
    named = config.get("auto_map")
    if not isinstance(named, dict):
        return
    for kind in ("AutoConfig", *_model_class(config, named, use)):
        reference = named.get(kind)
        if isinstance(reference, str) and "--" in reference:
            repo, _, module = reference.partition("--")
            yield repo, f"{module.rpartition('.')[0]}.py"


def _model_class(config: Mapping[str, Any], named: Mapping[str, Any], use: ModelUse | None) -> list[str]:
    """By which of transformers' auto classes the model is loaded, as `kind_of` chooses it once the config is loaded."""
    if use is None:
        return []
    if use == "classifies":
        return ["AutoModelForSequenceClassification"]
    sees = config.get("vision_config") is not None and "AutoModelForImageTextToText" in named
    return ["AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"]
