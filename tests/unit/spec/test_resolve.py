"""What a spec leaves open is decided once, and the result reads back as itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve, spec_hash, to_yaml
from rankzero.spec.run_spec import RunSpec


def spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate({"model": {"name": "Qwen/Qwen3-8B"}, "data": {"train": "t"}, **sections})


@pytest.mark.parametrize(
    ("sections", "rate", "method"),
    [
        ({}, 2e-5, "full"),
        ({"lora": {}}, 2e-4, "lora"),
        ({"lora": {"use_dora": True}}, 2e-4, "dora"),
        ({"lora": {}, "train": {"learning_rate": 1e-3}}, 1e-3, "lora"),
    ],
)
def test_learning_rate_and_name(sections: dict[str, Any], rate: float, method: str) -> None:
    resolved = resolve(spec(**sections))
    assert resolved.train.learning_rate == rate
    assert resolved.name == f"qwen3-8b-{method}-{spec_hash(resolved)[:6]}"
    assert resolve(resolved) == resolved


def test_a_given_name_stays() -> None:
    assert resolve(spec(name="mine")).name == "mine"


def test_the_hash_is_of_what_is_trained() -> None:
    base = spec_hash(spec())
    assert spec_hash(spec(name="n", output_dir="o", tracking={"tensorboard": False})) == base
    assert spec_hash(spec(train={"learning_rate": 2e-5})) == base, "auto is what it stands for"
    assert spec_hash(spec(train={"num_train_epochs": 1, "global_batch_size": 16})) == base, "defaults, written out"
    assert spec_hash(resolve(spec())) == base
    others = [spec(lora={}), spec(lora={"r": 4}), spec(train={"seed": 1}), spec(data={"train": "u"})]
    assert len({base, *map(spec_hash, others)}) == 5


def test_the_hash_is_stable() -> None:
    """Changing it renames every run whose name was left to us: the same command would start anew."""
    assert spec_hash(spec(lora={"alpha": 16})) == STABLE


STABLE = "0fac48efedd6a0bb427ac574f849fe7f2bc5f7cfc9d8df3e341860b09f653a0d"

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ODD = st.sampled_from(
    [
        "yes",
        "null",
        "2e-4",
        "1_000",
        "${HOME}",
        "$${X}",
        "a: b",
        "- x",
        "#c",
        "0x1F",
        "1:30",
        "~",
        "'",
        "a\x85b",
        "\u2028",
        "\ufeffx",
        "日本",
    ]
)
NUMERALS = st.from_regex(r"[-+]?[0-9_]*[.:eExob]?[-+]?[0-9_]*", fullmatch=True)
"""Of YAML 1.1 or 1.2, of both, and of neither."""
WORDS = TEXT | ODD | NUMERALS.filter(bool)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**39), 10**39)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", fullmatch=True)
POSITIVE = st.integers(1, 2**53)
ABOVE_ZERO = st.floats(1e-30, 1e30)
SOURCES = st.lists(st.fixed_dictionaries({"path": WORDS, "format": st.sampled_from(["auto", "text"])}), min_size=1)
SPECS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries({"name": WORDS.filter(str.strip), "revision": st.none() | WORDS}),
        "data": st.fixed_dictionaries(
            {
                "train": WORDS | SOURCES,
                "eval": st.none() | WORDS | SOURCES | st.just({"fraction": 0.1}),
                "chat_template": st.none() | WORDS,
                "chat_template_kwargs": st.dictionaries(WORDS, VALUES, max_size=4),
            }
        ),
        "lora": st.none()
        | st.fixed_dictionaries(
            {
                "alpha": ABOVE_ZERO,
                "target_modules": st.just("auto") | st.lists(WORDS, min_size=1, max_size=3),
                "trainable_token_indices": st.lists(st.integers(0, 99) | WORDS, max_size=3),
            }
        ),
        "train": st.fixed_dictionaries(
            {
                "learning_rate": st.just("auto") | st.floats(1e-30, 1.0),
                "max_steps": st.none() | POSITIVE,
                "gradient_checkpointing": st.just("auto") | st.booleans(),
                "max_grad_norm": st.none() | ABOVE_ZERO,
            }
        ),
        "eval": st.fixed_dictionaries({"every": st.just("epoch") | POSITIVE}),
        "name": st.none() | NAMES,
        "output_dir": WORDS,
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SPECS)
def test_what_is_written_reads_back(tmp_path: Path, value: dict[str, Any]) -> None:
    resolved = resolve(RunSpec.model_validate(value))
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(resolved), encoding="utf-8")
    modules = resolved.lora.target_modules if resolved.lora else ()
    if set(modules) & {"auto", "all-linear"} and not isinstance(modules, str):
        return  # refused by the checks
    assert load_run_spec(path, env={}).spec == resolved
    assert resolve(resolved) == resolved


def test_what_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    """YAML has had two ideas of what does; the one that writes is not the one that reads."""
    texts = ["08", "1e5", "1e3", "-09", "+1e-4", "12:30", "0x1F", "1_000", "yes", "~"]
    given = {"name": "n", "data": {"train": "t", "chat_template_kwargs": {"all": texts}}}
    made = spec(**given, lora={"trainable_token_indices": [*texts, 7]})
    (tmp_path / "run.yaml").write_text(to_yaml(made))
    assert load_run_spec(tmp_path / "run.yaml", env={}).spec == made


def test_what_stands_for_something_in_a_text_is_only_text_in_a_key(tmp_path: Path) -> None:
    made = spec(name="n", data={"train": "t", "chat_template_kwargs": {"${HOME}": "${HOME}", "<<": {"$${x}": 1}}})
    (tmp_path / "run.yaml").write_text(to_yaml(made))
    assert load_run_spec(tmp_path / "run.yaml", env={}).spec == made


def test_sections_that_say_nothing_and_came_later_are_not_written() -> None:
    """An image of the version before reads what this one writes."""
    plain = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}})
    assert "dpo" not in yaml.safe_load(to_yaml(plain))
    pairs = RunSpec.model_validate({**plain.model_dump(), "task": "dpo", "lora": {}, "dpo": {"beta": 0.2}})
    assert yaml.safe_load(to_yaml(pairs))["dpo"] == {"beta": 0.2}
