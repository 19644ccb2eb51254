"""The DeepSpeed configuration of a run: made from its spec, or a user's own JSON with what the spec decides put in.

Reads the user's file and nothing else; DeepSpeed itself is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rankzero.errors import ConfigError, Problem
from rankzero.spec.run_spec import RunSpec

AUTO = "auto"
"""What Hugging Face's DeepSpeed files say where the trainer knows the value."""
ZERO = "zero_optimization"
BUCKET_ELEMENTS = 50_000_000
"""Elements reduced at once: the buffer for them stays allocated, and DeepSpeed's own default is ten times as many."""

DECIDED_BY_SPEC = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "managed_gradient_accumulation",
        "gradient_allreduce_op",
        "prescale_gradients",
        "gradient_predivide_factor",
        "gradient_clipping",
        "optimizer",
        "scheduler",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "bf16",
        "bfloat16",
        "fp16",
        "amp",
        "torch_autocast",
        "activation_checkpointing",
        "gradient_checkpointing",
        "checkpoint",
        "load_universal_checkpoint",
        "dataloader_drop_last",
        "seed",
    }
)
"""Top-level keys of a user's file that are not used: the same run computes the same whatever spreads it."""
PASSED_ON = frozenset(
    {
        ZERO,
        "aio",
        "comms_logger",
        "communication_data_type",
        "csv_monitor",
        "data_types",
        "disable_python_gc",
        "dump_state",
        "flops_profiler",
        "log_level",
        "memory_breakdown",
        "steps_per_print",
        "tensorboard",
        "wall_clock_breakdown",
        "wandb",
    }
)
"""Top-level keys of a user's file that DeepSpeed gets as they are."""
REFUSED_IN_ZERO = {
    "compute_grad_norm": True,
    "zenflow": None,
    "zero_hpz_partition_size": 1,
    "zero_quantized_gradients": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_weights": False,
}
"""Options with which losses or saved weights would no longer be those of the other ways to shard; and their value
that changes nothing."""
LEFT_OFF_IN_ZERO = {"round_robin_gradients": False}
"""Options that make nothing but speed, and with which DeepSpeed finds a weight where another one is; and what they are
set to. Published files have them, so they are no error."""


def effective_config(spec: RunSpec, world_size: int, dtype: torch.dtype) -> dict[str, Any]:
    """What DeepSpeed is started with, as JSON values. Raises ConfigError with every problem of the user's file.

    `dtype` is the precision of matrix products. DeepSpeed's own batch sizes mean nothing here: the passes of a step
    are planned by tokens, and their last one is told to DeepSpeed.
    """
    made = _made_from_spec(spec, world_size, dtype)
    if spec.train.deepspeed is None:
        return made
    path = Path(spec.train.deepspeed)
    theirs = _read(path)
    problems = list(_problems(theirs, path, spec))
    if problems:
        raise ConfigError(problems)
    passed_on = {key: value for key, value in theirs.items() if key in PASSED_ON}
    merged = _merge(made, passed_on)
    if spec.train.offload != "none":
        merged[ZERO] |= {key: value for key, value in made[ZERO].items() if key.startswith("offload_")}
    merged[ZERO] |= {key: value for key, value in LEFT_OFF_IN_ZERO.items() if key in merged[ZERO]}
    return merged


def ignored_keys(spec: RunSpec) -> list[str]:
    """Keys with a value in the user's file that the spec decides instead. Raises ConfigError."""
    if spec.train.deepspeed is None:
        return []
    return sorted(key for key, value in _read(Path(spec.train.deepspeed)).items() if _is_ignored(key, value))


def left_off(spec: RunSpec) -> list[str]:
    """What the user's file asks for and the run goes without. Raises ConfigError."""
    if spec.train.deepspeed is None:
        return []
    zero = _read(Path(spec.train.deepspeed)).get(ZERO, {})
    return [f"{ZERO}.{key}" for key, off in LEFT_OFF_IN_ZERO.items() if zero.get(key) not in (None, off, AUTO)]


def computes_in_bfloat16(spec: RunSpec, dtype: torch.dtype) -> bool:
    """Whether DeepSpeed holds the weights in bfloat16, beside its float32 copies: full fine-tuning in bfloat16.

    Adapters are small and stay in float32; their products are computed in bfloat16 all the same.
    """
    return dtype is torch.bfloat16 and spec.lora is None


