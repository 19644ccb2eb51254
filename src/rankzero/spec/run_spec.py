"""RunSpec: what to train, on what, how. Knows nothing about machines, processes or files on disk.

Every section is frozen and refuses unknown keys. Field docstrings are the reference: the JSON schema and the
comments of `rankzero init` are made from them.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from rankzero.spec.names import RUN_NAME_PATTERN, URL_PATTERN
from rankzero.spec.row_formats import Reasoning as Reasoning
from rankzero.spec.row_formats import RowFormat as RowFormat
from rankzero.spec.shardings import SHARDINGS
from rankzero.spec.tasks import TASKS, ModelUse, TaskSection

_PositiveInt = Annotated[int, Field(ge=1)]


def product(value: object) -> object:
    """[2, 8, 4] is 64, also where a variable in quotes makes a factor text. Anything else stays as it stands, for the
    field to judge."""
    if not isinstance(value, list | tuple) or not value:
        return value
    factors = [int(factor) if isinstance(factor, str) and factor.isdecimal() else factor for factor in value]
    whole = [factor for factor in factors if type(factor) is int and factor >= 1]
    return math.prod(whole) if len(whole) == len(factors) else value


def hub_id(name: str) -> str:
    """`hf://org/name`, as Kubeflow's initializers want it, is org/name; anything else stays as it stands: one word
    alone would be a directory that is here, and whoever writes hf:// means none."""
    return re.sub(r"^hf://(\w[\w.-]*/\w[\w.-]*)$", r"\1", name)


BatchSize = Annotated[_PositiveInt, BeforeValidator(product, json_schema_input_type=_PositiveInt | list[_PositiveInt])]
"""A whole number of at least 1; a list of such numbers stands for their product."""


Dtype = Literal["auto", "float32", "bfloat16", "float16"]
OverLength = Literal["truncate", "drop"]
TrainOn = Literal["all_turns", "last_turn"]
Attention = Literal["auto", "eager", "sdpa", "varlen", "flex_attention", "flash_attention_2", "flash_attention_3"]
Quantization = Literal["none", "nf4", "fp8"]
Part = Literal["language", "experts", "router", "projector", "vision_tower"]
Parts = Literal["auto"] | tuple[Part, ...]
LearningRateShape = Literal["linear", "cosine", "constant"]
if TYPE_CHECKING:
    Task = str
    Metric = str
    Sharding = str
else:  # the names that spec/tasks.py and spec/shardings.py have, for the schema and for suggestions
    Task = Literal[tuple(TASKS)]
    Metric = Literal["eval_loss", *dict.fromkeys(name for task in TASKS.values() for name in task.metrics)]
    Sharding = Literal["auto", *SHARDINGS]

PositiveInt = Annotated[int, Field(ge=1)]
Every = Literal["epoch"] | PositiveInt


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys, docstrings become descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_default=True,  # a default of 16 for a float is 16.0, as it is when written
    )


