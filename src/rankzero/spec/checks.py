"""Rules between fields: specs whose values are each fine but contradict each other. Pure; knows no files or lines."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rankzero.errors import Problem
from rankzero.redaction import holds_secret
from rankzero.spec.names import GIVEN_BY_US
from rankzero.spec.run_spec import EvalFraction, RunSpec
from rankzero.spec.shardings import SHARDINGS, sharding_section
from rankzero.spec.tasks import TASKS, task_that
from rankzero.spec.texts import texts_in

_FLOAT32_ZERO = 2.0**-150
"""The largest number that float32 rounds to 0."""
_FLOAT32_INFINITE = 2.0**128 - 2.0**103
"""The smallest number that it rounds to infinity."""
_MOST_STEPS = 2**63


def check(spec: RunSpec, doubtful: Collection[str] = ()) -> list[Problem]:
    """All contradictions, each at the field to change. Rules that look at a field in `doubtful` are left out."""
    return secrets_in(spec) + [
        problem
        for fields, rule in _RULES
        if not any(_touch(field, other) for field in fields for other in doubtful)
        for problem in rule(spec)
    ]


def _touch(field: str, other: str) -> bool:
    """Whether one is the other, or inside it."""
    return any(a == b or a.startswith((f"{b}.", f"{b}[")) for a, b in ((field, other), (other, field)))


def secrets_in(spec: RunSpec) -> list[Problem]:
    """A problem for each text that is a secret by its shape, without the text: a spec is written to disk, hashed into
    checkpoints and shown."""
    hint = "put it where the library that opens this looks for credentials: its variables, or ~/.netrc"
    return [
        Problem("this holds a secret, and a spec is written to disk and shown", field, hint)
        for field, text in texts_in(spec.model_dump(mode="json"))
        if holds_secret(text)
    ]


def _model_has_an_id(spec: RunSpec) -> list[Problem]:
    name = spec.model.name
    if not name.startswith("hf://") or spec.model.local_dir is not None:  # else it is only a name
        return []
    hint = "hf://org/name, or the id alone; a branch, tag or commit goes into model.revision"
    return [Problem(f"{name} is not a model of the Hub", "model.name", hint)]


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


def _something_is_learned(spec: RunSpec) -> list[Problem]:
    """The peak is some step's rate, so where it is not 0 a schedule is not (spec/schedule.py)."""
    peak = spec.train.learning_rate
    if isinstance(peak, str) or peak > _FLOAT32_ZERO:
        return []
    hint = "raise it, or leave it at auto"
    what = f"every learning rate is 0: {peak:g} is, in the float32 that weights are trained in"
    return [Problem(what, "train.learning_rate", hint)]


_NO_NUMBER = "leave it out, or take a number that float32 has"


def _numbers_are_some(spec: RunSpec) -> list[Problem]:
    """What float32, which steps are computed in, has no number for. A max_grad_norm without bound clips nothing."""
    lora, dpo, train = spec.lora, spec.dpo, spec.train
    peak = None if isinstance(train.learning_rate, str) else train.learning_rate  # of 0 there is a rule of its own
    given = {
        "lora.alpha": None if lora is None else lora.alpha,
        "dpo.beta": None if dpo is None else dpo.beta,
        "train.learning_rate": peak if peak is not None and peak > 1 else None,
        "train.max_grad_norm": train.max_grad_norm if train.max_grad_norm and train.max_grad_norm < 1 else None,
    }
    return [
        Problem(f"{value:g} is {'0' if value <= _FLOAT32_ZERO else 'infinite'} in float32", field, _NO_NUMBER)
        for field, value in given.items()
        if value is not None and not _FLOAT32_ZERO < value < _FLOAT32_INFINITE
    ]


