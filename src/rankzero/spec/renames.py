"""What other trainers and the seeds call our fields, and what they have that is not here. A table; knows no spec."""

from __future__ import annotations

from dataclasses import dataclass

_BATCH = (
    "it is sequences per step over all processes: batch × accumulation × processes, so 2 × 8 × 4 is 64, or [2, 8, 4]"
)
_ADAPTER = "write a lora section for adapters, lora: {} for the defaults; leave it out for a full fine-tune"
_SHARE = "as {fraction: 0.02}"
_HARDWARE = "not part of a run spec: rankzero train RUN.yaml --nproc-per-node N, or cluster.yaml"
_ADAMW = "adamw or adamw_8bit; train.weight_decay, adam_beta1, adam_beta2 and adam_epsilon set it"
_END_TO_END = "rows of a pass laid end to end, none seeing another; which rows share a step does not change"
_BY_LENGTH = (
    "not needed: rows of like length share a forward pass of up to train.micro_batch_tokens, so there is next to no "
    "padding"
)
_SAME_COMMAND = "not needed: the same command continues the run from its newest intact checkpoint"
_NF4 = "nf4 is 4 bits with double quantisation (QLoRA), fp8 is 8 bits"
_NO_INT8 = "8-bit integers are not available: nf4 has 4 bits, fp8 8-bit floats"
_NF4_IS_FIXED = (
    "not needed: model.quantization: nf4 is 4-bit NormalFloat, double quantisation, computing in model.dtype"
)
_PARTS = "a list of what is trained: language, experts, router, projector, vision_tower; what is not named is frozen"
_TASKS = (
    "sft, classify or dpo: seq_cls and text-classification are classify, causal_lm and text-generation are sft, "
    "preferences are dpo"
)
_PIXELS = "it counts tokens, not pixels: Qwen-VL has one for 28 × 28 or 32 × 32 of them"
_ROUTER = "list router to train it; it is frozen otherwise"
_INVERTED = "with the opposite value: false there is true here"
_ROWS = (
    "rows are read as {messages}, {prompt, completion}, {prompt, chosen, rejected} or {text}: see rankzero data check"
)
_NO_TENSOR_PARALLEL = (
    "not available: train.sharding divides the weights, train.context_parallel the rows; docs/scale.md has the sums"
)
_PREFERENCES = "dpo is what there is of preferences"
_NO_REWARDS = "not available: answers and preferences are trained (task sft, dpo), nothing by rewards (PPO, GRPO)"
_NO_JUDGED = "not available: preferences are trained in pairs (task dpo), single judged answers (KTO) are not"
_SIGMOID = (
    "not available: the loss of task dpo is the paper's, -log sigmoid of the difference of the rewards; no other, and "
    "none added to it"
)
_OF_PREFERENCES = "of preferences the loss is that of task dpo alone: orpo, simpo, cpo and ipo have others"
_REFERENCE = "not needed: the reference of task dpo is the model of model.name itself, before it is trained"
_REFERENCE_STAYS = "not available: the reference of task dpo is the first model from first step to last"
_COMPUTED_ALONG = "not needed: the reference has a pass ahead of the one that trains, and no second model is loaded"
_EACH_SEQUENCE = "of each sequence, which is the prompt with one answer; there is no other limit"
_EVERY = "`epoch`, or a number of steps"
_SHUFFLED = "not needed: rows are shuffled anew each epoch, from train.seed"

