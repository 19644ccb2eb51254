"""After the last step: final/ and the report. Knows nothing of how the weights came about."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankzero.directories import there
from rankzero.engine.card import result_card
from rankzero.engine.checkpoint import Position, evaluation_of
from rankzero.engine.console import logger
from rankzero.engine.distributed import broadcast_object
from rankzero.engine.inputs import Inputs
from rankzero.engine.metrics import evaluations, without_nan
from rankzero.engine.saving import check_space
from rankzero.engine.setup import Session
from rankzero.engine.train import RunContext
from rankzero.errors import StorageError
from rankzero.model.load import stored_dtype
from rankzero.model.weights import export_final, library_errors, result_bytes, staged_for
from rankzero.run_dir.atomic import (
    MANIFEST,
    NotReadError,
    commit_directory,
    not_read_errors,
    place_given_by,
    read_manifest,
    verify_directory,
    write_json,
    write_text,
    written_files,
)
from rankzero.run_dir.card import CARD, card_text
from rankzero.run_dir.evaluation import kept_scores, of_the_base, of_this_base
from rankzero.run_dir.intact import not_now, verify_result, weights_of
from rankzero.run_dir.kept_aside import keep_aside
from rankzero.run_dir.lease import exclusive_if_free
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import ADAPTER_CONFIG
from rankzero.run_dir.setting import BEGINS_AGAIN
from rankzero.spec.diff import IDENTITIES
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import HIGHER_IS_BETTER, MEASURES
from rankzero.wording import duration, loss_in_words


def finish(
    session: Session,
    run: RunContext,
    inputs: Inputs,
    position: Position,
    environment: dict[str, Any],
    measured: dict[str, Any],
) -> dict[str, Any]:
    """Export the chosen checkpoint and write the report. A collective; returns the report, on every rank."""
    run_dir, report = run.run_dir, None
    run.ledger.stage("final")
    step = export(session, run, inputs, position)
    if run.lease is not None:
        run.lease.check()
        report = make_report(run.spec, position, step, environment, run.ledger.summary().to_json(), measured)
        write_json(run_dir.report, report)
        log_result(report, run_dir)
    result: dict[str, Any] = broadcast_object(report)
    return result


def export(session: Session, run: RunContext, inputs: Inputs, position: Position) -> int:
    """Write final/ from the best checkpoint, or the last one where the spec says so or nothing was evaluated."""
    parallel = session.parallel
    step: int = broadcast_object(chosen_step(run.spec, run.run_dir, position) if run.world.is_main else None)
    if step != position.step:
        parallel.load_weights(run.run_dir.checkpoint(step))
    state = parallel.export_state()
    if not run.world.is_main:
        return step
    saved_dtype = stored_dtype(inputs.config, inputs.source.weights)
    needed = result_bytes(parallel.module, dtype=saved_dtype, state=state)
    check_space(run.run_dir.root, needed, "the result", "then give the same command again")
    with staged_for(run.run_dir.final) as staged:
        with library_errors(staged):
            export_final(
                parallel.module, inputs.tokenizer, staged, dtype=saved_dtype, stop_ids=session.stop_ids, state=state
            )
            if inputs.vision is not None:
                inputs.vision.save(staged)
        config = staged / ADAPTER_CONFIG
        adapter = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        computed = run.manifest_meta["dtype"]
        card = result_card(run.spec, inputs, position, step, run.run_dir, adapter, computed)
        write_text(staged / CARD, card_text(card))
        about = {"step": step, "spec": run.manifest_meta["spec"], "labels": session.labels, "card": card.to_json()}
        about |= {name: run.manifest_meta[name] for name in IDENTITIES}
        weights = written_files(staged, sorted(staged.glob("*.safetensors")))
        # Before the lock: it reads all of the result before, for longer than others wait.
        keep, said = keep_aside(run.run_dir.final, staged, better(run.spec, run.run_dir, position, step))
        with scores_kept_still(run.run_dir):
            if run.lease is not None:
                run.lease.check()
            if weights != weights_of(run.run_dir.final):
                leave_out_scores(run.run_dir, run.manifest_meta)
            if said:
                copied = "" if keep is None or run.spec.output_url is None else "; it is not copied to output_url"
                logger.warning("[RESULT] %s%s", said, copied)
            commit_directory(staged, run.run_dir.final, about, known=weights, keep=keep)
    return step


def better(spec: RunSpec, run_dir: RunDir, position: Position, step: int) -> str:
    """By what final/, of a step whose checkpoint is lost, is better than what `step` makes; "": it is not."""
    metric = spec.checkpoint.best_metric
    try:
        was = read_manifest(run_dir.final).get("step") if spec.checkpoint.final == "best" else None
    except StorageError:  # there is none, or it cannot be told what it is
        return ""
    values = evaluations(run_dir.metrics, metric)
    if was == step or was not in values or was < position.compared_from:
        return ""
    higher = metric in HIGHER_IS_BETTER
    if step in values and not (values[was] > values[step] if higher else values[was] < values[step]):
        return ""
    return f"step {was} with {metric} {values[was]:.4f}"


@contextmanager
def scores_kept_still(run_dir: RunDir) -> Iterator[None]:
    """Within, no scores of the result that is replaced come in, where one is. A courtesy: no result waits for long for
    somebody who evaluates another one, nor is it lost where that one's lock is out of reach."""
    if not run_dir.final.exists():
        yield
        return
    with exclusive_if_free(run_dir.evaluation_lock) as why:
        if why:
            logger.warning("[RESULT] eval.json is changed without its lock: %s (%s)", why, run_dir.evaluation_lock)
        yield