def _steps_are_counted(spec: RunSpec) -> list[Problem]:
    """In 64 bits, by who reads a run's metrics. Of epochs that are not read nothing is said."""
    field = "train.num_train_epochs" if spec.train.max_steps is None else "train.max_steps"
    many = (spec.train.max_steps or spec.train.num_train_epochs) >= _MOST_STEPS
    return [Problem("these are more steps than can be counted", field, "lower it")] if many else []


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
    own = spec.task_section
    for name, task in TASKS.items():
        for field in task.fields:
            if field not in own.fields and _value(spec, field) is not None:
                problems.append(Problem(f"this is for task {name}", field, f"set task: {name}, or leave it out"))
    if spec.eval.prompts is not None and own.uses != "writes":
        hint = "leave it out; the result is asked with `rankzero predict`"
        problems.append(Problem("a model that puts texts into classes writes none", "eval.prompts", hint))
    if spec.data.labels is not None and len(set(spec.data.labels)) < len(spec.data.labels):
        problems.append(Problem("a label stands twice", "data.labels", "name each class once"))
    metric = spec.checkpoint.best_metric
    if metric != "eval_loss" and metric not in own.metrics:
        owner = next(name for name, other in TASKS.items() if metric in other.metrics)
        instead = " or ".join(name for name, better in own.metrics.items() if better == "higher") or "eval_loss"
        problems.append(Problem(f"{metric} is for task {owner}", "checkpoint.best_metric", f"take {instead}"))
    if spec.train.padding_free is True and own.uses != "writes":
        hint = "leave it out: rows of like length share a pass"
        where = "train.padding_free"
        problems.append(Problem(f"padding_free is for task {task_that(trains='answers')}", where, hint))
    return problems


def _preferences_have_a_reference(spec: RunSpec) -> list[Problem]:
    """What a task that compares the model with its reference, itself before it was trained, does not work with."""
    if spec.task_section.trains != "preferences":
        return []
    problems = []
    if spec.keeps_reference and sharding_section(spec.train.sharding).reads_deepspeed_file:
        what = f"a full fine-tune of task {spec.task} has a reference beside its weights, and DeepSpeed spreads none"
        hint = "take train.sharding: fsdp, or write a lora section: lora: {} for the defaults"
        problems.append(Problem(what, "train.sharding", hint))
    if spec.train.expert_parallel > 1:
        what = f"expert_parallel is for task {task_that(trains='answers')}"
        problems.append(Problem(what, "train.expert_parallel", "leave it out"))
    for part, words in (("router", "routers"), ("projector", "projectors"), ("vision_tower", "vision towers")):
        if part in spec.train.parts:
            hint = f"leave {part} out: it stays as the reference has it"
            problems.append(Problem(f"task {spec.task} trains no {words}", "train.parts", hint))
    return problems


def _value(spec: RunSpec, field: str) -> object:
    value: object = spec
    for name in field.split("."):
        value = getattr(value, name)
    return value


def _quantized_base_has_adapters(spec: RunSpec) -> list[Problem]:
    quantization = spec.model.quantization
    if quantization == "none":
        return []
    if spec.lora is None:
        what = f"{quantization} weights cannot be trained themselves"
        return [Problem(what, "model.quantization", "write a lora section: lora: {} for the defaults")]
    if not sharding_section(spec.train.sharding).packed_weights:
        able = ", ".join(name for name, section in SHARDINGS.items() if section.packed_weights)
        what = f"{spec.train.sharding} cannot spread {quantization} weights"
        return [Problem(what, "train.sharding", f"take one of {able}")]
    return []


def _sharding_options(spec: RunSpec) -> list[Problem]:
    sharding, offload = spec.train.sharding, spec.train.offload
    problems = []
    section = sharding_section(sharding)
    if spec.keeps_reference and offload != "none":
        what = f"a full fine-tune of task {spec.task} offloads nothing: its weights and what they were change places"
        hint = "leave it out; train.sharding: fsdp over more processes, or a lora section, takes less memory"
        problems.append(Problem(what, "train.offload", hint))
    elif offload in section.refused_offload:
        what, hint = section.refused_offload[offload]
        problems.append(Problem(what.format(sharding=sharding), "train.offload", hint))
    if spec.train.deepspeed is not None and not section.reads_deepspeed_file:
        able = " or ".join(name for name, other in SHARDINGS.items() if other.reads_deepspeed_file)
        what = f"a DeepSpeed file is not used by {sharding}"
        hint = "leave it out" if spec.keeps_reference else f"set train.sharding to {able}"
        problems.append(Problem(what, "train.deepspeed", hint))
    return problems