class ModelSpec(Section):
    """Which weights and tokenizer, and how they are loaded."""

    name: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True), AfterValidator(hub_id)]
    """Hub id (`Qwen/Qwen3-8B`, `hf://Qwen/Qwen3-8B`), a local directory in Hugging Face format, or a .gguf file."""
    revision: str | None = None
    """Hub branch, tag or commit; absent: the default branch."""
    local_dir: str | None = None
    """Take the weights from this directory instead of the Hub; `name` is then only a name."""
    tokenizer_dir: str | None = None
    """Take the tokenizer from this directory; absent: from where the weights are."""
    local_files_only: bool = False
    """Never use the network, also for data, as TRANSFORMERS_OFFLINE=1 does."""
    dtype: Dtype = "auto"
    """Compute precision. auto: bfloat16 where the device computes it natively, float16 on other GPUs (V100, T4), else
    float32. float16 has a loss scale that adapts itself; weights that are trained are float32 beside it."""
    attention: Attention = "auto"
    """Attention implementation. varlen: torch's own for rows laid end to end. auto: the fastest that is installed, or
    for a model with attention dropout one that drops the same in every layout."""
    quantization: Quantization = "none"
    """Hold the frozen base in fewer bits under adapters. nf4: 4-bit NormalFloat with double quantisation (QLoRA);
    fp8: 8-bit floats."""
    kernels: Literal["none", "liger", "hub"] = "none"
    """Fused layers. liger: the package liger-kernel; hub: kernels that transformers fetches from the Hub."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    trust_pickle: bool = False
    """Load pytorch_model.bin; unpickling runs code of whoever made the file."""


class SourceSpec(Section):
    """Rows from one place."""

    path: Annotated[str, StringConstraints(min_length=1)]
    """A file (JSONL, JSON, CSV, TSV, Parquet; also .gz and .zst), a directory or a pattern of them, a URL (hf://, s3://,
    https://), or a Hub data set `org/name:subset[split]`; `[train[:1%]]` is a part of a split. `#500` at the end is
    a sample of 500 rows."""
    format: RowFormat = "auto"
    """Row shape. auto: decided row by row from its keys."""
    columns: dict[str, str] = {}
    """Names in the data by the names of the row shape, where they differ: {prompt: question, completion: reply}."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """How often an epoch has these rows: 0.5 is a random half of them, 2 is each of them twice. In data.train alone."""
    sample: PositiveInt | None = None
    """Only this many rows, drawn without repetition by train.seed."""
    image_root: str | None = None
    """Directory that image paths are relative to; absent: the directory of the file."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first line of CSV and TSV names the columns. false: they are column_1, column_2 and so on. auto: it
    does, and one that looks like a row is an error."""


class EvalFraction(Section):
    """Hold out a share of the training rows for evaluation."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of the rows, at least one row; which rows follows from train.seed alone."""


class DataSpec(Section):
    """Which rows, and which of their tokens are trained."""

    train: Annotated[str, StringConstraints(min_length=1)] | Annotated[tuple[SourceSpec, ...], Field(min_length=1)]
    """Rows to train on: a path as in `data.train[].path`, or a list of {path, format, columns, weight, sample}."""
    eval: (
        Annotated[str, StringConstraints(min_length=1)]
        | EvalFraction
        | Annotated[tuple[SourceSpec, ...], Field(min_length=1)]
        | None
    ) = None
    """The same but for `weight`, since each row is evaluated once; or {fraction: 0.02} of the training rows, split by
    group; absent: no evaluation."""
    max_length: Annotated[int, Field(ge=8)] = 2048
    """Tokens per row at most."""
    over_length: OverLength = "truncate"
    """What happens to a longer row: truncate (keep its first max_length tokens) or drop. Both are counted."""
    assistant_only_loss: bool = True
    """Chat rows: train on the assistant's turns and their end token only. false: on every token."""
    train_on: TrainOn = "all_turns"
    """Chat rows: which of the assistant's turns are trained where the row itself does not say. last_turn: the last."""
    reasoning: Reasoning = "keep"
    """The reasoning of answers (`<think>…</think>`, `reasoning_content`). keep: all that is trained, or an error; last:
    only that of turns behind the last question; drop: none. What is left out is counted."""
    deduplicate: bool = False
    """Drop rows that are token for token the same as an earlier one."""
    streaming: bool = False
    """Read the training rows where they lie and tokenise them while they are trained on, instead of all of them before:
    for sources that fit no disk. Needs train.max_steps."""
    shuffle_buffer_size: PositiveInt = 10_000
    """With streaming: how many rows are shuffled among each other, taken from several files at once."""
    streaming_cache_gb: Annotated[float, Field(gt=0)] = 4.0
    """With streaming: how much disk, in GB, tokenised rows take at most on each node."""
    labels: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    """task classify: the classes by number, [negative, positive]. Absent: those of the training rows, sorted.
    Rows whose label is -1 have none and are left out, unless -1 is listed here."""
    image_max_tokens: PositiveInt | None = None
    """Most tokens that one image becomes; larger images are scaled down. Absent: as the model's processor has it."""
    chat_template: str | None = None
    """A Jinja file to use instead of the tokenizer's chat template, or `plain`: rankzero's own, for tokenizers without
    one. It is saved with the result. Absent: the tokenizer's, and plain with a warning where it has none."""
    chat_template_kwargs: dict[str, Any] = {}
    """What the chat template is given besides the turns: {enable_thinking: false}, {documents: […]}."""


class LoraSpec(Section):
    """Low-rank adapters through peft. Leave the section out for a full fine-tune."""

    r: PositiveInt = 8
    """Rank."""
    alpha: Annotated[float, Field(gt=0)] = 16
    """The adapter's output is scaled by alpha / r (by alpha / sqrt(r) with use_rslora)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the adapter's input: the same values in every layout, by train.seed, step, row and position."""
    target_modules: Literal["auto", "all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "auto"
    """Module names. auto: the attention projections of the architecture; all-linear: every linear layer."""
    modules_to_save: tuple[str, ...] = ()
    """Names of modules that are trained in full beside the adapters and saved with them: embed_tokens, lm_head, norms.
    """
    trainable_token_indices: tuple[Annotated[int, Field(ge=0)] | str, ...] = ()
    """Tokens, by their text or number, whose embeddings are trained, and no others: those that mean something new."""
    use_dora: bool = False
    """Weight-decomposed adapters (DoRA)."""
    use_rslora: bool = False
    """Rank-stabilised scaling (rsLoRA)."""


class DpoSpec(Section):
    """Direct preference optimisation: the better answer of each row becomes likelier against the worse one."""

    beta: Annotated[float, Field(gt=0)] = 0.1
    """How closely the model is kept to its reference, itself before its first step: an answer's reward is beta × log of
    how much likelier it has become. The lower, the further it may go."""


class TrainSpec(Section):
    """The optimisation. A step is an optimizer step."""

    @property
    def meets_in_passes(self) -> bool:
        """Whether processes wait for each other within passes, whatever the sharding."""
        return self.context_parallel > 1 or self.expert_parallel > 1

    num_train_epochs: Annotated[float, Field(gt=0)] = 1
    """Passes over the training rows; fractions are allowed. Ignored where max_steps is set."""
    max_steps: PositiveInt | None = None
    """Stop after this many steps instead."""
    global_batch_size: BatchSize = 16
    """Sequences per step over all processes, whatever the hardware; accumulation follows from it. A list is a product:
    [2, 8, 4] is 64."""
    micro_batch_tokens: Literal["auto"] | PositiveInt = "auto"
    """Most tokens (padding included) in one forward pass on one device. Changes speed and memory, never the maths. On a
    CPU several passes may be computed at the same time: auto divides its tokens among them, a number is each one's."""
    learning_rate: Literal["auto"] | Annotated[float, Field(gt=0)] = "auto"
    """Peak learning rate. auto: 2e-4 with adapters, 2e-5 for a full fine-tune; 1e-5 and 1e-6 for task dpo."""
    lr_scheduler_type: LearningRateShape = "linear"
    """Shape after warm-up; linear and cosine fall towards zero, which the step after the last one would have."""
    warmup_steps: Annotated[float, Field(ge=0)] = 0.03
    """Steps of linear warm-up: step i of W has i / W of the peak. Below 1: a share of all steps, rounded down. Cut to
    the steps that there are, with a warning."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW beta2."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW epsilon."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip the global gradient norm to this; null: do not clip."""
    parts: Literal["auto"] | Annotated[tuple[Part, ...], Field(min_length=1)] = "auto"
    """Which parts of the model are trained (by adapters, where there are any). auto: with adapters the language model
    without its experts; in a full fine-tune also its experts. Routers, vision towers and projectors only when named."""
    router_aux_loss_coef: Literal["auto"] | Annotated[float, Field(ge=0)] = "auto"
    """Where routers of experts are trained: what their load balancing loss is multiplied by. 0: without it. auto: what
    the model's config says."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Recompute activations in the backward pass to save memory. auto: where they would not fit, and where weights are
    spread over a network so slow that fewer, larger passes save more time than that."""
    activation_offloading: bool = False
    """Keep activations in the machine's memory between forward and backward pass."""
    padding_free: Literal["auto"] | bool = "auto"
    """Lay the rows of a pass end to end instead of padding them; no row sees another. auto: where attention can."""
    context_parallel: PositiveInt = 1
    """How many neighbouring processes share the tokens of each pass: for rows that are too long for one device. Their
    number divides that of all processes. Changes speed and memory, never the maths."""
    expert_parallel: PositiveInt = 1
    """How many neighbouring processes hold the experts of a mixture together, each some of them whole: tokens travel to
    the experts that they visit. Their number divides that of all processes and that of the experts. Changes speed and
    memory, never the maths."""
    torch_compile: bool = False
    """Compile the model's blocks. Slow to start, then faster."""
    sharding: Sharding = "auto"
    """How the model is spread over processes. ddp: a replica on each; fsdp: FSDP2 over all; hsdp: FSDP2 over those of a
    node, a copy on each node; zero2, zero3: DeepSpeed. auto: ddp where a replica fits, else fsdp, or hsdp where a copy
    fits on a node and that is faster by far."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What sharding keeps in the machine's memory instead of the GPU's. optimizer: with zero2 and zero3."""
    deepspeed: str | None = None
    """Your own DeepSpeed JSON for zero2 or zero3; absent: made from this spec. Batch sizes in it are not used."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit: moments in 8 bits (bitsandbytes)."""
    master_weights: Literal["float32", "kahan", "stochastic_rounding"] = "float32"
    """Full fine-tuning in bfloat16: what keeps small updates from being lost. float32: weights are held in float32;
    the others hold them in bfloat16, with a compensation term or by rounding at random."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Decides row order, adapter initialisation and dropout."""
    max_nonfinite_steps: Annotated[int, Field(ge=0)] = 0
    """Skip up to this many steps whose loss or gradient is NaN or Inf; the next one ends the run."""
    collective_timeout_seconds: PositiveInt = 600
    """How long a process waits for the others within a step or an evaluation before it leaves with 69. Loading, saving
    and the first step of a start, which compiles, may take 30 minutes."""


class EvalSpec(Section):
    """When to evaluate on data.eval, and what the model is asked then."""

    every: Every = "epoch"
    """`epoch`, or a number of steps. The end of the run is always evaluated."""
    on_start: bool = False
    """Also evaluate before the first step."""
    early_stopping_patience: PositiveInt | None = None
    """End the run after this many evaluations in a row without a new best."""
    prompts: (
        Annotated[str, StringConstraints(min_length=1)]
        | Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], Field(min_length=1)]
        | None
    ) = None
    """What the model is asked before the first step, at each evaluation and at the end: a list of texts, or a file of
    lines or of rows as in `data.eval`, whose last answers are left out. 200 at most."""
    max_new_tokens: PositiveInt = 128
    """Longest answer to a prompt, in tokens."""


