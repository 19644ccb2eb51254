"""Whether what is in a run directory may be continued by this spec, data and tokenizer. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from rankzero import __version__
from rankzero.engine.inputs import Inputs
from rankzero.errors import ConfigError, Problem
from rankzero.model.source import weights_fingerprint
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import newest_manifest
from rankzero.spec.diff import compare, name_beside
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec

_IDENTITIES = {
    "model": "the base model's weights",
    "tokenizer": "the tokenizer or its chat template",
    "data": "the training data (or max_length, over_length, assistant_only_loss)",
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
        **_identities(inputs),
        "dtype": environment["dtype"],
        "labels": inputs.labels,
    }


def _identities(inputs: Inputs) -> dict[str, Any]:
    return {
        "model": weights_fingerprint(inputs.source.weights),
        "tokenizer": inputs.tokenizer_fingerprint,
        "data": inputs.train.fingerprint,
        "eval_data": None if inputs.eval is None else inputs.eval.fingerprint,
    }


def refuse_foreign_directory(run_dir: RunDir, spec: RunSpec, options: RunOptions) -> None:
    """Raise ConfigError early where the directory holds another run's checkpoints. Reads, writes nothing."""
    manifest = newest_manifest(run_dir)
    problems = [] if manifest is None else _spec_changes(manifest, spec, options.allow_changes)[0]
    if problems:
        raise ConfigError(_with_way_out(problems, run_dir, spec))


def refuse_before_gpus(run_dir: RunDir, spec: RunSpec, inputs: Inputs, options: RunOptions) -> None:
    """As check_same_run, as far as it can be known without the devices that will train. Reads, writes nothing."""
    manifest = newest_manifest(run_dir)
    if manifest is not None:
        check_same_run(manifest, {**manifest, **_identities(inputs)}, spec, run_dir, options.allow_changes)


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
        if name in allowed or spec.resume == "continue":
            by = f"--allow-change {name}" if name in allowed else "resume: continue"
            notices.append(f"{words} changed; accepted by {by}")
        else:
            problems.append(
                Problem(f"{words} changed since the checkpoint", name, f"undo it, or pass --allow-change {name}")
            )
    if problems:
        raise ConfigError(_with_way_out(problems, run_dir, spec))
    if manifest.get("world_size") != now["world_size"]:
        notices.append(f"{manifest.get('world_size')} processes before, {now['world_size']} now")
    return notices


def _spec_changes(manifest: dict[str, Any], spec: RunSpec, allowed: Collection[str]) -> tuple[list[Problem], list[str]]:
    problems, notices = [], []
    for change in compare(RunSpec.model_validate(manifest["spec"]), spec):
        words = f"{json.dumps(change.old)} in the checkpoint, {json.dumps(change.new)} now"
        if change.harmless or change.field in allowed or spec.resume == "continue":
            notices.append(f"{change.field}: {words}")
        else:
            hint = f"set it back, or pass --allow-change {change.field}"
            problems.append(Problem(words, change.field, hint))
    return problems, notices


def _with_way_out(problems: list[Problem], run_dir: RunDir, spec: RunSpec) -> list[Problem]:
    head = Problem(
        "this directory holds checkpoints of another run",
        str(run_dir.root),
        f"give this run another name, such as name={name_beside(spec)} (resume=new does that by itself); or undo the "
        "changes below; or accept them one by one, or all with resume=continue",
    )
    return [head, *problems]
