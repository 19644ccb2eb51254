"""The flags of train_framework.py as fields of the spec."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.cli.argv import spread_values
from rankzero.cli.seed_flags import SeedFlags, as_settings, require_lora
from rankzero.errors import ConfigError, UsageError
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import LoraSpec, RunSpec, SourceSpec


def spec(flags: SeedFlags, *overrides: str, world_size: int = 1) -> RunSpec:
    settings = as_settings(flags, world_size=world_size)
    return load_run_spec(None, ["model.name=m", "data.train=t", *overrides, *settings], env={}).spec


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train", "train"),
        ("train --target-modules a", "train --target-modules a"),
        (
            "train --target-modules a b c --bf16",
            "train --target-modules a --target-modules b --target-modules c --bf16",
        ),
        ("train --target-modules a b run.yaml", "train --target-modules a --target-modules b run.yaml"),
        ("train --target-modules a lora.r=4", "train --target-modules a lora.r=4"),
        (
            "train --target-modules a --target-modules b c",
            "train --target-modules a --target-modules b --target-modules c",
        ),
        ("train --target-modules --bf16", "train --target-modules --bf16"),
        ("train --target-modules", "train --target-modules"),
        ("train --target-modules=a b", "train --target-modules=a b"),
        ("train run.yaml -- --target-modules a b", "train run.yaml -- --target-modules a b"),
        ("data volcano x --splits train test", "data volcano x --splits train --splits test"),
    ],
)
def test_several_values_after_one_flag(line: str, expected: str) -> None:
    assert spread_values(line.split()) == expected.split()


@pytest.mark.parametrize("words", ["-- torchrun x.py --target-modules q k", "torchrun x.py --splits q k"])
def test_the_words_of_somebody_s_own_command_stay_as_they_are(words: str) -> None:
    typed = ["dev", "run", "--cluster", "c", *words.split()]
    assert spread_values(typed) == typed


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ({"model": "gpt2"}, "model.name", "gpt2"),
        ({"data": "d.jsonl"}, "data.train", "d.jsonl"),
        ({"data": "d.jsonl", "row_format": "alpaca"}, "data.train", (SourceSpec(path="d.jsonl", format="alpaca"),)),
        ({"lora": True, "target_modules": ["all-linear"]}, "lora.target_modules", "all-linear"),
        ({"lora": True, "target_modules": ["auto"]}, "lora.target_modules", "auto"),
        ({"lora": True, "target_modules": ["q_proj"]}, "lora.target_modules", ("q_proj",)),
        ({"epochs": 2}, "train.num_train_epochs", 2.0),
        ({"seq_len": 512}, "data.max_length", 512),
        ({"bf16": True}, "model.dtype", "bfloat16"),
        ({"bf16": False}, "model.dtype", "auto"),
        ({"model_local_dir": "/m"}, "model.local_dir", "/m"),
        ({"tokenizer_local_dir": "/t"}, "model.tokenizer_dir", "/t"),
        ({"local_files_only": True}, "model.local_files_only", True),
        ({"output": "/out/run-1"}, "output_dir", "/out"),
        ({"output": "/out/run-1"}, "name", "run-1"),
        ({"output": "run-1/"}, "output_dir", "."),
        ({"output": "run-1/"}, "name", "run-1"),
        ({"lora": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0}, "lora.alpha", 8.0),
        ({"lora": True, "target_modules": ("a", "b")}, "lora.target_modules", ("a", "b")),
    ],
)
def test_fields(flags: dict[str, Any], field: str, value: object) -> None:
    found: object = spec(SeedFlags(**flags))
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value


def test_nothing_given_sets_nothing() -> None:
    assert as_settings(SeedFlags(), world_size=8) == []


@pytest.mark.parametrize(
    ("batch", "grad_accum", "world_size", "size"),
    [(2, 8, 4, 64), (1, 16, 2, 32), (3, None, 2, 6), (None, 5, 2, 10), (None, None, 2, 16)],
)
def test_batch_flags_make_the_global_batch(
    batch: int | None, grad_accum: int | None, world_size: int, size: int
) -> None:
    flags = SeedFlags(batch=batch, grad_accum=grad_accum)
    assert spec(flags, world_size=world_size).train.global_batch_size == size


def test_lora_has_the_seeds_modules() -> None:
    expected = LoraSpec(r=8, alpha=16, dropout=0.0, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert spec(SeedFlags(lora=True)).lora == expected


def test_lora_leaves_what_the_spec_says() -> None:
    lora = spec(SeedFlags(lora=True), "lora={r: 4, target_modules: all-linear}").lora
    assert lora == LoraSpec(r=4, target_modules="all-linear")


@pytest.mark.parametrize("flag", [{"lora_r": 4}, {"lora_alpha": 4}, {"lora_dropout": 0.0}, {"target_modules": ("a",)}])
def test_adapter_flags_need_adapters(flag: dict[str, Any]) -> None:
    flags = SeedFlags(**flag)
    settings = as_settings(flags, world_size=1)
    bare = load_run_spec(None, ["model.name=m", "data.train=t", *settings], env={})
    with pytest.raises(UsageError, match="needs --lora"):
        require_lora(flags, bare.source("lora"))
    described = load_run_spec(None, ["model.name=m", "data.train=t", "lora.r=2", *settings], env={})
    require_lora(flags, described.source("lora"))


@pytest.mark.parametrize("output", [".", "..", "/", "a b", "/out/.hidden", "/out/x\n", "", "/out/" + "x" * 101])
def test_an_output_that_is_no_run_name(output: str) -> None:
    with pytest.raises(UsageError, match="cannot be a run's name") as caught:
        as_settings(SeedFlags(output=output), world_size=1)
    assert caught.value.problems[0].where == "--output"


def test_a_flag_is_named_where_its_value_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        spec(SeedFlags(seq_len=2, epochs=0))
    assert sorted(problem.where for problem in caught.value.problems) == [
        "--epochs train.num_train_epochs",
        "--seq-len data.max_length",
    ]
