"""How two specs differ, field by field, and whether a run may go on across the difference. Pure."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rankzero.errors import Problem
from rankzero.spec.fields import all_fields
from rankzero.spec.renames import RENAMES
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.unknown_keys import guess

IDENTITIES = {
    "model": "the base model's weights",
    "tokenizer": "the tokenizer or its chat template",
    "data": "the training data (or what makes tokens of it: max_length, assistant_only_loss, reasoning, …)",
    "eval_data": "the evaluation data",
    "dtype": "the precision, which model.dtype: auto chose for this device",
}
"""What must not change besides the spec. The names are what --allow-change takes."""

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
    "model": ("model.name", "model.local_dir"),
    "tokenizer": ("model.tokenizer_dir", "data.chat_template"),
    "data": ("data.train",),
    "eval_data": ("data.eval",),
}
"""Where data, model and template are, by the identity that what stands there has: as harmless, since it is compared by
content where that is known."""
_PLACES = tuple(field for fields in PLACES.values() for field in fields)

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


def compare(old: RunSpec, new: RunSpec) -> list[Change]:
    """All fields that differ, in the order of the spec."""
    before, after = dict(_leaves(old.model_dump(mode="json"))), dict(_leaves(new.model_dump(mode="json")))
    fields = [*before, *(field for field in after if field not in before)]
    unused = {"train.num_train_epochs"} if old.train.max_steps and new.train.max_steps else set()
    return [
        Change(field, before.get(field), after.get(field), field in unused or _is_harmless(field))
        for field in fields
        if before.get(field) != after.get(field)
    ]


def other_places(identity: str, old: RunSpec, new: RunSpec) -> list[Change]:
    """Where the places of this identity differ."""
    return [change for change in compare(old, new) if _is_one_of(change.field, PLACES.get(identity, ()))]


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


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _is_harmless(field: str) -> bool:
    return _is_one_of(field, (*_HARMLESS, *_PLACES))


def _is_one_of(field: str, known: tuple[str, ...]) -> bool:
    return any(field == one or field.startswith(f"{one}.") for one in known)


def is_same_setting(old: RunSpec, new: RunSpec) -> bool:
    """Whether both say the same of what is trained, on what and how; other data at another place is another setting."""
    return _setting(old) == _setting(new)


def name_beside(spec: RunSpec) -> str:
    """`my-run-3f9a1c`: the run's name with a hash of its setting."""
    digest = hashlib.sha256(json.dumps(_setting(spec)).encode()).hexdigest()
    return f"{str(spec.name)[:90]}-{digest[:6]}"


def _setting(spec: RunSpec) -> list[tuple[str, Any]]:
    return [
        (field, value) for field, value in _leaves(spec.model_dump(mode="json")) if not _is_one_of(field, _HARMLESS)
    ]