def leave_out_scores(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Of a result that is about to be replaced by another one; those of the base stay where it is still the same, by
    what checkpoints say `about` the run. Files are emptied, not removed: copies in object stores follow. The merged
    model's own directory keeps what merge.json says of it."""
    try:
        kept = kept_scores(run_dir.evaluation)
    except StorageError as error:  # a result is not kept back for what somebody else has closed
        words = "[RESULT] %s: %s; scores in it may be of another result than final/"
        logger.warning(words, run_dir.evaluation, error.problems[0].what)
        kept = {}
    if kept and (left := of_the_base(of_this_base(kept, about))) != kept:
        write_json(run_dir.evaluation, left)
        words = "[RESULT] final/ is another result than was measured: eval.json has no scores of it yet"
        logger.info("%s (`rankzero eval %s`)", words, shlex.quote(str(run_dir.root)))
    if run_dir.merge.is_file():
        write_json(run_dir.merge, {})


def chosen_step(spec: RunSpec, run_dir: RunDir, position: Position) -> int:
    """The step whose weights become the result: the best one that is intact, or the last, which is in memory.

    Reads every byte of a checkpoint before it is used; a damaged one is set aside, and that is said. Raises
    NotReadError where one cannot be read now: every step is done and saved, and the same command finishes the run.
    """
    best = position.best_step
    if spec.checkpoint.final != "best" or not best:
        return position.step
    values = evaluations(run_dir.metrics, spec.checkpoint.best_metric)
    there = {step for step in (position.step, *run_dir.committed_steps()) if step >= position.compared_from}
    sign = -1 if spec.checkpoint.best_metric in HIGHER_IS_BETTER else 1
    others = sorted((sign * values[step], -step) for step in there & values.keys() - {best})
    for step in (best, *(-negative for _, negative in others)):
        if step != position.step:
            try:
                verify_directory(run_dir.checkpoint(step))
            except NotReadError as error:  # another one would be the result from now on
                out = "move this checkpoint out of checkpoints/: the result is made from the next best"
                raise not_now(error, out) from error
            except StorageError as error:
                logger.warning("[RESULT] the checkpoint of step %d is damaged and is not used: %s", step, error)
                if run_dir.checkpoint(step).is_dir():
                    logger.warning("[RESULT] it is now %s", run_dir.set_aside(step))
                continue
        if step != best:
            logger.warning("[RESULT] final/ is made from step %d, the next best: step %d is lost", step, best)
            if run_dir.checkpoint(step).is_dir():
                run_dir.set_link("best", step)
        return step
    logger.warning("[RESULT] final/ is made from the last step, %d: no evaluated checkpoint is intact", position.step)
    return position.step


def whole_report(run_dir: RunDir, *, alone: bool) -> dict[str, Any] | None:
    """The report of a result that is as it was saved; None where there is none. `alone`: there is no checkpoint to make
    another one of. Raises NotReadError where what is there cannot be read now: else it would be made again, and what
    was measured of it be dropped."""
    place = run_dir.final
    try:
        with not_read_errors(place):
            if not there(place / MANIFEST):
                return None
        verify_result(place)
        place = run_dir.report
        with not_read_errors(place):
            report = json.loads(place.read_text(encoding="utf-8")) if there(place) else None
    except NotReadError as error:
        then = f", {BEGINS_AGAIN}" if alone else ": it is made anew from the checkpoint"
        raise not_now(error, f"move {place} away{then}") from error
    except (StorageError, ValueError):
        return None
    return report if isinstance(report, dict) and isinstance(report.get("steps"), int) else None


def says_all_is_done(report: Mapping[str, Any], spec: RunSpec, last_step: int, total_steps: int) -> bool:
    """Whether a report is of a run that has nothing left to do, and of the result that the spec asks for. `last_step`:
    how far the run is."""
    was: Mapping[str, Any] = report.get("spec", {})
    if report["steps"] != last_step or _choice(was.get("checkpoint", {})) != _choice(dict(spec.checkpoint)):
        return False
    patience = was.get("eval", {}).get("early_stopping_patience")
    over = bool(report.get("ended_early")) and patience == spec.eval.early_stopping_patience
    return last_step >= total_steps or over


def _choice(checkpoint: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which step becomes the result, by this section of a spec."""
    final = checkpoint.get("final")
    return (final, checkpoint.get("best_metric") if final == "best" else None)


def log_result(report: dict[str, Any], run_dir: RunDir) -> None:
    """[RESULT] and [DONE]. What final/ scores comes first; where the run's end scored otherwise, that is said too."""
    logger.info("[RESULT] loss %s -> %s", *map(loss_in_words, (report["train_loss_first"], report["train_loss_last"])))
    scores, last = in_words(report), report["last_evaluation"]
    logger.info(
        "[RESULT] final weights of step %d in %s%s", report["final_step"], run_dir.final, scores and f": {scores}"
    )
    if last is not None and last["step"] != report["final_step"]:
        logger.info("[RESULT] the last evaluation, of step %d: %s", last["step"], in_words(last))
    logger.info(
        "[DONE] %d steps, %d tokens in %s, %.0f tokens/s",
        report["steps"],
        report["total_tokens"],
        duration(report["elapsed_seconds"]),
        report["tokens_per_second"],
    )


def in_words(evaluation: dict[str, Any]) -> str:
    """`eval_loss 0.1234, accuracy 0.9000, …`: what an evaluation, or a report of one, has measured."""
    return ", ".join(f"{name} {evaluation[name]:.4f}" for name in MEASURES if evaluation.get(name) is not None)


def write_page(run_dir: RunDir) -> None:
    """report.html, at any end of a start: what the run directory says. That it cannot be written is said, and no more:
    the run has ended as it has, and `rankzero report` makes the page at any time."""
    from rankzero.report.page import write_page as write

    try:
        write(run_dir)
    except Exception as error:  # a page is worth no run, and hides no failure
        logger.warning("[STEP] %s was not written: %s: %s", run_dir.page, type(error).__name__, error)


def copy_report(report: dict[str, Any], destination: str | os.PathLike[str] | None) -> None:
    """Also write the report where --report-json says."""
    if destination is not None:
        with place_given_by("--report-json"):
            write_json(Path(destination), report)


def make_report(
    spec: RunSpec,
    position: Position,
    final_step: int,
    environment: dict[str, Any],
    goodput: dict[str, Any],
    measured: dict[str, Any],
) -> dict[str, Any]:
    """The report's object.

    eval_loss, perplexity, accuracy and macro_f1 are those of the weights in final/, which are of `final_step`; null
    where these have not been evaluated. Evaluations before compared_from were of other data, tokens or weights, and
    eval_loss_first is of none of them. last_evaluation has the same of the run's last evaluation, and its step.
    tokens_per_second counts useful tokens (padding earns nothing) over the time spent in steps; elapsed_seconds also
    holds evaluations and checkpoints, over all starts of the run. padding_fraction is of the tokens computed; where
    answers are trained, a row's last token is only a target and is never computed.
    """
    final, last, before = evaluation_of(position, final_step) or {}, position.eval_last, position.eval_first or {}
    fed = position.tokens - position.rows * spec.task_section.sequences * (spec.task_section.uses == "writes")
    report = {
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
        "compared_from": position.compared_from,
        **{name: final.get(name) for name in MEASURES},
        "last_evaluation": None if last is None else {"step": position.eval_last_step, **without_nan(last)},
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
    return without_nan(report)
