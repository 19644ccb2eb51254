"""Fill in what a spec leaves open, so that a worker needs nothing but the result. Pure."""

from __future__ import annotations

import hashlib
import json

import yaml

from rankzero.spec.names import default_run_name
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.yaml_tree import escape, plain_value

_LINE_ENDS = ("\x85", "\u2028", "\u2029")  # YAML folds these where they stand unescaped
_LATER = ("dpo",)
"""Sections that an earlier version does not know, in a pod's image say: left out where they say nothing. So objects of
runs are also what they were, and a run that is under way is not another one."""
_NOT_THE_RUN = {"name", "output_dir", "output_url", "resume", "tracking"}


def resolve(spec: RunSpec) -> RunSpec:
    """The spec with its learning rate and name decided. Resolving twice changes nothing."""
    spec = _with_learning_rate(spec)
    if spec.name is not None:
        return spec
    method = "full" if spec.lora is None else "dora" if spec.lora.use_dora else "lora"
    if spec.task_section.trains == "preferences":
        method = f"{spec.task}-{method}"
    return spec.model_copy(update={"name": default_run_name(spec.model.name, method, spec_hash(spec))})


def _with_learning_rate(spec: RunSpec) -> RunSpec:
    if spec.train.learning_rate != "auto":
        return spec
    with_adapters, full = spec.task_section.rates
    rate = full if spec.lora is None else with_adapters
    return spec.model_copy(update={"train": spec.train.model_copy(update={"learning_rate": rate})})


def spec_hash(spec: RunSpec) -> str:
    """sha256 of everything that says what is trained: not the name, the place, or the trackers.

    Fields at their defaults are left out, so that a field which a later version adds does not rename old runs.
    """
    value = _with_learning_rate(spec).model_dump(mode="json", exclude=_NOT_THE_RUN, exclude_defaults=True)
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def to_yaml(spec: RunSpec) -> str:
    """The spec as a run.yaml that reads back to the same spec."""
    value = spec.model_dump(mode="json")
    for section in _LATER:
        if value[section] is None:
            del value[section]
    text = json.dumps(value, ensure_ascii=False)
    readable = not any(line_end in text for line_end in _LINE_ENDS)
    written: str = yaml.dump(_escaped(value), Dumper=_Dumper, sort_keys=False, allow_unicode=readable, width=1000)
    return written


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 takes for something else than text, as the library knows it, and what 1.2 does."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if plain_value(text) == text else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


def _escaped(value: object) -> object:
    """Every text such that it stands for nothing but itself. Keys stand for nothing else."""
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_escaped(inner) for inner in value]
    return escape(value) if isinstance(value, str) else value
