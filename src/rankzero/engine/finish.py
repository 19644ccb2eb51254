"""After the last step: final/, report.json and goodput.json. Knows nothing of how the weights came about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rankzero.engine.checkpoint import Position
from rankzero.engine.console import duration, logger
from rankzero.engine.distributed import broadcast_object
from rankzero.engine.inputs import Inputs
from rankzero.engine.report import make_report
from rankzero.engine.setup import Session
from rankzero.engine.train import Surroundings
from rankzero.errors import StorageError
from rankzero.model.weights import export_final
from rankzero.run_dir.atomic import (
    commit_directory,
    place_given_by,
    read_manifest,
    stage_name,
    storage_errors,
    write_json,
)
from rankzero.run_dir.paths import RunDir


def finish(
    session: Session,
    around: Surroundings,
    inputs: Inputs,
    position: Position,
    environment: dict[str, Any],
    measured: dict[str, Any],
) -> dict[str, Any]:
    """Export the chosen checkpoint and write the report. A collective; returns the report, on every rank."""
    run_dir, report = around.run_dir, None
    with around.ledger.phase("final"):
        step = export(session, around, inputs, position)
    if around.world.is_main:
        report = make_report(
            around.spec, position, environment, around.ledger.report(), {**measured, "final_step": step}
        )
        write_json(run_dir.root / "goodput.json", report["goodput"])
        write_json(run_dir.report, report)
        log_result(report, run_dir)
    result: dict[str, Any] = broadcast_object(report)
    return result


def export(session: Session, around: Surroundings, inputs: Inputs, position: Position) -> int:
    """Write final/ from the best checkpoint, or the last one where the spec says so or nothing was evaluated."""
    step, parallel = position.step, session.live.parallel
    if around.spec.checkpoint.final == "best" and position.best_step is not None and position.best_step > 0:
        step = position.best_step
    if step != position.step:
        parallel.load_weights(around.run_dir.checkpoint(step))
    state = parallel.export_state()
    if not around.world.is_main:
        return step
    staged = around.run_dir.root / stage_name("final")
    with storage_errors(staged):
        staged.mkdir(parents=True)
    saved_dtype = getattr(torch, str(inputs.config.dtype or "float32").removeprefix("torch."))
    export_final(parallel.module, inputs.tokenizer, staged, dtype=saved_dtype, stop_ids=session.stop_ids, state=state)
    if inputs.vision is not None:
        inputs.vision.save(staged)
    about = {"step": step, "spec": around.manifest_meta["spec"], "labels": session.labels}
    commit_directory(staged, around.run_dir.final, about)
    return step


def finished_report(run_dir: RunDir, last_step: int, total_steps: int) -> dict[str, Any] | None:
    """The report of a run that has nothing left to do; None where there is something."""
    try:
        read_manifest(run_dir.final)
        report: dict[str, Any] = json.loads(run_dir.report.read_text(encoding="utf-8"))
    except (StorageError, OSError, ValueError):
        return None
    done = report.get("steps") == last_step and (last_step >= total_steps or report.get("ended_early"))
    return report if done else None


def log_result(report: dict[str, Any], run_dir: RunDir) -> None:
    """[RESULT] and [DONE]."""
    losses = f"loss {report['train_loss_first']:.4f} -> {report['train_loss_last']:.4f}"
    if report["eval_loss"] is not None:
        losses += f", {evaluation(report)}"
    logger.info("[RESULT] %s", losses)
    logger.info("[RESULT] final weights of step %d in %s", report["final_step"], run_dir.final)
    logger.info(
        "[DONE] %d steps, %d tokens in %s, %.0f tokens/s",
        *(report["steps"], report["total_tokens"], duration(report["elapsed_seconds"]), report["tokens_per_second"]),
    )


def evaluation(report: dict[str, Any]) -> str:
    """`eval_loss 0.1234, accuracy 0.9000, …`: what the report holds of the last evaluation."""
    names = ("eval_loss", "perplexity", "accuracy", "macro_f1")
    return ", ".join(f"{name} {report[name]:.4f}" for name in names if report[name] is not None)


def copy_report(report: dict[str, Any], destination: str | None) -> None:
    """Also write the report where --report-json says."""
    if destination is not None:
        with place_given_by("--report-json"):
            write_json(Path(destination), report)
