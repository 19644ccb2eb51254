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


_RULES: tuple[tuple[tuple[str, ...], Callable[[RunSpec], list[Problem]]], ...] = (
    (("train.warmup_steps",), _warmup_is_whole),
    (("train.warmup_steps", "train.max_steps"), _warmup_ends),
    (("data.eval", "eval.early_stopping_patience", "eval.on_start"), _something_to_evaluate),
    (("lora.target_modules",), _keywords_stand_alone),
)
