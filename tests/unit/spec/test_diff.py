"""Which differences between two specs change the maths of the steps to come."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.spec.diff import Change, compare
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec

BASE = ("model.name=m", "data.train=t", "lora.r=4")


def changes(*overrides: str) -> dict[str, bool]:
    old, new = load_run_spec(None, BASE, env={}).spec, load_run_spec(None, [*BASE, *overrides], env={}).spec
    return {change.field: change.harmless for change in compare(old, new)}


def test_no_difference() -> None:
    assert changes() == {}


def test_a_change_says_from_what_to_what() -> None:
    old, new = (load_run_spec(None, [*BASE, f"train.seed={seed}"], env={}).spec for seed in (1, 2))
    assert compare(old, new) == [Change("train.seed", 1, 2, harmless=False)]


@pytest.mark.parametrize(
    "override",
    [
        *("name=x", "output_dir=o", "tracking.tensorboard=no"),
        *("checkpoint.every=1", "checkpoint.keep=1", "checkpoint.final=last"),
        *("eval.every=7", "eval.on_start=yes", "eval.early_stopping_patience=2"),
        *("train.micro_batch_tokens=99", "train.gradient_checkpointing=yes", "train.max_nonfinite_steps=2"),
        *("model.local_dir=x", "model.tokenizer_dir=x", "model.local_files_only=yes", "data.train=other"),
    ],
)
def test_harmless(override: str) -> None:
    with_eval = [override, "data.eval=e"] if override.startswith("eval.") else [override]
    found = changes(*with_eval)
    assert override.partition("=")[0] in found
    assert all(found.values())


@pytest.mark.parametrize(
    "override",
    [
        *("train.seed=1", "train.global_batch_size=1", "train.learning_rate=1", "train.max_steps=9"),
        *("train.num_train_epochs=2", "train.lr_scheduler_type=cosine", "train.warmup_steps=0", "train.weight_decay=1"),
        *("train.adam_beta1=0", "train.max_grad_norm=null", "data.max_length=99", "data.assistant_only_loss=no"),
        *(
            "lora.r=8",
            "lora.dropout=0",
            "lora.target_modules=all-linear",
            "model.dtype=float32",
            "model.attention=eager",
        ),
    ],
)
def test_harmful(override: str) -> None:
    assert changes(override) == {override.partition("=")[0]: False}


def test_adapters_or_not_is_harmful() -> None:
    found = changes("lora=null")
    assert found
    assert not any(found.values())


def test_every_field_is_one_or_the_other() -> None:
    """A field that is added later is harmful until somebody decides otherwise."""
    flat: dict[str, Any] = {}
    for section, value in load_run_spec(None, BASE, env={}).spec.model_dump().items():
        flat |= (
            {f"{section}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {section: value}
        )
    assert len(flat) > 40
    assert RunSpec.model_fields.keys() <= {name.partition(".")[0] for name in flat}