def _low_precision_training(spec: RunSpec) -> list[Problem]:
    problems = []
    master, optimizer = spec.train.master_weights, spec.train.optimizer
    section = sharding_section(spec.train.sharding)
    if master != "float32":
        if spec.lora is not None:
            hint = "leave it out: adapters are held in float32"
            problems.append(Problem(f"{master} is for full fine-tuning", "train.master_weights", hint))
        if optimizer != "adamw":
            hint = "take optimizer: adamw, or master_weights: float32"
            problems.append(Problem(f"{master} is not available with {optimizer}", "train.master_weights", hint))
        if section.own_masters:
            hint = "DeepSpeed holds float32 weights itself; for bfloat16 weights take ddp, fsdp or hsdp"
            problems.append(Problem(f"{master} is not available with DeepSpeed", "train.master_weights", hint))
    if optimizer == "adamw_8bit" and section.divides:
        hint = "take optimizer: adamw, whose state is spread over the processes, or sharding: ddp"
        problems.append(Problem("adamw_8bit works on whole weights only", "train.optimizer", hint))
    return problems


def _float16_is_scaled(spec: RunSpec) -> list[Problem]:
    if spec.model.dtype != "float16":
        return []
    problems = []
    if not sharding_section(spec.train.sharding).scales_losses:
        hint = "take train.sharding: fsdp, or dtype: auto, which is bfloat16 or float32 with DeepSpeed"
        problems.append(Problem("float16 is not trained in with DeepSpeed", "model.dtype", hint))
    if spec.train.master_weights != "float32":
        hint = "leave master_weights out: under float16, weights are held in float32"
        what = f"{spec.train.master_weights} holds weights in bfloat16, and model.dtype is float16"
        problems.append(Problem(what, "train.master_weights", hint))
    return problems


def _rows_over_processes(spec: RunSpec) -> list[Problem]:
    """What does not work, or was not shown to, where the tokens of a pass lie on several processes."""
    train, problems = spec.train, []
    if train.context_parallel == 1:
        return []
    if spec.task_section.trains != "answers":
        what = f"context_parallel is for task {task_that(trains='answers')}"
        problems.append(Problem(what, "train.context_parallel", "leave it out"))
    if train.padding_free is False:
        hint = "leave it out, or train.context_parallel"
        problems.append(Problem("rows over several processes lie end to end", "train.padding_free", hint))
    if spec.model.attention not in ("auto", "varlen"):
        hint = "leave it out: rows over several processes have an attention of their own"
        what = f"{spec.model.attention} does not attend to what lies on other processes"
        problems.append(Problem(what, "model.attention", hint))
    if train.torch_compile:
        hint = "leave it out, or train.context_parallel"
        problems.append(Problem("blocks that wait for other processes are not compiled", "train.torch_compile", hint))
    return problems


def _experts_over_processes(spec: RunSpec) -> list[Problem]:
    """What does not work, or was not shown to, where processes hold the experts of a mixture together."""
    train, problems = spec.train, []
    if train.expert_parallel == 1:
        return []
    beside = "leave it out, or train.expert_parallel"
    if sharding_section(train.sharding).beside_experts is None:
        able = " or ".join(name for name, section in SHARDINGS.items() if section.beside_experts)
        what = f"{train.sharding} spreads experts with everything else"
        problems.append(Problem(what, "train.sharding", f"take {able}, or leave train.expert_parallel out"))
    if train.context_parallel > 1:
        what = "processes that share passes do not share experts as well"
        problems.append(Problem(what, "train.context_parallel", beside))
    if train.torch_compile:
        problems.append(Problem("blocks that wait for other processes are not compiled", "train.torch_compile", beside))
    if train.optimizer == "adamw_8bit" and spec.lora is None:
        hint = "take optimizer: adamw, or leave train.expert_parallel out"
        problems.append(Problem("adamw_8bit works on whole weights only", "train.optimizer", hint))
    if train.offload != "none":
        problems.append(Problem("experts that lie on some processes are not offloaded", "train.offload", beside))
    if spec.model.kernels != "none":
        what = f"{spec.model.kernels} kernels have experts of their own, whose tokens do not travel"
        problems.append(Problem(what, "model.kernels", beside))
    return problems


_COUNT = "give a number of steps: how long an epoch of a stream is, nobody knows"


