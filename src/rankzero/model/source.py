"""Where a model's files are: a local directory, the Hub's cache, a GGUF file or the Hub. Loads no weights.

Everything ends as a local directory in Hugging Face format whose files were checked, so that loading itself cannot
fail for a missing file, and says all that is missing at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.data.read.hashing import file_digest, remembered_digest
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.directories import is_file, is_folder
from rankzero.errors import ConfigError, Problem
from rankzero.machine import cache_root, usable_cores
from rankzero.model.files import existing_directory, pickles, tokenizer_problems, weight_problems
from rankzero.model.gguf import gguf_as_safetensors
from rankzero.model.hub import WEIGHTS, snapshot
from rankzero.model.own_code import modules_beside, modules_elsewhere
from rankzero.run_dir.atomic import storage_errors
from rankzero.run_dir.of_weights import TrainedOn
from rankzero.run_dir.unread import read_errors
from rankzero.spec.diff import differ
from rankzero.spec.run_spec import ModelSpec
from rankzero.spec.tasks import ModelUse

_log = logging.getLogger("rankzero.model")

_SAID_BYTES = 1 << 30
"""Hashing fewer takes a moment that needs no words."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Checked local directories of the weights and of the tokenizer, and the name to write into results."""

    weights: Path
    tokenizer: Path
    name: str


def weights_fingerprint(
    directory: Path,
    *,
    own_code: ModelUse | None = None,
    level: int = logging.INFO,
    stopped: Callable[[], bool] | None = None,
) -> str:
    """Tells two models apart by all of their bytes: the config, and name and sha256 of each file that is loaded; with
    `own_code` also of the modules of which a model for this use is made that brings its own.

    Large files are read once and remembered in the cache until their inode, size or times change; at `level` it is said
    where that takes a while. Raises StorageError, ConfigError where such a module is not here, and CancelledError once
    `stopped` says so.
    """
    digest = hashlib.sha256()
    with read_errors(directory):
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    files, cache = _weight_files(directory), cache_root()
    if own_code is not None:
        elsewhere, missing = modules_elsewhere(directory, own_code)
        if missing:
            raise ConfigError(missing)
        files += [*modules_beside(directory), *elsewhere]
    unread = sum(path.stat().st_size for path in files if remembered_digest(str(path), cache) is None)
    if unread > _SAID_BYTES:
        words = "[STEP] hash the weights, %.1f GB: once, then as long as they stay as they are"
        _log.log(level, words, unread / 1e9)
    made = "code:" if own_code and elsewhere else ""  # which earlier versions left out
    with storage_errors(directory), ThreadPoolExecutor(usable_cores()) as pool:
        for path, sha256 in zip(
            files, pool.map(lambda path: file_digest(str(path), cache, stopped), files), strict=True
        ):
            digest.update(f"{path.name}:{sha256}:".encode())
    return made + digest.hexdigest()


def is_trained_base(source: ModelSource, trained_on: TrainedOn | None) -> bool | None:
    """Whether the weights of a base are those that a run was trained on; None where nothing says which those were, or
    how they were known says nothing of these. Raises StorageError."""
    if trained_on is None:
        return None
    if trained_on.own_code is not None:  # it is in the fingerprint, and not here where the base is loaded without it
        elsewhere, missing = modules_elsewhere(source.weights, trained_on.own_code)
        if missing or not [*elsewhere, *modules_beside(source.weights)]:
            return None
    now = weights_fingerprint(source.weights, own_code=trained_on.own_code, level=logging.WARNING)
    apart = differ(trained_on.fingerprint, now)
    return None if apart is None else not apart


def another_base(source: ModelSource, trained_on: TrainedOn | None) -> Problem | None:
    """What is wrong where the weights of a base are known not to be those that a run was trained on. Raises
    StorageError."""
    if is_trained_base(source, trained_on) is not False:
        return None
    what = "these are not the weights that the run was trained on: what it learnt is about others"
    hint = "bring those back; of a Hub model that went on, by model.revision in run.yaml"
    return Problem(what, str(source.weights), hint)