_TABLE: tuple[tuple[str, str, str], ...] = (
    # field here ("" where there is none), note, names elsewhere
    ("name", "", "run_name run_id experiment_name job_name wandb_run_name"),
    ("output_dir", "", "output out out_dir output_path save_dir checkpoint_output_dir"),
    ("task", "", "stage train_stage"),
    ("task", _PREFERENCES, "rlhf_type rl rlhf"),
    ("task", _TASKS, "task_type task_name problem_type seq_cls sequence_classification causal_lm"),
    (
        "model.name",
        "",
        "model_name_or_path model_name base_model model_id model_uri model_id_or_path pretrained_model "
        "pretrained_model_name_or_path hf_model checkpoint_dir",
    ),
    ("model.local_dir", "", "model_local_dir model_dir model_path local_model_dir"),
    (
        "model.tokenizer_dir",
        "",
        "tokenizer tokenizer_name tokenizer_name_or_path tokenizer_path tokenizer_local_dir tokenizer_config",
    ),
    ("model.revision", "", "model_revision revision_of_model hub_revision"),
    ("model.local_files_only", "", "offline local_only"),
    ("model.dtype", "", "torch_dtype precision mixed_precision model_dtype"),
    ("model.dtype", "bf16: true is dtype: bfloat16", "bf16 bfloat16"),
    ("model.dtype", "fp16: true is dtype: float16", "fp16 float16"),
    (
        "model.attention",
        "",
        "attn_implementation attn_impl flash_attention flash_attn use_flash_attention use_flash_attention_2 "
        "sdp_attention xformers_attention",
    ),
    (
        "model.quantization",
        _NF4,
        "load_in_4bit quantize quantization_bit quant_bits quant_method qlora bits bnb_4bit_quant_type "
        "quantization_config bnb_config",
    ),
    ("model.quantization", _NO_INT8, "load_in_8bit int8"),
    ("", _NF4_IS_FIXED, "bnb_4bit_compute_dtype bnb_4bit_use_double_quant bnb_4bit_quant_storage double_quantization"),
    (
        "model.kernels",
        "",
        "use_liger_kernel use_liger liger_kernel enable_liger_kernel liger use_kernels kernel_config",
    ),
    (
        "data.train",
        "",
        "dataset datasets dataset_path dataset_name dataset_id dataset_repo_id train_file train_data train_dataset "
        "train_path data_path data_file data_files training_data",
    ),
    (
        "data.eval",
        "",
        "eval_data eval_dataset eval_file eval_path val_data val_dataset val_file val_path validation validation_file "
        "valid_file test_datasets",
    ),
    (
        "data.eval",
        _SHARE,
        "val_set_size val_size eval_size test_size val_split val_split_fraction validation_split split_dataset_ratio",
    ),
    (
        "data.max_length",
        "",
        "max_seq_length max_seq_len max_sequence_length sequence_len sequence_length seq_len seq_length cutoff_len "
        "max_len model_max_length block_size context_length",
    ),
    (
        "data.max_length",
        _EACH_SEQUENCE,
        "max_prompt_length max_completion_length max_target_length max_response_length",
    ),
    ("data.streaming", "", "stream iterable lazy streaming_mode"),
    ("data.shuffle_buffer_size", "", "buffer_size shuffle_buffer shuffle_window shuffle_block_size"),
    ("data.streaming_cache_gb", "in GB", "streaming_cache cache_limit stream_cache_gb"),
    ("data.over_length", "", "truncation truncation_strategy truncation_mode excess_length_strategy overflow"),
    ("data.assistant_only_loss", "", "completion_only_loss mask_prompt train_on_responses_only"),
    ("data.assistant_only_loss", _INVERTED, "train_on_inputs train_on_input train_on_prompt"),
    ("data.train_on", "all_turns or last_turn", "mask_history"),
    ("data.reasoning", "keep, last or drop", "split_thinking"),
    ("data.chat_template_kwargs", "", "template_kwargs"),
    ("data.chat_template_kwargs", "in it: {enable_thinking: false}", "enable_thinking"),
    ("data.labels", "", "id2label label2id label_names label_list class_names classes"),
    ("data.labels", "their number follows from them", "num_labels num_classes"),
    ("data.image_max_tokens", "", "image_max_token_num max_image_tokens image_token_limit max_visual_tokens"),
    ("data.image_max_tokens", _PIXELS, "max_pixels image_max_pixels"),
    ("data.chat_template", "", "chat_template_path chat_template_jinja template"),
    ("lora", _ADAPTER, "adapter peft peft_config lora_config use_peft use_lora finetuning_type tuner_type train_type"),
    ("lora.r", "", "lora_r lora_rank rank"),
    ("lora.alpha", "", "lora_alpha"),
    ("lora.dropout", "", "lora_dropout"),
    ("lora.dropout", "0 unless it is set; task dpo trains without any other dropout", "disable_dropout"),
    (
        "lora.target_modules",
        "",
        "lora_target lora_targets lora_modules lora_target_modules lora_attn_modules modules_to_adapt",
    ),
    ("lora.target_modules", "all-linear takes every linear layer", "lora_target_linear apply_lora_to_mlp"),
    ("lora.modules_to_save", "", "lora_modules_to_save additional_target"),
    ("lora.trainable_token_indices", "", "trainable_tokens lora_trainable_tokens"),
    ("lora.use_dora", "", "peft_use_dora dora"),
    ("lora.use_rslora", "", "peft_use_rslora rslora"),
    ("dpo.beta", "", "dpo_beta pref_beta rl_beta reference_policy_kl_penalty ref_policy_kl_penalty"),
    ("train.num_train_epochs", "", "num_epochs epochs epoch n_epochs max_epochs"),
    ("train.max_steps", "", "max_train_steps train_steps training_steps max_steps_per_epoch max_iters num_steps"),
    (
        "train.global_batch_size",
        _BATCH,
        "micro_batch_size per_device_train_batch_size batch_size train_batch_size batch total_batch_size "
        "gradient_accumulation_steps gradient_accumulation gradient_accumulation_iters accumulate_grad_batches "
        "grad_accum grad_acc per_device_batch_size per_gpu_train_batch_size device_batch_size",
    ),
    ("train.learning_rate", "", "lr max_lr peak_lr learning_rates"),
    ("train.lr_scheduler_type", "", "scheduler lr_scheduler lr_schedule scheduler_type lr_decay_style"),
    (
        "train.warmup_steps",
        "below 1 it is a share of all steps",
        "warmup_ratio warmup lr_warmup_steps lr_warmup_ratio lr_warmup_fraction num_warmup_steps warmup_fraction",
    ),
    ("train.max_grad_norm", "", "grad_clip gradient_clip gradient_clipping clip_grad_norm clip_grad gradient_clip_val"),
    (
        "train.gradient_checkpointing",
        "",
        "activation_checkpointing enable_activation_checkpointing grad_checkpoint grad_checkpointing use_checkpoint",
    ),
    (
        "train.sharding",
        "ddp, fsdp, hsdp, zero2 or zero3",
        "fsdp fsdp_config fsdp_version strategy parallelism_plugin distributed_type zero_stage ddp parallelism",
    ),
    (
        "train.deepspeed",
        "with train.sharding: zero2 or zero3; absent: made from the spec",
        "deepspeed_config ds_config",
    ),
    (
        "train.offload",
        "",
        "cpu_offload fsdp_offload_params offload_optimizer offload_param offload_params optimizer_offload",
    ),
    (
        "train.parts",
        _PARTS,
        "freeze_vit freeze_llm freeze_aligner freeze_vision_tower freeze_multi_modal_projector freeze_backbone "
        "freeze_parameters trainable_parameters unfrozen_parameters train_vision_tower finetune_vision_layers "
        "finetune_language_layers tune_mm_mlp_adapter tune_mm_vision tune_mm_llm",
    ),
    ("train.parts", _ROUTER, "train_router freeze_router"),
    (
        "train.router_aux_loss_coef",
        "",
        "moe_aux_loss_coef moe_aux_loss_coeff aux_loss_coef aux_loss_alpha router_aux_loss router_aux_loss_factor "
        "load_balancing_loss_coef",
    ),
    ("train.activation_offloading", "", "enable_activation_offloading offload_activations activations_offload"),
    (
        "train.padding_free",
        _END_TO_END,
        "packing sample_packing packed neat_packing eval_sample_packing packing_strategy batch_flattening",
    ),
    (
        "train.context_parallel",
        "",
        "cp context_parallel_size context_parallel_degree cp_size cp_degree parallelism_config_cp_size "
        "sequence_parallel sequence_parallel_size sequence_parallel_degree sp_size ulysses_sequence_parallel_size",
    ),
    (
        "train.expert_parallel",
        "",
        "ep expert_parallel_size expert_model_parallel_size ep_size ep_degree expert_parallel_degree moe_ep_size",
    ),
    ("train.torch_compile", "", "compile compile_model use_compile torch_compile_backend torch_compile_mode jit"),
    (
        "train.optimizer",
        _ADAMW,
        "optim optimizer_name optimizer_type adam adamw adamw_torch adamw_torch_fused adafactor sgd",
    ),
    ("train.optimizer", "adamw_8bit", "adamw_bnb_8bit paged_adamw_8bit paged_adamw_32bit use_8bit_adam adamw_8bit"),
    (
        "train.master_weights",
        "",
        "pure_bf16 stochastic_rounding kahan_summation use_kahan_summation",
    ),
    ("train.seed", "", "random_seed data_seed set_seed"),
    ("train.collective_timeout_seconds", "", "ddp_timeout nccl_timeout timeout_minutes train_timeout_seconds"),
    (
        "eval.every",
        _EVERY,
        "eval_steps eval_every eval_interval eval_freq evals_per_epoch evaluation_strategy eval_strategy "
        "val_check_interval",
    ),
    ("eval.on_start", "", "eval_on_start initial_validation"),
    ("eval.early_stopping_patience", "", "early_stopping early_stopping_rounds patience"),
    (
        "checkpoint.every",
        _EVERY,
        "save_steps save_every save_interval save_strategy save_freq saves_per_epoch checkpoint_every "
        "checkpointing_steps",
    ),
    ("checkpoint.keep", "", "save_total_limit keep_last_n max_checkpoints keep_checkpoints"),
    ("checkpoint.best_metric", "", "metric_for_best_model"),
    ("checkpoint.final", "best or last", "load_best_model_at_end"),
    (
        "tracking.tensorboard",
        "",
        "report_to logger use_tensorboard tensorboard_dir logging_dir tensorboard_log_dir tracker",
    ),
    ("", _BY_LENGTH, "pad_to_sequence_len group_by_length length_grouped_sampling pad_to_max_length"),
    ("", "evaluation fills its passes under train.micro_batch_tokens", "per_device_eval_batch_size eval_batch_size"),
    ("", _SAME_COMMAND, "resume_from_checkpoint auto_resume_from_checkpoints resume_from ckpt_path"),
    ("", "not needed: a run never overwrites another; give it another name", "overwrite_output_dir"),
    (
        "",
        _HARDWARE,
        "num_nodes nnodes nproc nproc_per_node num_gpus gpus devices num_processes world_size local_rank node_rank",
    ),
    ("", "not needed: the model's own config says it", "model_type tokenizer_type is_llama_derived_model"),
    ("", "not needed: every step is logged to metrics.jsonl", "logging_steps log_every_n_steps log_interval"),
    ("tracking.mlflow", "true or false; MLFLOW_TRACKING_URI says where", "use_mlflow mlflow_tracking_uri"),
    ("tracking.langfuse", "true or false; LANGFUSE_HOST says where", "use_langfuse langfuse_host"),
    (
        "tracking.wandb",
        "true or false; WANDB_PROJECT and WANDB_ENTITY say where",
        "use_wandb wandb_project wandb_entity wandb_mode",
    ),
    ("tracking.trackio", "true or false; TRACKIO_SERVER_URL says where", "use_trackio trackio_space_id"),
    ("", "not available; metrics.jsonl is written, and the trackers under tracking", "swanlab use_swanlab"),
    ("", "not needed: rankzero train trains, and evaluates where data.eval is set", "do_train do_eval"),
    ("", "not needed: rows are prepared once and kept", "num_workers dataloader_num_workers dataset_num_proc"),
    ("", "not needed: rows are prepared once and kept", "preprocessing_num_workers dataset_prepared_path"),
    ("", _SHUFFLED, "shuffle shuffle_data dataset_shuffle"),
    ("", _ROWS, "type field_messages prompt_template dataset_text_field split dataset_split"),
    ("", "not available: cut the file instead", "limit"),
    (
        "",
        _NO_TENSOR_PARALLEL,
        "tensor_parallel tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size tp tp_size tp_degree "
        "pipeline_parallel pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size pp pp_size",
    ),
    (
        "",
        _SIGMOID,
        "loss_type pref_loss dpo_loss_type dpo_loss loss_weights label_smoothing dpo_label_smoothing rpo_alpha "
        "pref_ftx pref_bco_weight ld_alpha f_divergence_type f_alpha_divergence_coef use_weighting dpo_use_weighting "
        "dpo_norm_loss sft_loss_weight preference_loss_weight sft_average_log_probs preference_average_log_probs "
        "orpo_alpha cpo_alpha simpo_gamma",
    ),
    (
        "",
        _REFERENCE,
        "ref_model reference_model ref_model_name ref_model_name_or_path ref_model_path ref_model_type "
        "ref_model_revision ref_model_init_kwargs ref_model_quantization_bit ref_model_adapters ref_adapter "
        "ref_adapters ref_adapter_name ref_checkpointer model_adapter_name rl_adapter_ref_model force_use_ref_model",
    ),
    ("", _REFERENCE_STAYS, "reference_free sync_ref_model ref_model_mixup_alpha ref_model_sync_steps"),
    ("", _COMPUTED_ALONG, "precompute_ref_log_probs precompute_ref_batch_size"),
    ("", _NO_JUDGED, "desirable_weight undesirable_weight kto_desirable_weight kto_undesirable_weight"),
    ("", _NO_JUDGED, "kto_chosen_weight kto_rejected_weight"),
    ("", _NO_REWARDS, "reward_model reward_model_adapters reward_funcs reward_weights num_generations"),
    ("", "not available", "neftune_noise_alpha loraplus_lr_ratio push_to_hub"),
)


