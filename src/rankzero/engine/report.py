"""report.json: one run's result in numbers. Pure, but for reading the clock's ledger."""

from __future__ import annotations

from typing import Any

from rankzero.engine.checkpoint import Position
from rankzero.spec.run_spec import RunSpec


def make_report(
    spec: RunSpec, position: Position, environment: dict[str, Any], goodput: dict[str, float], measured: dict[str, Any]
) -> dict[str, Any]:
    """The report's object.

    tokens_per_second counts useful tokens (padding earns nothing) over the time spent in steps; elapsed_seconds also
    holds evaluations and checkpoints, over all starts of the run. padding_fraction is of the tokens computed; a row's
    last token is only a target and is never computed.
    """
    evaluated, before = position.eval_last or {}, position.eval_first or {}
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
        "eval_loss_first": before.get("eval_loss"),
        "eval_loss": evaluated.get("eval_loss"),
        "perplexity": evaluated.get("perplexity"),
        "accuracy": evaluated.get("accuracy"),
        "macro_f1": evaluated.get("macro_f1"),
        "best_step": position.best_step,
        "best_value": position.best_value,
        "nonfinite_steps": position.nonfinite_steps,
        "overflows": position.overflows,
        **measured,
        "goodput": goodput,
        "environment": environment,
        "versions": environment["versions"],
        "spec": spec.model_dump(mode="json"),
    }
