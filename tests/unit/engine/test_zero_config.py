"""What DeepSpeed is started with: made from the spec, or the user's file with what the spec decides put in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.parallel.zero.config import effective_config, ignored_keys, left_off
from rankzero.engine.parallel.zero.parallel import deepspeed_config
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import RunSpec

BATCHES = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
OURS = {**BATCHES, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
IN_MEMORY = {"device": "cpu", "pin_memory": True}

HUGGING_FACE = {
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 5e8,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
"""The shape that transformers documents for its users."""


def spec_with(*, adapters: bool = False, quantization: str = "none", **train: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"name": "m", "quantization": quantization},
            "data": {"train": "rows.jsonl"},
            "lora": {} if adapters else None,
            "train": train,
        }
    )


def own_file(tmp_path: Path, value: Any, *, text: str | None = None, **train: Any) -> RunSpec:
    path = tmp_path / "ds.json"
    path.write_text(text if text is not None else json.dumps(value))
    return spec_with(**{"sharding": "zero3", "deepspeed": str(path), **train})


def problems(spec: RunSpec) -> dict[str, str]:
    """What is wrong, by where, without the file's path."""
    with pytest.raises(ConfigError) as raised:
        effective_config(spec, 2, torch.float32)
    assert all(problem.hint for problem in raised.value.problems)
    directory = f"{Path(str(spec.train.deepspeed)).parent}/"
    return {problem.where.replace(directory, ""): problem.what for problem in raised.value.problems}


def test_qlora_in_bfloat16() -> None:
    spec = spec_with(adapters=True, quantization="nf4", sharding="zero2")
    assert effective_config(spec, 16, torch.bfloat16) == {
        **OURS,
        "gradient_clipping": 1.0,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []},
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,
        },
    }


def test_full_in_bfloat16_with_all_offloaded() -> None:
    spec = spec_with(sharding="zero3", offload="all", max_grad_norm=0.5)
    assert effective_config(spec, 16, torch.bfloat16) == {
        **OURS,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,
            "offload_optimizer": IN_MEMORY,
            "offload_param": IN_MEMORY,
        },
    }


def test_float32_offload_of_the_optimizer_and_no_clipping() -> None:
    config = effective_config(spec_with(sharding="zero2", offload="optimizer", max_grad_norm=None), 2, torch.float32)
    assert config["gradient_clipping"] == 0.0
    assert config["zero_optimization"]["offload_optimizer"] == IN_MEMORY
    assert "offload_param" not in config["zero_optimization"]
    assert not {"bf16", "fp16", "torch_autocast", "optimizer", "scheduler"} & config.keys()


def test_a_hugging_face_file(tmp_path: Path) -> None:
    spec = own_file(tmp_path, HUGGING_FACE)
    assert effective_config(spec, 16, torch.bfloat16) == {
        **OURS,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,
            "offload_optimizer": IN_MEMORY,
            "offload_param": {"device": "none"},
            "sub_group_size": 1e9,
            "stage3_max_live_parameters": 5e8,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
    assert ignored_keys(spec) == ["optimizer", "scheduler"], "their `type` is a choice; what says auto is not"


def test_the_spec_decides_batches_clipping_precision_and_optimizer(tmp_path: Path) -> None:
    theirs = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 7.0,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "optimizer": {"type": "Adam", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000},
    }
    spec = own_file(tmp_path, theirs)
    made = effective_config(spec_with(sharding="zero3"), 2, torch.float32)
    made["zero_optimization"]["reduce_bucket_size"] = 1000
    assert effective_config(spec, 2, torch.float32) == made
    assert ignored_keys(spec) == sorted(theirs.keys() - {"zero_optimization"})


def test_the_spec_s_offload_stands_over_the_file_s(tmp_path: Path) -> None:
    theirs = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}
    spec = own_file(tmp_path, theirs, sharding="zero2", offload="optimizer")
    assert effective_config(spec, 2, torch.float32)["zero_optimization"]["offload_optimizer"] == IN_MEMORY