_VALUES: tuple[tuple[str, str], ...] = (
    # value here, names elsewhere; a field that has no such value is not concerned
    ("float16", "fp16 f16 half"),
    ("bfloat16", "bf16 brain"),
    ("float32", "fp32 f32 tf32 float single full"),
    ("nf4", "4bit 4 int4 load_in_4bit bitsandbytes bnb qlora"),
    ("fp8", "float8 f8 float8_e4m3fn fp8_e4m3 finegrained_fp8"),
    ("flash_attention_2", "fa2 flash flash_attn flash_attention flash_attn_2"),
    ("flash_attention_3", "fa3 flash_attn_3"),
    ("flex_attention", "flex"),
    ("fsdp", "full_shard fsdp2"),
    ("hsdp", "hybrid_shard hybrid_sharding hybrid_fsdp hsdp2"),
    ("zero2", "stage2 zero_2 deepspeed_zero2 deepspeed_stage_2 ds2"),
    ("zero3", "stage3 zero_3 deepspeed_zero3 deepspeed_stage_3 ds3 deepspeed"),
    ("adamw", "adamw_torch adamw_torch_fused adamw_hf adamw_fused"),
    ("adamw_8bit", "adamw_bnb_8bit paged_adamw_8bit adamw8bit"),
    ("constant", "constant_with_warmup"),
    ("classify", "seq_cls sequence_classification text_classification classification"),
    ("sft", "causal_lm text_generation finetune fine_tune"),
    ("dpo", "rlhf rl preference preferences preference_tuning preference_optimization direct_preference_optimization"),
)

