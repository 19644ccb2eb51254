"""What weights of a run are used with: a run that went on may have other settings than those that it saved before.
Loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.places import as_from_here, with_own_tokenizer
from rankzero.run_dir.setting import spec_of_manifest
from rankzero.spec.names import PLAIN_TEMPLATE
from rankzero.spec.run_spec import RunSpec


def as_trained(spec: RunSpec, manifest: Mapping[str, Any], root: Path) -> RunSpec:
    """`spec`, which run.yaml has with absolute paths, as these weights are used: with what decides how they are loaded
    and how texts become tokens as their own manifest says it.

    Places are those of run.yaml, which says where things are now; and so is what is asked of this machine: precision,
    and what is trusted. So is all where there is no manifest, or one in which these have other names or kinds.
    """
    now, said = _from_here(spec, root), spec_of_manifest(manifest) or _in_part(spec, manifest)
    if said is None:
        return now
    model = {name: getattr(said.model, name) for name in _USED["model"]}
    data = {name: getattr(said.data, name) for name in _USED["data"]}
    data["chat_template"] = _template(now, said, root)
    return now.model_copy(
        update={"model": now.model.model_copy(update=model), "data": now.data.model_copy(update=data)}
    )


_USED = {
    "model": ("quantization",),
    "data": ("max_length", "image_max_tokens", "chat_template", "chat_template_kwargs"),
}


def _in_part(spec: RunSpec, manifest: Mapping[str, Any]) -> RunSpec | None:
    """`spec` with what is used here as the spec of a version with other fields says it; None where it says nothing of
    it that this version reads."""
    said, mixed = manifest.get("spec"), spec.model_dump(mode="json")
    if not isinstance(said, Mapping):
        return None
    for section, names in _USED.items():
        there = said.get(section)
        if not isinstance(there, Mapping):
            return None
        mixed[section] |= {name: there[name] for name in names if name in there}
    return spec_of_manifest({"spec": mixed})


def _template(now: RunSpec, said: RunSpec, root: Path) -> str | None:
    if not _is_place(said.data.chat_template):
        return said.data.chat_template
    return (now if _is_place(now.data.chat_template) else _from_here(said, root)).data.chat_template


def _is_place(template: str | None) -> bool:
    return template not in (None, PLAIN_TEMPLATE)


def _from_here(spec: RunSpec, root: Path) -> RunSpec:
    """With a tokenizer and a chat template that are gone as the result has them; what lies now as they lay may be
    others."""
    return as_from_here(with_own_tokenizer(spec, RunDir(root).final), root)