def warn_of_another_base(source: ModelSource, trained_on: TrainedOn | None) -> None:
    """Say it, where somebody looks at what comes out of it, and nothing is kept. Raises StorageError."""
    if (problem := another_base(source, trained_on)) is not None:
        _say(problem)


def require_trained_base(spec: ModelSpec, trained_on: TrainedOn | None) -> None:
    """Raise ConfigError where the base, which nobody named, is another one than the run was trained on; and as `locate`
    does."""
    if trained_on is not None and (problem := another_base(locate(spec), trained_on)) is not None:
        raise _refused(problem)


def another_tokenizer(source: ModelSource, tokenizer: Any, trained: str | None) -> Problem | None:
    """What is wrong where a tokenizer, with its chat template, is known not to be the one that a checkpoint was trained
    with."""
    if trained is None or not differ(trained, take_apart(tokenizer, "label").fingerprint):
        return None
    what = "this is not the tokenizer, or not the chat template, that the checkpoint was trained with"
    hint = "bring that back, or say in run.yaml where it is now: model.tokenizer_dir, data.chat_template"
    return Problem(what, str(source.tokenizer), hint)


def warn_of_another_tokenizer(source: ModelSource, tokenizer: Any, trained: str | None) -> None:
    """Say it, as of another base."""
    if (problem := another_tokenizer(source, tokenizer, trained)) is not None:
        _say(problem)


def require_trained_tokenizer(source: ModelSource, tokenizer: Any, trained: str | None) -> None:
    """Raise ConfigError where it is another one, and nobody named the base."""
    if (problem := another_tokenizer(source, tokenizer, trained)) is not None:
        raise _refused(problem)


def _say(problem: Problem) -> None:
    _log.warning("[RESULT] %s: %s; %s", problem.where, problem.what, problem.hint)


def _refused(problem: Problem) -> ConfigError:
    way_out = "; or name the base (--model), which is then taken"
    return ConfigError(problem.what, where=problem.where, hint=problem.hint + way_out)


def _weight_files(directory: Path) -> list[Path]:
    """The files that are loaded: one, the shards of an index, or pickles where there is nothing else."""
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    with read_errors(directory):
        if is_file(whole):
            return [whole]
        if is_file(index):
            return [directory / shard for shard in sorted(_shards(index))]
        return pickles(directory)


def _shards(index: Path) -> set[str]:
    return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())


def _is_directory(path: Path) -> bool:
    with read_errors(path):
        return is_folder(path)


def locate(spec: ModelSpec, use: ModelUse | None = None) -> ModelSource:
    """Find, and where allowed download, the model's files, with the code of its own that runs where the model is made
    for a use; None: nobody makes it.

    Raises ConfigError (files missing), AccessError (gated or unauthorised), ServiceError (Hub unreachable),
    StorageError (files that cannot be read now).
    """
    named = Path(os.path.expanduser(spec.name))
    if spec.local_dir is not None:
        weights = existing_directory(spec.local_dir, "model.local_dir")
        name = spec.name
    elif spec.name.endswith(".gguf"):
        weights = gguf_as_safetensors(named)
        name = str(weights)
    elif _is_directory(named):
        weights = named
        name = os.path.realpath(weights)
    else:
        weights = snapshot(spec, WEIGHTS)
        name = spec.name
    tokenizer = weights
    if spec.tokenizer_dir is not None:
        tokenizer = existing_directory(spec.tokenizer_dir, "model.tokenizer_dir")
    problems = [*weight_problems(weights, trust_pickle=spec.trust_pickle), *tokenizer_problems(tokenizer)]
    if spec.trust_remote_code:
        problems += modules_elsewhere(weights, use)[1]
    if problems:
        raise ConfigError(problems)
    return ModelSource(weights=weights, tokenizer=tokenizer, name=name)
