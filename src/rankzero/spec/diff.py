"""How two specs differ, field by field, and whether a run may go on across the difference. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankzero.spec.run_spec import RunSpec

_HARMLESS = (
    # sections and fields that do not change the maths of the steps to come
    *("name", "output_dir", "resume", "tracking", "checkpoint"),
    *("eval.every", "eval.on_start", "eval.early_stopping_patience"),
    *("train.micro_batch_tokens", "train.gradient_checkpointing", "train.max_nonfinite_steps"),
    *("train.padding_free", "train.torch_compile", "train.activation_offloading"),
    *("train.sharding", "train.offload", "train.deepspeed"),
    "model.local_files_only",
)
_PLACES = (
    *("model.name", "model.local_dir", "model.tokenizer_dir"),
    *("data.train", "data.eval", "data.chat_template"),
)
"""Places of data, model and template: as harmless, because what stands there is compared by content."""


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    field: str
    old: Any
    new: Any
    harmless: bool


def compare(old: RunSpec, new: RunSpec) -> list[Change]:
    """All fields that differ, in the order of the spec."""
    before, after = dict(_leaves(old.model_dump(mode="json"))), dict(_leaves(new.model_dump(mode="json")))
    fields = [*before, *(field for field in after if field not in before)]
    return [
        Change(field, before.get(field), after.get(field), _is_harmless(field))
        for field in fields
        if before.get(field) != after.get(field)
    ]


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