def _streams(spec: RunSpec) -> list[Problem]:
    """What needs all rows before the first step."""
    data = spec.data
    if not data.streaming:
        return []
    problems = []
    if spec.train.max_steps is None:
        hint = "say how many steps the run has; how many rows there are, nobody has counted"
        problems.append(Problem("a stream needs its number of steps", "train.max_steps", hint))
    if data.deduplicate:
        hint = "leave it out, or data.streaming"
        problems.append(
            Problem("duplicates are found among all rows, and a stream never has", "data.deduplicate", hint)
        )
    if isinstance(data.eval, EvalFraction):
        hint = "give data.eval a file of its own: it is read as a whole"
        problems.append(Problem("a share of a stream cannot be held out", "data.eval", hint))
    elif data.eval is not None and spec.eval.every == "epoch":
        problems.append(Problem("an epoch of a stream has no length", "eval.every", _COUNT))
    if spec.checkpoint.every == "epoch":
        problems.append(Problem("an epoch of a stream has no length", "checkpoint.every", _COUNT))
    if spec.task_section.trains == "label" and data.labels is None:
        hint = "list the classes: [negative, positive]"
        problems.append(Problem("the classes of a stream are not known before all is read", "data.labels", hint))
    for number, source in enumerate(() if isinstance(data.train, str) else data.train):
        if source.sample is not None:
            what = "a sample is drawn from all rows, and how many a stream has, nobody knows"
            problems.append(Problem(what, f"data.train[{number}].sample", "leave it out: train.max_steps ends the run"))
    return problems


def _weights_of_epochs(spec: RunSpec) -> list[Problem]:
    given = spec.data.eval
    hint = "leave it out, or take fewer rows with `sample`"
    return [
        Problem("each row is evaluated once: only training has epochs", f"data.eval[{number}].weight", hint)
        for number, source in enumerate(given if isinstance(given, tuple) else ())
        if source.weight != 1
    ]


def _turns_to_train(spec: RunSpec) -> list[Problem]:
    problems = []
    reads = "data.assistant_only_loss" not in spec.task_section.unread
    if spec.data.train_on == "last_turn" and reads and not spec.data.assistant_only_loss:
        hint = "leave it out, or set data.assistant_only_loss: true"
        what = "the last turn alone cannot be trained while every token is (data.assistant_only_loss: false)"
        problems.append(Problem(what, "data.train_on", hint))
    for name in sorted(spec.data.chat_template_kwargs.keys() & set(GIVEN_BY_US)):
        hint = "these are for what only the template knows, such as enable_thinking"
        problems.append(Problem(f"`{name}` comes from the rows", "data.chat_template_kwargs", hint))
    return problems


_RULES: tuple[tuple[tuple[str, ...], Callable[[RunSpec], list[Problem]]], ...] = (
    (("model.name", "model.local_dir"), _model_has_an_id),
    (("train.warmup_steps",), _warmup_is_whole),
    (("train.warmup_steps", "train.max_steps"), _warmup_ends),
    (("train.learning_rate",), _something_is_learned),
    (("lora", "dpo", "train.learning_rate", "train.max_grad_norm"), _numbers_are_some),
    (("train.max_steps", "train.num_train_epochs"), _steps_are_counted),
    (("data.eval", "eval.early_stopping_patience", "eval.on_start"), _something_to_evaluate),
    (("data.eval",), _weights_of_epochs),
    (("lora.target_modules",), _keywords_stand_alone),
    (("task", "data.labels", "dpo", "checkpoint.best_metric", "train.padding_free"), _fits_the_task),
    (("task", "lora", "train.sharding", "train.expert_parallel", "train.parts"), _preferences_have_a_reference),
    (("task", "data.train_on", "data.assistant_only_loss", "data.chat_template_kwargs"), _turns_to_train),
    (
        (
            *("data.streaming", "data.train", "data.eval", "data.deduplicate", "data.labels", "task"),
            *("train.max_steps", "eval.every", "checkpoint.every"),
        ),
        _streams,
    ),
    (("model.quantization", "lora", "train.sharding"), _quantized_base_has_adapters),
    (("task", "lora", "train.sharding", "train.offload", "train.deepspeed"), _sharding_options),
    (("train.master_weights", "train.optimizer", "train.sharding", "lora"), _low_precision_training),
    (
        ("train.context_parallel", "task", "train.padding_free", "model.attention", "train.torch_compile"),
        _rows_over_processes,
    ),
    (
        (
            *("train.expert_parallel", "train.sharding", "train.context_parallel", "train.torch_compile"),
            *("train.optimizer", "train.offload", "lora", "model.kernels"),
        ),
        _experts_over_processes,
    ),
    (("model.dtype", "train.sharding", "train.master_weights"), _float16_is_scaled),
)
