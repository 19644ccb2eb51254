"""What the spec knows of each task: what a row teaches, what its model does, what its evaluations measure. Pure.

A task is its section here and the module of its name in engine/tasks/. Everything below the engine asks what a task
needs of it (`trains`, `uses`), never which task it is.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Trains = Literal["answers", "label", "preferences"]
"""What a row teaches. answers: tokens of its text, those that the rules choose; label: the class of the whole row;
preferences: which of two answers is the better one."""
ModelUse = Literal["writes", "classifies"]
"""What the model does with a text, and so which head it has: one over the vocabulary, or one over classes."""
Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class TaskSection:
    """One task, as far as it can be said without a model or data."""

    trains: Trains
    uses: ModelUse
    command: str
    """What its result is asked with; {run} stands for the run directory."""
    result: str
    """What its result is, for people."""
    metrics: Mapping[str, Better] = field(default_factory=dict)
    """What its evaluations measure besides eval_loss, and which way is better."""
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields that are the unit of what its evaluations measure, and what is measured in it."""
    fields: tuple[str, ...] = ()
    """Fields of the spec that belong to it and to no other task that does not name them too."""
    unread: tuple[str, ...] = ()
    """Fields that other tasks read and that have no effect on it."""
    others: tuple[str, ...] = ()
    """Other commands that take its run."""
    rates: tuple[float, float] = (2e-4, 2e-5)
    """What `train.learning_rate: auto` is with adapters, and in a full fine-tune."""

    @property
    def sequences(self) -> int:
        """How many sequences of tokens a row becomes, none of which sees another."""
        return 2 if self.trains == "preferences" else 1

    def next_commands(self, run: str, *, adapters: bool) -> tuple[str, str]:
        """What to do with the result that is in `run`: a command to copy, and what else takes it."""
        others = [name for name in self.others if adapters or name != "merge"]
        return self.command.format(run=shlex.quote(run)), f"also: rankzero {', '.join(others)}"


TASKS: dict[str, TaskSection] = {
    "sft": TaskSection(
        trains="answers",
        uses="writes",
        command='rankzero generate {run} "a question"',
        result="writes text",
        metrics={"perplexity": "lower"},
        others=("chat", "eval", "serve", "merge", "export"),
    ),
    "classify": TaskSection(
        trains="label",
        uses="classifies",
        command='rankzero predict {run} --text "a text"',
        result="is a text classifier",
        metrics={"accuracy": "higher", "macro_f1": "higher"},
        fields=("data.labels",),
        unread=(
            *("data.assistant_only_loss", "data.train_on", "data.reasoning"),
            *("data.chat_template_kwargs", "data.image_max_tokens"),
        ),
        others=("merge", "export"),
    ),
    "dpo": TaskSection(
        trains="preferences",
        uses="writes",
        command='rankzero generate {run} "a question"',
        result="writes text",
        metrics={
            "reward_accuracy": "higher",
            "reward_margin": "higher",
            "reward_chosen": "higher",
            "reward_rejected": "lower",
        },
        units={"dpo.beta": ("eval_loss", "reward_margin", "reward_chosen", "reward_rejected")},
        fields=("dpo",),
        unread=("data.assistant_only_loss", "data.train_on", "data.image_max_tokens"),
        others=("chat", "eval", "serve", "merge", "export"),
        rates=(1e-5, 1e-6),
    ),
}


def task_that(*, trains: Trains | None = None, uses: ModelUse | None = None) -> str:
    """The name of the first task that trains this of a row, or uses a model so. Raises KeyError where there is none."""
    for name, task in TASKS.items():
        if trains in (None, task.trains) and uses in (None, task.uses):
            return name
    raise KeyError(f"no task with trains={trains}, uses={uses}")


MEASURES = ("eval_loss", *dict.fromkeys(name for task in TASKS.values() for name in task.metrics))
"""The names of what evaluations measure, wherever numbers are kept by name."""
HIGHER_IS_BETTER = frozenset(
    name for task in TASKS.values() for name, better in task.metrics.items() if better == "higher"
)


def is_better(metric: str, value: float, than: float | None) -> bool:
    """Whether a value is a new best. NaN and Inf, which metrics.jsonl has both as null, never are, nor is any score
    worse than them."""
    if not math.isfinite(value):
        return False
    if than is None or not math.isfinite(than):
        return True
    return value > than if metric in HIGHER_IS_BETTER else value < than


def makes_progress(metric: str, later: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
    """Whether a later evaluation is better than the best one so far by the metric. Whatever it has scored, one whose
    eval_loss is not finite is none, and a best of that kind, which older versions kept, is no best."""
    if not math.isfinite(later["eval_loss"]):
        return False
    than = best.get(metric) if best is not None and math.isfinite(best["eval_loss"]) else None
    return is_better(metric, later[metric], than)


def becomes_best(metric: str, later: Mapping[str, float], best: Mapping[str, float] | None) -> bool:
    """Whether a later evaluation takes the place of the best one so far: where it makes progress; where the metric is
    the same, by the lower eval_loss; where that is the same too, because it is later and so of a model that has seen
    more."""
    if best is None or makes_progress(metric, later, best):
        return makes_progress(metric, later, best)
    same = later[metric] == best.get(metric) and math.isfinite(later[metric])
    return same and math.isfinite(later["eval_loss"]) and later["eval_loss"] <= best["eval_loss"]
