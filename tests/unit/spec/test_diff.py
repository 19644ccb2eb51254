"""Which differences between two specs change the maths of the steps to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rankzero.run_dir.setting import is_same_setting
from rankzero.spec.diff import Change, compare, differ, name_beside, not_allowable
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import DataSpec, RunSpec, SourceSpec, TrainSpec

BASE = ("model.name=m", "data.train=t", "lora.r=4")


def changes(*overrides: str) -> dict[str, bool]:
    old, new = load_run_spec(None, BASE, env={}).spec, load_run_spec(None, [*BASE, *overrides], env={}).spec
    return {change.field: change.harmless for change in compare(old, new)}


def test_no_difference() -> None:
    assert changes() == {}


def test_a_change_says_from_what_to_what() -> None:
    old, new = (load_run_spec(None, [*BASE, f"train.seed={seed}"], env={}).spec for seed in (1, 2))
    assert compare(old, new) == [Change("train.seed", 1, 2, harmless=False)]


def test_preferences_at_their_defaults_are_those_that_nobody_wrote() -> None:
    absent, empty, written, other = (
        load_run_spec(None, [*BASE, "task=dpo", *more], env={}).spec
        for more in ([], ["dpo={}"], ["dpo.beta=0.1"], ["dpo.beta=0.2"])
    )
    for one in (absent, empty, written):
        assert compare(absent, one) == compare(one, absent) == [] and is_same_setting(one, absent)
        assert compare(one, other) == [Change("dpo.beta", 0.1, 0.2, harmless=False)]


@pytest.mark.parametrize(
    "override",
    [
        *("name=x", "output_dir=o", "tracking.tensorboard=no"),
        *("checkpoint.every=1", "checkpoint.keep=1", "checkpoint.final=last"),
        *("eval.every=7", "eval.on_start=yes", "eval.early_stopping_patience=2"),
        *("train.micro_batch_tokens=99", "train.gradient_checkpointing=yes", "train.max_nonfinite_steps=2"),
        *("model.local_dir=x", "model.tokenizer_dir=x", "model.local_files_only=yes", "data.train=other"),
        "model.revision=x",
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


def test_settings_of_a_template_are_one_field() -> None:
    """As --allow-change names it: what is inside is nobody's field."""
    found = changes("data.chat_template_kwargs.enable_thinking=false")
    assert found == {"data.chat_template_kwargs": False}
    assert not_allowable(found) == []


def test_what_is_not_used_is_no_other_setting() -> None:
    """For who compares two specs and for who names one: both ask the same fields."""
    steps = (*BASE, "name=r", "train.max_steps=9")
    first, epochs, buffer, more = (
        load_run_spec(None, [*steps, *one], env={}).spec
        for one in ([], ["train.num_train_epochs=2"], ["data.shuffle_buffer_size=7"], ["train.max_steps=10"])
    )
    for same in (epochs, buffer):
        assert all(change.harmless for change in compare(first, same))
        assert is_same_setting(first, same) and name_beside(first) == name_beside(same)
    assert not is_same_setting(first, more) and name_beside(first) != name_beside(more)


@pytest.mark.parametrize(("task", "labels"), [("dpo", ()), ("classify", ("data.labels=[a, b]",))])
def test_what_both_tasks_do_not_read_is_harmless(task: str, labels: tuple[str, ...]) -> None:
    """A warning asks for it to be taken out, which a run goes on with. Its name is another's as before."""
    with_it, without = (
        load_run_spec(None, [*BASE, *labels, f"task={task}", *more], env={}).spec
        for more in (["data.train_on=last_turn"], [])
    )
    assert [(change.field, change.harmless) for change in compare(with_it, without)] == [("data.train_on", True)]
    assert is_same_setting(with_it, without) and name_beside(with_it) != name_beside(without)
    assert changes("data.train_on=last_turn") == {"data.train_on": False}


def test_adapters_at_their_defaults_are_not_none() -> None:
    with_them, without = (
        load_run_spec(None, [*BASE[:2], "name=r", one], env={}).spec for one in ("lora={}", "train.seed=42")
    )
    assert name_beside(with_them) != name_beside(without) and not is_same_setting(with_them, without)


class _Train(TrainSpec):
    """Of a later version."""

    of_the_future: str = "auto"


class _Source(SourceSpec):
    of_the_future: int = 3


class _Data(DataSpec):
    train: tuple[_Source, ...]


class _Run(RunSpec):
    data: _Data
    train: _Train = _Train()
    also: bool = False


@pytest.mark.parametrize("digest", [name_beside, spec_hash])
def test_a_field_that_a_later_version_adds_renames_nothing(digest: Callable[[RunSpec], str]) -> None:
    """A run that was begun under such a name is looked for by it after an upgrade."""
    value = {"name": "r", "model": {"name": "m"}, "data": {"train": [{"path": "t"}]}, "train": {"seed": 3}}
    assert digest(RunSpec.model_validate(value)) == digest(_Run.model_validate(value))
    assert digest(_Run.model_validate(value)) != digest(_Run.model_validate({**value, "also": True}))


def test_the_name_beside_is_stable() -> None:
    """Changing it begins each run anew that was begun under such a name elsewhere."""
    assert name_beside(load_run_spec(None, [*BASE, "name=r", "train.seed=3"], env={}).spec) == "r-ef4d95"


@pytest.mark.parametrize("there", [None, "a", "rows:a", "rows:b", "listing:a"])
@pytest.mark.parametrize("here", [None, "a", "b", "rows:a", "listing:a"])
def test_what_an_earlier_version_knew_otherwise_is_neither_the_same_nor_another(
    there: str | None, here: str | None
) -> None:
    found = differ(there, here)
    assert found == differ(here, there)
    if there == here:
        assert found is False
    elif there is None or here is None or (":" in there) == (":" in here):
        assert found is True
    else:
        assert found is None
