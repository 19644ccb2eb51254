"""Names of other tools: each leads to a field that exists, or says plainly that there is none."""

from __future__ import annotations

import pytest

from rankzero.errors import ConfigError
from rankzero.spec import cluster_load
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import all_fields
from rankzero.spec.load import load_run_spec
from rankzero.spec.renames import _TABLE, NOT_HERE, RENAMES, VALUES, normalised
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import TASKS
from rankzero.spec.unknown_keys import guess

FIELDS = set(all_fields(RunSpec))


@pytest.mark.parametrize(("name", "rename"), RENAMES.items())
def test_targets_exist(name: str, rename: object) -> None:
    meant = RENAMES[name]
    assert rename is meant
    assert not meant.field or meant.field in FIELDS
    assert meant.hint
    assert name == normalised(name)
    assert name not in {field.rpartition(".")[2] for field in FIELDS}, "a field's own name needs no rename"


def test_no_name_is_in_the_table_twice() -> None:
    names = [name for _, _, names in _TABLE for name in names.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("rlhf", "did you mean dpo?"),
        ("preference", "did you mean dpo?"),
        ("DPO", "did you mean dpo?"),
        ("orpo", "that of task dpo alone: orpo"),
        ("ipo", "that of task dpo alone"),
        ("kto", "single judged answers (KTO) are not"),
        ("grpo", "nothing by rewards"),
        ("ppo", "nothing by rewards"),
        ("reward-modeling", "nothing by rewards"),
    ],
)
def test_other_ways_to_train_lead_to_a_task_or_say_why_not(value: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_spec(None, ["model.name=m", "data.train=t.jsonl", f"task={value}"], env={})
    (problem,) = caught.value.problems
    assert problem.where.endswith("task") and hint in problem.hint


def test_values_that_are_none_here_are_none() -> None:
    assert NOT_HERE.keys().isdisjoint((*VALUES, *TASKS)) and {near for near, _ in NOT_HERE.values()} <= TASKS.keys()
    assert all(name == normalised(name) for name in NOT_HERE)


def test_targets_of_the_cluster_spec_exist() -> None:
    assert {rename.field for rename in cluster_load.RENAMES.values()} <= set(all_fields(ClusterSpec))


@pytest.mark.parametrize(
    ("key", "hint", "field"),
    [
        # the seeds
        ("MAX_LEN", "this is data.max_length here", "data.max_length"),
        ("BATCH", "batch × accumulation × processes", "train.global_batch_size"),
        ("GRAD_ACC", "batch × accumulation × processes", "train.global_batch_size"),
        ("LORA_RANK", "this is lora.r here", "lora.r"),
        ("MODEL_ID", "this is model.name here", "model.name"),
        ("MODEL_URI", "this is model.name here", "model.name"),
        ("DATASET_REPO_ID", "this is data.train here", "data.train"),
        ("DTYPE", "did you mean model.dtype?", "model.dtype"),
        ("NPROC", "--nproc-per-node", ""),
        ("save_total_limit", "this is checkpoint.keep here", "checkpoint.keep"),
        # TRL, Axolotl, LLaMA-Factory, torchtune, litgpt
        ("per_device_train_batch_size", "this is train.global_batch_size here", "train.global_batch_size"),
        ("sequence_len", "this is data.max_length here", "data.max_length"),
        ("cutoff_len", "this is data.max_length here", "data.max_length"),
        ("max-seq-len", "this is data.max_length here", "data.max_length"),
        ("train.train_on_inputs", "opposite", "data.assistant_only_loss"),
        ("load_in_4bit", "nf4 is 4 bits", "model.quantization"),
        ("load_in_8bit", "8-bit integers are not available", "model.quantization"),
        ("bnb_4bit_use_double_quant", "double quantisation", ""),
        ("quantization", "did you mean model.quantization?", "model.quantization"),
        ("sample_packing", "none seeing another", "train.padding_free"),
        ("group_by_length", "next to no padding", ""),
        ("optim", "adamw or adamw_8bit", "train.optimizer"),
        ("paged_adamw_8bit", "this is train.optimizer here", "train.optimizer"),
        ("use_liger_kernel", "this is model.kernels here", "model.kernels"),
        ("torch_compile", "did you mean train.torch_compile?", "train.torch_compile"),
        ("compile", "this is train.torch_compile here", "train.torch_compile"),
        ("fsdp", "ddp, fsdp, hsdp, zero2 or zero3", "train.sharding"),
        ("zero_stage", "zero2 or zero3", "train.sharding"),
        ("deepspeed", "did you mean train.deepspeed?", "train.deepspeed"),
        ("ds_config", "with train.sharding: zero2 or zero3", "train.deepspeed"),
        ("train.tensor_parallel", "train.sharding divides the weights", ""),
        ("pp_size", "docs/scale.md", ""),
        ("rlhf_type", "dpo is what there is of preferences", "task"),
        ("rl", "this is task here", "task"),
        ("beta", "did you mean dpo.beta?", "dpo.beta"),
        ("dpo_beta", "this is dpo.beta here", "dpo.beta"),
        ("pref_beta", "this is dpo.beta here", "dpo.beta"),
        ("dpo.reference_policy_kl_penalty", "this is dpo.beta here", "dpo.beta"),
        ("dpo.loss_type", "-log sigmoid of the difference of the rewards; no other", ""),
        ("pref_ftx", "none added to it", ""),
        ("dpo.label_smoothing", "not available", ""),
        ("ref_model", "the model of model.name itself, before it is trained", ""),
        ("precompute_ref_log_probs", "no second model is loaded", ""),
        ("sync_ref_model", "from first step to last", ""),
        ("max_prompt_length", "of each sequence, which is the prompt with one answer", "data.max_length"),
        ("max_completion_length", "this is data.max_length here", "data.max_length"),
        ("desirable_weight", "single judged answers (KTO) are not", ""),
        ("reward_model", "nothing by rewards", ""),
        ("num_labels", "their number follows", "data.labels"),
        ("IMAGE_MAX_TOKEN_NUM", "this is data.image_max_tokens here", "data.image_max_tokens"),
        ("max_pixels", "tokens, not pixels", "data.image_max_tokens"),
        ("freeze_vit", "what is not named is frozen", "train.parts"),
        ("freeze_aligner", "projector", "train.parts"),
        ("task_type", "seq_cls and text-classification are classify", "task"),
        ("val_set_size", "{fraction: 0.02}", "data.eval"),
        ("lora.lora_alpha", "this is lora.alpha here", "lora.alpha"),
        ("bf16", "bfloat16", "model.dtype"),
        ("fp16", "fp16: true is dtype: float16", "model.dtype"),
        ("warmup_ratio", "below 1", "train.warmup_steps"),
        # a known name in the wrong place
        ("learning_rate", "did you mean train.learning_rate?", "train.learning_rate"),
        ("train.max_length", "did you mean data.max_length?", "data.max_length"),
        ("train.output_dir", "did you mean output_dir (at the top level)?", "output_dir"),
        ("every", "did you mean eval.every or checkpoint.every?", ""),
        # slips
        ("trian", "did you mean train?", "train"),
        ("data.max_lenght", "did you mean data.max_length?", "data.max_length"),
        ("learning_rte", "did you mean train.learning_rate?", "train.learning_rate"),
        ("eval.zzz", "eval has every, on_start, early_stopping_patience", ""),
        ("zzz", "the top level has name, task, model", ""),
    ],
)
def test_guesses(key: str, hint: str, field: str) -> None:
    found = guess(RunSpec, tuple(key.split(".")), RENAMES)
    assert hint in found.hint
    assert found.field == field