@pytest.mark.parametrize("said", [True, False, "auto"])
def test_an_order_in_which_weights_are_not_found_is_left_off(said: Any, tmp_path: Path) -> None:
    """It is faster, so files have it, and DeepSpeed then finds each weight where another one is."""
    theirs = {"zero_optimization": {"stage": 2, "round_robin_gradients": said}}
    spec = own_file(tmp_path, theirs, sharding="zero2")
    assert effective_config(spec, 2, torch.float32)["zero_optimization"].get("round_robin_gradients", False) is False
    assert left_off(spec) == (["zero_optimization.round_robin_gradients"] if said is True else [])


def test_no_file_ignores_nothing() -> None:
    assert ignored_keys(spec_with(sharding="zero2")) == left_off(spec_with(sharding="zero2")) == []


def test_every_problem_of_a_file_at_once(tmp_path: Path) -> None:
    theirs = {
        "fp16": {"enabled": True},
        "elasticity": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "zero_quantized_weights": True,
            "zero_hpz_partition_size": 8,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/local", "super_offload": True, "ratio": 0.5},
        },
    }
    assert problems(own_file(tmp_path, theirs)) == {
        "ds.json elasticity": "this part of DeepSpeed is not used here",
        "ds.json fp16.enabled": "float16 is not trained in with DeepSpeed",
        "ds.json zero_optimization.stage": "the stage is 2, and train.sharding is zero3",
        "ds.json zero_optimization.zero_hpz_partition_size": "this changes what is computed or saved",
        "ds.json zero_optimization.zero_quantized_weights": "this changes what is computed or saved",
        "ds.json zero_optimization.offload_optimizer.device": "offload to nvme is not supported",
        "ds.json zero_optimization.offload_optimizer.super_offload": "checkpoints would lack the optimizer's state",
        "ds.json zero_optimization.offload_optimizer.ratio": "a part of the optimizer's state cannot be offloaded",
    }


@pytest.mark.parametrize(
    ("section", "train"),
    [
        ({"device": "cpu", "super_offload": False, "ratio": 1}, {}),
        ({"device": "cpu", "super_offload": "auto", "ratio": None}, {}),
        ({"device": "none", "ratio": 0.5}, {}),
        ({"device": "cpu", "super_offload": True, "ratio": 0.5}, {"offload": "optimizer"}),
        ({"device": "cpu", "super_offload": True}, {"sharding": "zero2"}),
    ],
    ids=["off", "automatic", "not offloaded", "the spec's instead", "of another stage"],
)
def test_options_of_offload_that_have_no_effect(section: dict[str, Any], train: dict[str, Any], tmp_path: Path) -> None:
    spec = own_file(tmp_path, {"zero_optimization": {"stage": "auto", "offload_optimizer": section}}, **train)
    assert effective_config(spec, 2, torch.float32)["zero_optimization"]["offload_optimizer"]


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        ({}, "ds.json zero_optimization", "there is none"),
        ({"zero_optimization": True}, "ds.json zero_optimization", "not a JSON object"),
        (
            {"zero_optimization": {}},
            "ds.json zero_optimization.stage",
            "the stage is null, and train.sharding is zero3",
        ),
        ({"zero_optimization": {"stage": 0}}, "ds.json zero_optimization.stage", "the stage is 0, and train.sharding"),
        ([], "ds.json", "not a JSON object"),
    ],
)
def test_a_file_without_a_stage(tmp_path: Path, value: Any, where: str, what: str) -> None:
    found = problems(own_file(tmp_path, value))
    assert list(found) == [where]
    assert found[where].startswith(what)


def test_an_automatic_stage_is_the_spec_s(tmp_path: Path) -> None:
    spec = own_file(tmp_path, {"zero_optimization": {"stage": "auto"}})
    assert effective_config(spec, 2, torch.float32)["zero_optimization"]["stage"] == 3


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    found = problems(own_file(tmp_path, None, text='{\n  "zero_optimization": {"stage": 3},\n}\n'))
    assert list(found) in (["ds.json:2"], ["ds.json:3"])  # Python 3.13 blames the comma, older ones the bracket


def test_a_missing_file(tmp_path: Path) -> None:
    spec = spec_with(sharding="zero2", deepspeed=str(tmp_path / "none.json"))
    assert list(problems(spec)) == ["train.deepspeed"]


def test_a_missing_deepspeed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ConfigError, match=r"pip install 'rankzero\[deepspeed\]'") as refused:
        deepspeed_config(spec_with(sharding="zero2"), World(), Device("cpu"), torch.float32)
    assert refused.value.problems[0].where == "train.sharding"
