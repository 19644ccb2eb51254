"""Which differences between two specs change the maths of the steps to come."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rankzero.spec.diff import Change, compare, not_allowable
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
            "lora.dropout=0.1",
            "lora.target_modules=all-linear",
            "model.dtype=float32",
            "model.attention=eager",
        ),
    ],
)
def test_harmful(override: str) -> None:
    assert changes(override) == {override.partition("=")[0]: False}


@pytest.mark.parametrize(
    "override",
    [
        *("lora.r=8", "lora.target_modules=all-linear", "lora.use_dora=yes", "train.parts=[language]"),
        *("train.optimizer=adamw_8bit", "data.labels=[a, b]", "task=classify"),
    ],
)
def test_what_is_saved_would_not_fit(override: str) -> None:
    old = load_run_spec(None, BASE, env={}).spec
    value = {**old.model_dump()}
    section, _, rest = override.partition("=")[0].partition(".")
    new = yaml.safe_load(override.partition("=")[2])
    value[section] = {**value[section], rest: new} if rest else new
    (change,) = compare(old, RunSpec.model_validate(value))
    assert change.fixed and not change.harmless


def test_epochs_do_not_count_where_steps_do() -> None:
    old, new = (
        load_run_spec(None, [*BASE, "train.max_steps=9", f"train.num_train_epochs={n}"], env={}).spec for n in (1, 2)
    )
    assert [(change.field, change.harmless) for change in compare(old, new)] == [("train.num_train_epochs", True)]


@pytest.mark.parametrize("name", ["train.learning_rate", "lora.dropout", "data", "tokenizer", "data.eval", "name"])
def test_what_may_be_allowed_to_change(name: str) -> None:
    assert not_allowable([name]) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("learning_rate", "did you mean train.learning_rate?"),
        ("train", "name its fields one by one, such as train.num_train_epochs"),
        ("lora.drop", "did you mean lora.dropout?"),
        ("nonsense", "the top level has name, task"),
    ],
)
def test_what_names_nothing_is_a_problem(name: str, hint: str) -> None:
    (problem,) = not_allowable([name])
    assert problem.where == "--allow-change" and hint in problem.hint


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
