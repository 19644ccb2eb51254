"""Which fields trials of a sweep must have in common, so that what they score can be compared. Pure but for names that
exist."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rankzero.errors import Problem
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.run_spec import EvalFraction, RunSpec

FIXED = {
    "name": "each trial has a name of its own",
    "output_dir": "each trial's run directory is in the sweep's",
    "data.eval": "trials are compared by what they score on the same rows",
    "checkpoint.best_metric": "trials are compared by it",
    "checkpoint.final": "trials are compared by what it chooses",
    "task": "trials are compared by the same metric",
    "resume": "a trial continues where it stopped",
}
"""Fields that are the same for all trials, and why."""


def incomparable(base: RunSpec, field: str, specs: Sequence[RunSpec], where: str, pruner: str) -> Iterator[Problem]:
    """What is wrong with a field whose values make these specs of the one that is varied, each with what stands alone
    of other fields. Paths in all are absolute."""
    for name, why in FIXED.items():
        if name.startswith(f"{field}.") and any(_value(spec, name) != _value(base, name) for spec in specs):
            yield Problem(f"{name} is the same for all trials", where, f"{why}; give each value that of the run spec")
    betas = {spec.beta for spec in specs}
    by_beta = base.task_section.units.get("dpo.beta", ())
    if field.startswith("dpo") and len(betas) > 1 and base.checkpoint.best_metric in by_beta:
        hint = "compare them by checkpoint.best_metric: reward_accuracy"
        yield Problem(f"{base.checkpoint.best_metric} is measured in units of dpo.beta", where, hint)
    if pruner != "none" and _differs("eval.every", field, specs):
        what = f"pruner: {pruner} compares the first, second, … evaluation of trials, whose steps eval.every decides"
        hint = "give it one value, or set pruner: none, as a sweep that has begun may until it has ended a trial early"
        yield Problem(what, where, hint)
    tokens = _TARGETS if base.task_section.trains == "answers" and base.data.eval is not None else ()
    for name in tokens:
        if _differs(name, field, specs):
            hint = "give it one value; or train one run each, and compare their answers by `rankzero eval`"
            yield Problem(f"{name} decides which tokens {base.checkpoint.best_metric} is a mean over", where, hint)
    for name in _decide_rows(base, specs):
        if name not in tokens and _differs(name, field, specs):
            yield Problem(f"{name} decides which rows trials are compared by", where, _hint(name, base))


def _differs(name: str, field: str, specs: Sequence[RunSpec]) -> bool:
    """Whether these values of a field are, or hold, several of another one."""
    its = [_value(spec, name) for spec in specs]
    return (name == field or name.startswith(f"{field}.")) and any(value != its[0] for value in its)


_TARGETS = (
    *("data.assistant_only_loss", "data.train_on", "data.reasoning"),
    *("data.chat_template", "data.chat_template_kwargs"),
)
"""By these it is decided which tokens of a row are answers to be learnt. What merely cuts a row short is no part of it:
less of it is evaluated, and of the same kind."""
_DRAW = ("train.seed", "data.train")
_READ = ("data.deduplicate", "data.over_length")
"""By these the rows of `data.eval` are read too, wherever they are."""
_LENGTHEN = (
    *("data.max_length", "data.reasoning", "data.chat_template", "data.chat_template_kwargs", "data.image_max_tokens"),
    *("model.name", "model.local_dir", "model.tokenizer_dir", "model.revision"),
)
"""What a row's tokens, and so its length, follow from."""


def _decide_rows(base: RunSpec, specs: Sequence[RunSpec]) -> tuple[str, ...]:
    """Fields from which it follows which rows are evaluated on."""
    if base.data.eval is None:
        return ()
    drawn = _DRAW if _is_held_out(base) else _DRAW[:1] if _is_sampled(base) else ()
    # Of a preference both answers have to be left, whatever is done to what is too long.
    dropped = _of_pairs(base) or any(spec.data.over_length == "drop" for spec in specs)
    return (*drawn, *_READ, *(_LENGTHEN if dropped else ()))


def _hint(field: str, base: RunSpec) -> str:
    if field in _DRAW:
        return "give data.eval a file of its own" + ("" if _is_held_out(base) else ", without a sample")
    if field in _READ:
        return "give it one value: the rows of data.eval are read by it too"
    if _of_pairs(base):
        return "give it one value: pairs of data.eval of which it leaves one answer alone are left out too"
    return "give it one value, or set data.over_length: truncate: rows of data.eval that are too long are dropped too"


def _of_pairs(spec: RunSpec) -> bool:
    return spec.task_section.trains == "preferences"


def _is_held_out(spec: RunSpec) -> bool:
    return isinstance(spec.data.eval, EvalFraction)


def _is_sampled(spec: RunSpec) -> bool:
    given = spec.data.eval
    if given is None or isinstance(given, EvalFraction):
        return False
    paths = [given] if isinstance(given, str) else [source.path for source in given]
    drawn = () if isinstance(given, str) else (source.sample for source in given)
    parsed = (parse_data_path(path, os.path.exists) for path in paths)
    return any(one.sample is not None for one in parsed) or any(number is not None for number in drawn)


def _value(spec: RunSpec, field: str) -> object:
    value: object = spec
    for name in field.split("."):
        value = getattr(value, name)
    return value