def _made_from_spec(spec: RunSpec, world_size: int, dtype: torch.dtype) -> dict[str, Any]:
    full_shards = spec.train.sharding == "zero3"
    zero: dict[str, Any] = {
        "stage": 3 if full_shards else 2,
        "overlap_comm": full_shards,
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET_ELEMENTS,
    }
    if spec.train.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if spec.train.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": spec.train.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        ZERO: zero,
    }
    if computes_in_bfloat16(spec, dtype):
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["communication_data_type"] = "fp32"
    elif dtype is torch.bfloat16:
        # No safe modules: these would also have their gradients reduced in bfloat16.
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    return config


def _read(path: Path) -> dict[str, Any]:
    """The user's file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "give the path of a DeepSpeed JSON file, or leave it out: it is then made from the spec"
        raise ConfigError(f"{path} cannot be read: {error}", where="train.deepspeed", hint=hint) from error
    except json.JSONDecodeError as error:
        hint = "JSON has no comments and no commas before a closing bracket"
        raise ConfigError(error.msg, where=f"{path}:{error.lineno}", hint=hint) from error
    if not isinstance(value, dict):
        raise ConfigError("not a JSON object", where=str(path), hint='it begins like {"zero_optimization": {"stage": 2')
    return value


def _problems(theirs: Mapping[str, Any], path: Path, spec: RunSpec) -> Iterator[Problem]:
    """Everything in the user's file that this run cannot be made with."""
    for key in theirs:
        if key not in PASSED_ON and key not in DECIDED_BY_SPEC:
            yield Problem("this part of DeepSpeed is not used here", f"{path} {key}", "take it out of the file")
    fp16 = theirs.get("fp16")
    if isinstance(fp16, dict) and fp16.get("enabled") is True:
        hint = "take it out of the file, and set model.dtype: bfloat16; or train.sharding: fsdp, which does float16"
        yield Problem("float16 is not trained in with DeepSpeed", f"{path} fp16.enabled", hint)
    zero = theirs.get(ZERO)
    wanted = int(spec.train.sharding.removeprefix("zero"))
    if not isinstance(zero, dict):
        what = "there is none" if zero is None else "not a JSON object"
        yield Problem(what, f"{path} {ZERO}", f'write "{ZERO}": {{"stage": {wanted}}}')
        return
    stage = zero.get("stage")
    if stage not in (wanted, AUTO):
        hint = f"set train.sharding: zero{stage}, or stage {wanted} in the file"
        if stage not in (2, 3):
            hint = f"write {wanted}; without sharding of gradients take train.sharding: ddp"
        what = f"the stage is {json.dumps(stage)}, and train.sharding is {spec.train.sharding}"
        yield Problem(what, f"{path} {ZERO}.stage", hint)
    for key, harmless in REFUSED_IN_ZERO.items():
        if zero.get(key) not in (None, harmless, AUTO):
            yield Problem("this changes what is computed or saved", f"{path} {ZERO}.{key}", "take it out of the file")
    yield from _problems_of_offload(zero, f"{path} {ZERO}", spec)


def _problems_of_offload(zero: Mapping[str, Any], where: str, spec: RunSpec) -> Iterator[Problem]:
    for key in ("offload_optimizer", "offload_param"):
        section = zero.get(key)
        if isinstance(section, dict) and (device := section.get("device")) not in (None, "none", "cpu"):
            yield Problem(f"offload to {device} is not supported", f"{where}.{key}.device", 'write "cpu"')
    section = zero.get("offload_optimizer")
    if not isinstance(section, dict) or spec.train.offload != "none" or spec.train.sharding != "zero3":
        return  # the spec's stands in its place; in stage 2 they do nothing, or DeepSpeed refuses them itself
    where, hint = f"{where}.offload_optimizer", "take it out of the file"
    if section.get("super_offload") not in (None, False, AUTO):
        yield Problem("checkpoints would lack the optimizer's state", f"{where}.super_offload", hint)
    if section.get("ratio") not in (None, 1, AUTO) and section.get("device") not in (None, "none"):
        yield Problem("a part of the optimizer's state cannot be offloaded", f"{where}.ratio", hint)


def _is_ignored(key: str, value: Any) -> bool:
    return key in DECIDED_BY_SPEC and not _all_auto(value)


def _all_auto(value: Any) -> bool:
    """Whether a user's value leaves everything to the trainer."""
    if isinstance(value, dict):
        return all(_all_auto(inner) for inner in value.values())
    return bool(value == AUTO)


def _merge(made: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Theirs over ours, key by key. "auto" is ours, or DeepSpeed's default where we have no opinion."""
    merged = dict(made)
    for key, value in theirs.items():
        if isinstance(value, dict):
            ours = made.get(key)
            merged[key] = _merge(ours if isinstance(ours, dict) else {}, value)
        elif value != AUTO:
            merged[key] = value
    return merged
