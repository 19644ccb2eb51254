"""Rules between fields: specs whose values are each fine but contradict each other. Pure; knows no files or lines."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rankzero.errors import Problem
from rankzero.spec.run_spec import RunSpec


def check(spec: RunSpec, doubtful: Collection[str] = ()) -> list[Problem]:
    """All contradictions, each at the field to change. Rules that look at a field in `doubtful` are left out."""
    return [
        problem
        for fields, rule in _RULES
        if not any(_touch(field, other) for field in fields for other in doubtful)
        for problem in rule(spec)
    ]


def _touch(field: str, other: str) -> bool:
    """Whether one is the other, or inside it."""
    return any(a == b or a.startswith((f"{b}.", f"{b}[")) for a, b in ((field, other), (other, field)))


def _warmup_is_whole(spec: RunSpec) -> list[Problem]:
    warmup = spec.train.warmup_steps
    if warmup < 1 or warmup == int(warmup):
        return []
    hint = "from 1 on it counts steps; below 1 it is a share of all steps"
    return [Problem(f"{warmup} is neither a share nor a whole number of steps", "train.warmup_steps", hint)]


def _warmup_ends(spec: RunSpec) -> list[Problem]:
    warmup, steps = spec.train.warmup_steps, spec.train.max_steps
    if steps is None or warmup < 1 or warmup < steps:
        return []
    hint = "lower it, or give a share of all steps such as 0.03"
    what = f"a warm-up of {warmup:g} steps never ends in a run of {steps} (train.max_steps)"
    return [Problem(what, "train.warmup_steps", hint)]


def _something_to_evaluate(spec: RunSpec) -> list[Problem]:
    if spec.data.eval is not None:
        return []
    hint = "set data.eval to a file or to {fraction: 0.02}"
    problems = []
    if spec.eval.early_stopping_patience is not None:
        problems.append(Problem("early stopping needs data.eval", "eval.early_stopping_patience", hint))
    if spec.eval.on_start:
        problems.append(Problem("there is nothing to evaluate without data.eval", "eval.on_start", hint))
    return problems


def _keywords_stand_alone(spec: RunSpec) -> list[Problem]:
    modules = spec.lora.target_modules if spec.lora is not None else ()
    words = [word for word in ("auto", "all-linear") if not isinstance(modules, str) and word in modules]
    hint = "write target_modules: {0}, not in a list"
    return [Problem(f"`{w}` is not the name of a module", "lora.target_modules", hint.format(w)) for w in words]


def _fits_the_task(spec: RunSpec) -> list[Problem]:
    problems = []
    classify = spec.task == "classify"
    if spec.data.labels is not None and not classify:
        problems.append(Problem("labels are for task classify", "data.labels", "set task: classify, or leave it out"))
    if spec.data.labels is not None and len(set(spec.data.labels)) < len(spec.data.labels):
        problems.append(Problem("a label stands twice", "data.labels", "name each class once"))
    metric = spec.checkpoint.best_metric
    if metric in ("accuracy", "macro_f1") and not classify:
        problems.append(Problem(f"{metric} is for task classify", "checkpoint.best_metric", "take eval_loss"))
    if metric == "perplexity" and classify:
        problems.append(Problem("perplexity is for task sft", "checkpoint.best_metric", "take accuracy or macro_f1"))
    if spec.train.padding_free is True and classify:
        hint = "leave it out: rows of like length share a pass"
        problems.append(Problem("padding_free is for task sft", "train.padding_free", hint))
    return problems


def _quantized_base_has_adapters(spec: RunSpec) -> list[Problem]:
    quantization = spec.model.quantization
    if quantization == "none":
        return []
    if spec.lora is None:
        what = f"{quantization} weights cannot be trained themselves"
        return [Problem(what, "model.quantization", "write a lora section: lora: {} for the defaults")]
    if spec.train.sharding == "zero3":
        hint = "take fsdp, zero2 or ddp"
        return [Problem(f"ZeRO-3 cannot spread {quantization} weights", "train.sharding", hint)]
    return []


def _sharding_options(spec: RunSpec) -> list[Problem]:
    sharding, offload = spec.train.sharding, spec.train.offload
    problems = []
    if offload != "none" and sharding in ("auto", "ddp"):
        hint = "set train.sharding to fsdp, zero2 or zero3, or leave offload out"
        problems.append(Problem(f"offload needs sharding, which is {sharding}", "train.offload", hint))
    if offload == "optimizer" and sharding == "fsdp":
        hint = "fsdp keeps all of it there (offload: all); zero2 and zero3 can keep the optimizer's state alone"
        problems.append(Problem("fsdp cannot offload the optimizer's state alone", "train.offload", hint))
    if offload == "all" and sharding == "zero2":
        hint = "take offload: optimizer, or zero3"
        problems.append(Problem("ZeRO-2 has whole weights on every GPU", "train.offload", hint))
    if spec.train.deepspeed is not None and not sharding.startswith("zero"):
        hint = "set train.sharding to zero2 or zero3"
        problems.append(Problem(f"a DeepSpeed file is not used by {sharding}", "train.deepspeed", hint))
    return problems


def _low_precision_training(spec: RunSpec) -> list[Problem]:
    problems = []
    master, optimizer = spec.train.master_weights, spec.train.optimizer
    zero = spec.train.sharding.startswith("zero")
    if master != "float32":
        if spec.lora is not None:
            hint = "leave it out: adapters are held in float32"
            problems.append(Problem(f"{master} is for full fine-tuning", "train.master_weights", hint))
        if optimizer != "adamw":
            hint = "take optimizer: adamw, or master_weights: float32"
            problems.append(Problem(f"{master} is not available with {optimizer}", "train.master_weights", hint))
        if zero:
            hint = "DeepSpeed holds float32 weights itself; for bfloat16 weights take ddp or fsdp"
            problems.append(Problem(f"{master} is not available with DeepSpeed", "train.master_weights", hint))
    if optimizer == "adamw_8bit" and (zero or spec.train.sharding == "fsdp"):
        hint = "take optimizer: adamw, whose state is spread over the processes, or sharding: ddp"
        problems.append(Problem("adamw_8bit works on whole weights only", "train.optimizer", hint))
    return problems


_GIVEN_BY_US = ("messages", "tools", "add_generation_prompt")


def _turns_to_train(spec: RunSpec) -> list[Problem]:
    problems = []
    if spec.data.train_on == "last_turn" and not spec.data.assistant_only_loss:
        hint = "leave it out, or set data.assistant_only_loss: true"
        what = "the last turn alone cannot be trained while every token is (data.assistant_only_loss: false)"
        problems.append(Problem(what, "data.train_on", hint))
    for name in sorted(spec.data.chat_template_kwargs.keys() & set(_GIVEN_BY_US)):
        hint = "these are for what only the template knows, such as enable_thinking"
        problems.append(Problem(f"`{name}` comes from the rows", "data.chat_template_kwargs", hint))
    return problems


_RULES: tuple[tuple[tuple[str, ...], Callable[[RunSpec], list[Problem]]], ...] = (
    (("train.warmup_steps",), _warmup_is_whole),
    (("train.warmup_steps", "train.max_steps"), _warmup_ends),
    (("data.eval", "eval.early_stopping_patience", "eval.on_start"), _something_to_evaluate),
    (("lora.target_modules",), _keywords_stand_alone),
    (("task", "data.labels", "checkpoint.best_metric", "train.padding_free"), _fits_the_task),
    (("data.train_on", "data.assistant_only_loss", "data.chat_template_kwargs"), _turns_to_train),
    (("model.quantization", "lora", "train.sharding"), _quantized_base_has_adapters),
    (("train.sharding", "train.offload", "train.deepspeed"), _sharding_options),
    (("train.master_weights", "train.optimizer", "train.sharding", "lora"), _low_precision_training),
)
