"""How two specs differ, field by field, and whether a run may go on across the difference. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankzero.spec.run_spec import RunSpec

_HARMLESS = (
    *("name", "output_dir", "tracking", "checkpoint"),
    *("eval.every", "eval.on_start", "eval.early_stopping_patience"),
    *("train.micro_batch_tokens", "train.gradient_checkpointing", "train.max_nonfinite_steps"),
    "train.collective_timeout_seconds",
    *("train.padding_free", "train.torch_compile", "train.activation_offloading"),
    *("train.sharding", "train.offload", "train.deepspeed"),
    *("model.name", "model.local_dir", "model.tokenizer_dir", "model.local_files_only"),
    *("data.train", "data.eval", "data.chat_template"),
)
"""Sections and fields that do not change the maths of the steps to come. Places of data, model and template are among
them because what stands there is compared by content."""


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
    return any(field == known or field.startswith(f"{known}.") for known in _HARMLESS)
