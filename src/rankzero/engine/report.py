"""report.json: one run's result in numbers. Pure, but for reading the clock's ledger."""

from __future__ import annotations

from typing import Any

from rankzero.engine.checkpoint import Position
from rankzero.spec.metrics import MEASURES
from rankzero.spec.run_spec import RunSpec


def make_report(
    spec: RunSpec,
    position: Position,
    final_step: int,
    environment: dict[str, Any],
    goodput: dict[str, float],
    measured: dict[str, Any],
) -> dict[str, Any]:
    """The report's object.

    eval_loss, perplexity, accuracy and macro_f1 are those of the weights in final/, which are of `final_step`; null
    where these have not been evaluated. last_evaluation has the same of the run's last evaluation, and its step.
    tokens_per_second counts useful tokens (padding earns nothing) over the time spent in steps; elapsed_seconds also
    holds evaluations and checkpoints, over all starts of the run. padding_fraction is of the tokens computed; a row's
    last token is only a target and is never computed.
    """
    final, last, before = evaluation_of(position, final_step) or {}, position.eval_last, position.eval_first or {}
    fed = position.tokens - position.rows
    return {
        "name": spec.name,
        "world_size": environment["world_size"],
        "steps": position.step,
        "ended_early": position.ended_early,
        "total_tokens": position.tokens,
        "supervised_tokens": position.supervised,
        "padding_fraction": 1 - fed / position.computed if position.computed else 0.0,
        "elapsed_seconds": position.wall_seconds,
        "training_seconds": position.seconds,
        "tokens_per_second": position.tokens / position.seconds if position.seconds else 0.0,
        "train_loss_first": position.train_loss_first,
        "train_loss_last": position.train_loss_last,
        "final_step": final_step,
        "eval_loss_first": before.get("eval_loss"),
        **{name: final.get(name) for name in MEASURES},
        "last_evaluation": None if last is None else {"step": position.eval_last_step, **last},
        "best_step": position.best_step,
        "best_value": None if position.best is None else position.best[spec.checkpoint.best_metric],
        "nonfinite_steps": position.nonfinite_steps,
        "overflows": position.overflows,
        **measured,
        "goodput": goodput,
        "environment": environment,
        "versions": environment["versions"],
        "spec": spec.model_dump(mode="json"),
    }


def evaluation_of(position: Position, step: int) -> dict[str, float] | None:
    """What the weights of a step scored; None where nobody has looked, or it is not kept any more."""
    if step == position.best_step:
        return position.best
    return position.eval_last if step == position.eval_last_step else None
