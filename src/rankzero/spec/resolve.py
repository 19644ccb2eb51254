"""Fill in what a spec leaves open, so that a worker needs nothing but the result. Pure."""

from __future__ import annotations

import hashlib
import json

import yaml

from rankzero.spec.names import default_run_name
from rankzero.spec.run_spec import RunSpec

ADAPTER_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
_LINE_ENDS = ("\x85", "\u2028", "\u2029")  # YAML folds these where they stand unescaped
_NOT_THE_RUN = {"name", "output_dir", "output_url", "resume", "tracking"}


def resolve(spec: RunSpec) -> RunSpec:
    """The spec with its learning rate and name decided. Resolving twice changes nothing."""
    spec = _with_learning_rate(spec)
    if spec.name is not None:
        return spec
    method = "full" if spec.lora is None else "dora" if spec.lora.use_dora else "lora"
    return spec.model_copy(update={"name": default_run_name(spec.model.name, method, spec_hash(spec))})


def _with_learning_rate(spec: RunSpec) -> RunSpec:
    if spec.train.learning_rate != "auto":
        return spec
    rate = FULL_LEARNING_RATE if spec.lora is None else ADAPTER_LEARNING_RATE
    return spec.model_copy(update={"train": spec.train.model_copy(update={"learning_rate": rate})})


def spec_hash(spec: RunSpec) -> str:
    """sha256 of everything that says what is trained: not the name, the place, or the trackers.

    Fields at their defaults are left out, so that a field which a later version adds does not rename old runs.
    """
    value = _with_learning_rate(spec).model_dump(mode="json", exclude=_NOT_THE_RUN, exclude_defaults=True)
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def to_yaml(spec: RunSpec) -> str:
    """The spec as a run.yaml that reads back to the same spec."""
    text = json.dumps(spec.model_dump(mode="json"), ensure_ascii=False).replace("${", "$${")
    readable = not any(line_end in text for line_end in _LINE_ENDS)
    return yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=readable, width=1000)
