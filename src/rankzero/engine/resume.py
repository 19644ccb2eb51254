"""Whether what is in a run directory may be continued by this spec, data and tokenizer. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from rankzero import __version__
from rankzero.engine.inputs import Inputs
from rankzero.errors import ConfigError, Problem, StorageError
from rankzero.model.source import weights_fingerprint
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.paths import RunDir
from rankzero.spec.diff import compare
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

_IDENTITIES = {
    "model": "the base model's weights",
    "tokenizer": "the tokenizer or its chat template",
    "data": "the training data (or what makes tokens of it: max_length, assistant_only_loss, reasoning, …)",
    "eval_data": "the evaluation data",
    "dtype": "the precision, which model.dtype: auto chose for this device",
}
"""What must not change besides the spec. The names are what --allow-change takes."""


def manifest_meta(spec: RunSpec, inputs: Inputs, environment: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of the run that made it."""
    return {
        "rankzero": __version__,
        "spec": spec.model_dump(mode="json"),
        "world_size": environment["world_size"],
        "model": weights_fingerprint(inputs.source.weights),
        "tokenizer": inputs.tokenizer_fingerprint,
        "data": inputs.train.fingerprint,
        "eval_data": None if inputs.eval is None else inputs.eval.fingerprint,
        "dtype": environment["dtype"],
        "labels": inputs.labels,
    }


def refuse_foreign_directory(run_dir: RunDir, spec: RunSpec, options: RunOptions) -> None:
    """Raise ConfigError early where the directory holds another run's checkpoints. Reads, writes nothing."""
    for step in run_dir.committed_steps():
        try:
            manifest = read_manifest(run_dir.checkpoint(step))
        except StorageError:
            continue  # spoken of when it is verified
        problems, _ = _spec_changes(manifest, spec, options.allow_changes)
        if problems:
            raise ConfigError(_with_way_out(problems, run_dir))
        return


def check_same_run(
    manifest: dict[str, Any], now: dict[str, Any], spec: RunSpec, run_dir: RunDir, allowed: Collection[str]
) -> list[str]:
    """Compare the checkpoint's run with this one field by field.

    Returns notices of allowed and harmless differences; raises ConfigError with every harmful one and the override
    that would accept it.
    """
    problems, notices = _spec_changes(manifest, spec, allowed)
    tokenizer_changed = manifest.get("tokenizer") != now["tokenizer"]
    for name, words in _IDENTITIES.items():
        if manifest.get(name) == now[name] or (tokenizer_changed and name in {"data", "eval_data"}):
            continue  # tokens follow from the tokenizer: one cause is enough
        if name in allowed:
            notices.append(f"{words} changed; accepted by --allow-change {name}")
        else:
            problems.append(
                Problem(f"{words} changed since the checkpoint", name, f"undo it, or pass --allow-change {name}")
            )
    if problems:
        raise ConfigError(_with_way_out(problems, run_dir))
    if manifest.get("world_size") != now["world_size"]:
        notices.append(f"{manifest.get('world_size')} processes before, {now['world_size']} now")
    return notices


def _spec_changes(manifest: dict[str, Any], spec: RunSpec, allowed: Collection[str]) -> tuple[list[Problem], list[str]]:
    problems, notices = [], []
    for change in compare(RunSpec.model_validate(manifest["spec"]), spec):
        words = f"{json.dumps(change.old)} in the checkpoint, {json.dumps(change.new)} now"
        if change.harmless or change.field in allowed:
            notices.append(f"{change.field}: {words}")
        else:
            hint = f"set it back, or pass --allow-change {change.field}"
            problems.append(Problem(words, change.field, hint))
    return problems, notices


def _with_way_out(problems: list[Problem], run_dir: RunDir) -> list[Problem]:
    head = Problem(
        "this directory holds checkpoints of another run",
        str(run_dir.root),
        "give this run another name (or --output); or undo the changes below; or accept them one by one",
    )
    return [head, *problems]
