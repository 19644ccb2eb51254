"""How two specs differ, field by field, and whether a run may go on across the difference. Pure."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rankzero.errors import Problem
from rankzero.spec.fields import all_fields
from rankzero.spec.renames import RENAMES
from rankzero.spec.run_spec import DpoSpec, RunSpec
from rankzero.spec.unknown_keys import guess

IDENTITIES = {
    "model": "the base model's weights",
    "tokenizer": "the tokenizer or its chat template",
    "data": "the training data (or what makes tokens of it: max_length, assistant_only_loss, reasoning, …)",
    "eval_data": "the evaluation data",
    "dtype": "the precision, which model.dtype: auto chose for this device",
}
"""What must not change besides the spec. The names are what --allow-change takes."""


def differ(there: object, here: object) -> bool | None:
    """Whether two values of an identity are of two things. None: they do not say, since one is as an earlier version
    made it, without what stands before a colon now and says how it is made."""
    if there == here or there is None or here is None:
        return there != here
    return True if (":" in str(there)) == (":" in str(here)) else None


LENGTH = frozenset({"train.num_train_epochs", "train.max_steps"})
"""Fields that say how long a run is, and nothing of what it was so far."""

_HARMLESS = (
    # sections and fields that do not change the maths of the steps to come
    *("name", "output_dir", "output_url", "resume", "tracking", "checkpoint"),
    *("eval.every", "eval.on_start", "eval.early_stopping_patience", "eval.prompts", "eval.max_new_tokens"),
    *("train.micro_batch_tokens", "train.gradient_checkpointing", "train.max_nonfinite_steps"),
    "train.collective_timeout_seconds",
    *("train.padding_free", "train.torch_compile", "train.activation_offloading"),
    *("train.sharding", "train.context_parallel", "train.expert_parallel", "train.offload", "train.deepspeed"),
    *("model.local_files_only", "data.streaming_cache_gb"),
)
PLACES = {
    "model": ("model.name", "model.local_dir", "model.revision"),
    "tokenizer": ("model.tokenizer_dir", "data.chat_template"),
    "data": ("data.train",),
    "eval_data": ("data.eval",),
}
"""Where data, model and template are, by the identity that what stands there has: as harmless, since it is compared by
content where that is known."""

_FIXED = frozenset(
    {
        *("task", "data.labels", "lora.r", "lora.target_modules", "lora.use_dora"),
        *("lora.modules_to_save", "lora.trainable_token_indices"),
        *("train.parts", "train.optimizer", "train.master_weights"),
    }
)
"""Fields that decide which weights there are, or what the optimizer keeps for each: what is saved would not fit."""


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    field: str
    old: Any
    new: Any
    harmless: bool

    @property
    def fixed(self) -> bool:
        """Nothing can accept it in a run that has a checkpoint."""
        return self.field in _FIXED

    @property
    def another_setting(self) -> bool:
        """Whether another thing is trained, on other data or otherwise, as far as the spec alone says."""
        return not self.harmless or identity_at(self.field) is not None


def compare(old: RunSpec, new: RunSpec) -> list[Change]:
    """All fields that differ, in the order of the spec."""
    before, after = (dict(_leaves(spec, spec.model_dump(mode="json"))) for spec in map(_said, (old, new)))
    fields = [*before, *(field for field in after if field not in before)]
    unused = _unused(old) & _unused(new) | set(old.task_section.unread) & set(new.task_section.unread)
    return [
        Change(field, before.get(field), after.get(field), field in unused or _is_harmless(field))
        for field in fields
        if before.get(field) != after.get(field)
    ]


def _said(spec: RunSpec) -> RunSpec:
    """With the section that may be absent and takes its defaults then."""
    if spec.task_section.trains != "preferences":
        return spec
    return spec.model_copy(update={"dpo": spec.dpo or DpoSpec()})


def identity_at(field: str) -> str | None:
    """The identity that what stands at this place has; None of a field that is no place of one."""
    return next((identity for identity, fields in PLACES.items() if _is_one_of(field, fields)), None)


def is_allowed(identity: str, allowed: Collection[str]) -> bool:
    """Whether --allow-change names an identity, or a place of what has it: `data` or `data.train`."""
    return identity in allowed or any(identity_at(field) == identity for field in allowed)


def other_places(identity: str, old: RunSpec, new: RunSpec) -> list[Change]:
    """Where the places of this identity differ."""
    return [change for change in compare(old, new) if identity_at(change.field) == identity]


def perhaps_the_same(change: Change) -> bool:
    """Whether two places may be of the same files, on two machines: of the same name, where one is a path; a copy of a
    model, or of its tokenizer, that only one of them names."""
    if change.field in ("model.local_dir", "model.tokenizer_dir") and None in (change.old, change.new):
        return True
    return _perhaps_the_same(change.old, change.new)


def _perhaps_the_same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        names = [posixpath.basename(place.rstrip("/")) for place in (one, other)]
        return one == other or (names[0] == names[1] and (one.startswith("/") or other.startswith("/")))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_perhaps_the_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_perhaps_the_same, one, other))
    return bool(one == other)


def not_allowable(names: Iterable[str]) -> list[Problem]:
    """A problem for each of these --allow-change values that names nothing which could differ."""
    fields = [field for field in all_fields(RunSpec) if "[]" not in field]
    problems = []
    for name in names:
        inside = [field for field in fields if field.startswith(f"{name}.")]
        if name in fields and not inside or name in IDENTITIES:
            continue
        if "." not in name and inside:
            hint = f"name its fields one by one, such as {inside[0]}"
            problems.append(Problem(f"{name} is a section", "--allow-change", hint))
        elif name not in fields:
            hint = guess(RunSpec, tuple(name.split(".")[:2]), RENAMES).hint
            problems.append(Problem(f"{name} is nothing that a checkpoint is compared by", "--allow-change", hint))
    return problems


def _leaves(section: BaseModel, values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of `values`, which are those of the section or some of them, by their dotted names."""
    for key, value in values.items():
        inner = getattr(section, key)
        if isinstance(inner, BaseModel) and value:
            yield from _leaves(inner, value, f"{prefix}{key}.")
        else:  # also a section of which nothing is in `values`, which is not one that is left out
            yield f"{prefix}{key}", value


def _unused(spec: RunSpec) -> set[str]:
    """Fields that another one makes say nothing."""
    fields = set() if spec.train.max_steps is None else {"train.num_train_epochs"}
    return fields if spec.data.streaming else fields | {"data.shuffle_buffer_size"}


def _is_harmless(field: str) -> bool:
    return _is_one_of(field, _HARMLESS) or identity_at(field) is not None


def _is_one_of(field: str, known: tuple[str, ...]) -> bool:
    return any(field == one or field.startswith(f"{one}.") for one in known)


def name_beside(spec: RunSpec) -> str:
    """`my-run-3f9a1c`: the run's name with a hash of its setting.

    Fields at their defaults are left out, so that one which a later version adds does not rename old runs.
    """
    leaves = dict(_leaves(spec, spec.model_dump(mode="json", exclude_defaults=True)))
    setting = {
        field: value
        for field, value in leaves.items()
        if field not in _unused(spec) and not _is_one_of(field, _HARMLESS)
    }
    digest = hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()
    return f"{beside_prefix(spec)}{digest[:6]}"


def beside_prefix(spec: RunSpec) -> str:
    """How the names beside a run's begin, which six hexadecimal digits end."""
    return f"{str(spec.name)[:90]}-"