class CheckpointSpec(Section):
    """When to save, what to keep, and which checkpoint becomes the result."""

    every: Every = 500
    """`epoch`, or a number of steps. The end of the run and every new best are always saved. Where the step that is due
    was skipped (train.max_nonfinite_steps), the next finite one is."""
    keep: PositiveInt = 3
    """Newest checkpoints to keep; the best one is kept besides."""
    best_metric: Metric = "eval_loss"
    """What `best` follows. Higher is better: accuracy and macro_f1 (task classify), reward_accuracy, reward_margin and
    reward_chosen (task dpo); lower: eval_loss (every task), perplexity (task sft), reward_rejected (task dpo)."""
    final: Literal["best", "last"] = "best"
    """Which checkpoint final/ is made from; best falls back to last where nothing is evaluated."""


class TrackingSpec(Section):
    """Where metrics go besides metrics.jsonl, which is always written."""

    tensorboard: bool = True
    """Write TensorBoard event files to events/."""
    mlflow: bool = False
    """Send settings, metrics, files and the adapter to the MLflow of MLFLOW_TRACKING_URI: a server, or sqlite:///FILE."""
    langfuse: bool = False
    """Send a trace of the run to the Langfuse of LANGFUSE_HOST, with LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY."""
    wandb: bool = False
    """Send settings, metrics and answers to Weights & Biases, with WANDB_API_KEY; WANDB_MODE=offline: into files."""
    trackio: bool = False
    """Send the same to the Trackio of TRACKIO_SERVER_URL, or into Trackio's files on this machine."""