_NOT_HERE: tuple[tuple[str, str, str], ...] = (
    # the value here that is nearest, why it is another, names elsewhere; a field without the value is not concerned
    ("dpo", _OF_PREFERENCES, "orpo simpo cpo ipo"),
    ("dpo", _NO_JUDGED, "kto bco"),
    ("dpo", _NO_REWARDS, "grpo ppo gspo dapo rloo gkd rm reward reward_model reward_modeling"),
)


@dataclass(frozen=True, slots=True)
class Rename:
    """Where another tool's setting is here (`field`, "" where it has no place), and what to know about it."""

    field: str
    note: str

    @property
    def hint(self) -> str:
        """One line for the user."""
        here = f"this is {self.field} here" if self.field else ""
        return "; ".join(part for part in (here, self.note) if part)


def normalised(key: str) -> str:
    """Names are compared without regard to case and dashes: MAX_LEN and max-len are one."""
    return key.lower().replace("-", "_")


VALUES: dict[str, str] = {name: here for here, names in _VALUES for name in names.split()}
"""What a value is called here, by its `normalised` names elsewhere."""
NOT_HERE: dict[str, tuple[str, str]] = {name: (near, why) for near, why, names in _NOT_HERE for name in names.split()}
"""Values of other tools that are none here: by their `normalised` names the nearest that is, and what to know."""
RENAMES: dict[str, Rename] = {name: Rename(field, note) for field, note, names in _TABLE for name in names.split()}