class RunSpec(Section):
    """One run: the same file on a laptop, on every GPU of a machine, and on a cluster."""

    name: Annotated[str, StringConstraints(pattern=RUN_NAME_PATTERN)] | None = None
    """Name of the run and of its directory. Absent: made from model, method and a hash of the spec."""
    task: Task = "sft"
    """sft: fine-tune a language or vision-language model on its answers; classify: put texts into classes; dpo: prefer
    the chosen of two answers to the rejected one."""
    model: ModelSpec
    data: DataSpec
    lora: LoraSpec | None = None
    dpo: DpoSpec | None = None
    """task dpo: absent, or `dpo: {}`, takes its defaults."""
    train: TrainSpec = TrainSpec()
    eval: EvalSpec = EvalSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    tracking: TrackingSpec = TrackingSpec()
    output_dir: Annotated[str, StringConstraints(min_length=1)] = "runs"
    """The run directory is <output_dir>/<name>."""
    output_url: Annotated[str, StringConstraints(pattern=URL_PATTERN)] | None = None
    """Object store that the run directory is copied to as checkpoints are committed, as <output_url>/<name>, and filled
    from where it holds a newer checkpoint than this machine. Any fsspec URL: s3://bucket/prefix, gs://…"""
    resume: Literal["refuse", "new", "continue"] = "refuse"
    """Where the run directory holds checkpoints of another setting. refuse: an error that names every difference; new:
    train beside it, under a name made from the setting; continue: go on from them, with the differences. The same
    setting always continues."""

    @property
    def task_section(self) -> TaskSection:
        """What its task needs of data and model."""
        return TASKS[self.task]

    @property
    def beta(self) -> float:
        """Of task dpo."""
        return (self.dpo or DpoSpec()).beta

    @property
    def keeps_reference(self) -> bool:
        """Whether trained weights are compared with what they were, which then lies beside them."""
        return self.task_section.trains == "preferences" and self.lora is None

    @property
    def row_length(self) -> int:
        """Tokens of a row at most, in all its sequences."""
        return self.data.max_length * self.task_section.sequences

    @property
    def own_code(self) -> ModelUse | None:
        """The use for which the model's own code may run; None where none may."""
        return self.task_section.uses if self.model.trust_remote_code else None
