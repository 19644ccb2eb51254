"""Where a start goes on: what its run directory holds, whether anything is left to do, and the position that it loads.
Knows nothing of how a step is made."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from rankzero.directories import there
from rankzero.engine.checkpoint import (
    Found,
    Position,
    find_checkpoints,
    is_over,
    judged_again,
    load_checkpoint,
    only_ends,
    read_position,
    under,
)
from rankzero.engine.console import logger
from rankzero.engine.distributed import World, broadcast_object
from rankzero.engine.finish import copy_report, says_all_is_done, whole_report
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import Inputs
from rankzero.engine.metrics import all_measures, step_of, without_nan
from rankzero.engine.resume import (
    check_same_run,
    how_it_continues,
    kept_summary,
    makes_incomparable,
    moved,
    moves_rows,
    rows_alike,
)
from rankzero.engine.setup import Session
from rankzero.engine.streams import tokens_of_another_version
from rankzero.errors import ConfigError, Problem, RankzeroError
from rankzero.model.fingerprint_beside import FingerprintBeside
from rankzero.run_dir.atomic import not_read_errors, put_back_displaced, write_text
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import spec_of
from rankzero.run_dir.same_run import Differences
from rankzero.run_dir.setting import is_same_setting, newest_manifest, result_alone
from rankzero.run_dir.steps import ONLY_ENDS, furthest
from rankzero.spec.diff import name_beside
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import make_schedule, rows_taken
from rankzero.wording import counted, listed


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint that a run goes on from, and how the run that made it differs from this one."""

    step: int
    layout: dict[str, str] | None
    differences: Differences
    best_metric: str
    """By which it says what was best."""
    is_result: bool = False
    """There is no checkpoint, but the result of a run that is over: nothing goes on from it."""
    only_ends: bool = False
    """Its weights were lost by the last step, and the result is another one's."""
    reached: int = 0
    """The last step of which there is a checkpoint, which may be damaged."""


def find_checkpoint(
    run_dir: RunDir,
    spec: RunSpec,
    meta: dict[str, Any],
    base: FingerprintBeside,
    inputs: Inputs,
    options: RunOptions,
    world: World,
) -> tuple[Found, Saved | None]:
    """What the directory holds and, on every rank, the newest intact checkpoint that the run may go on from. Raises
    ConfigError where that is of another run. The base's fingerprint is waited for, and put into `meta`, only where
    there is something to compare it with. A collective."""
    if world.is_main:
        for name in [*put_back_displaced(run_dir.root), *put_back_displaced(run_dir.checkpoints)]:
            logger.info("[STEP] %s was being replaced when an earlier start was killed; the older one is used", name)
    passed_over: list[int] = []
    while True:
        looked = _looked(run_dir, passed_over) if world.is_main else None
        found, result, kept = cast(tuple[Found, dict[str, Any] | None, dict[str, Any]], broadcast_object(looked))
        newest = result if found.newest is None else found.newest
        if newest is None:
            return found, None
        meta["model"] = base.wait()
        alike = rows_alike(kept, inputs)
        differences = check_same_run(newest, meta, spec, run_dir, options.allow_changes, alike)
        if not newest.get(ONLY_ENDS) or broadcast_object(_ends(run_dir, newest, differences, spec, inputs, world)):
            break
        passed_over.append(newest["step"])
    for notice in differences.notices:
        logger.warning("[STEP] %s", notice)
    metric = RunSpec.model_validate(newest["spec"]).checkpoint.best_metric
    damaged = [step for step in found.damaged if step not in passed_over]  # the run may have ended there
    return found, Saved(
        newest["step"],
        newest.get("layout"),
        differences,
        metric,
        is_result=found.newest is None,
        only_ends=bool(newest.get(ONLY_ENDS)),
        reached=max([newest["step"], *damaged]),
    )


def _ends(
    run_dir: RunDir, newest: dict[str, Any], differences: Differences, spec: RunSpec, inputs: Inputs, world: World
) -> bool:
    """Whether the run is over where its newest checkpoint says so, and its result another step's, by the spec of now;
    by the main rank."""
    if not world.is_main:
        return False
    directory = run_dir.checkpoint(newest["step"])
    with not_read_errors(directory):
        position = read_position(directory)
    comparable = not makes_incomparable(differences.accepted, spec)
    schedule = make_schedule(inputs.n_rows, spec.train)
    return only_ends(spec, under(spec, position, comparable=comparable), schedule)


def _looked(run_dir: RunDir, passed_over: Collection[int]) -> tuple[Found, dict[str, Any] | None, dict[str, Any]]:
    """Checkpoints, the result where none of them is intact, and what is kept of the rows. Damaged ones that are newer
    than the result leave their run to be made again."""
    found = find_checkpoints(run_dir, logger.warning, passed_over)
    is_alone = found.newest is None and not _are_beyond(run_dir, found.damaged)
    return found, result_alone(run_dir) if is_alone else None, kept_summary(run_dir)


def _are_beyond(run_dir: RunDir, damaged: Collection[int]) -> bool:
    """Whether checkpoints are of a start that went on from the result: the first thing that one removes is the
    report."""
    if not damaged:
        return False
    with not_read_errors(run_dir.report):
        report = run_dir.report.read_bytes() if there(run_dir.report) else b""
    return max(damaged) > furthest((), report)


def set_aside(run_dir: RunDir, found: Found) -> None:
    """Rename what is damaged, so that nothing counts it as kept or takes it for the last one."""
    for step in found.damaged:
        logger.warning("[STEP] step-%d is now %s; delete it when you have looked", step, run_dir.set_aside(step))
    if found.newest is not None:
        run_dir.set_link("last", found.newest["step"])
    elif found.damaged:
        logger.warning("[STEP] no checkpoint is intact: the run begins again")


def forget_other_starts(run_dir: RunDir, spec: RunSpec) -> None:
    """Begin anew what counts starts, and what they have logged, where those were of another setting that had the
    directory and saved nothing in it. Files are emptied, not removed: copies in object stores follow."""
    with not_read_errors(run_dir.spec):
        if not there(run_dir.spec) or newest_manifest(run_dir) is not None:
            return
        with suppress(PermissionError):  # of whoever has closed it
            run_dir.spec.read_bytes()  # what cannot be read now is no other setting's
    try:
        if is_same_setting(spec_of(run_dir.root), spec):
            return
    except RankzeroError:  # closed, or of a version whose specs this one does not read: another setting
        pass
    for path in (run_dir.starts, run_dir.restarts, *run_dir.logs()):
        if path.is_file():
            write_text(path, "")
            logger.info("[STEP] %s was of other settings, and begins anew", path.name)


def what_is_left(
    run_dir: RunDir, spec: RunSpec, saved: Saved | None, options: RunOptions, total_steps: int, world: World
) -> tuple[dict[str, Any] | None, Saved | None]:
    """The report of a run that is over, on every rank; or what it goes on from, which is nothing where the result that
    it has alone is damaged. One rank reads the whole result for it, and copies the report where --report-json says.
    Raises ConfigError where more is asked of one that is whole. A collective."""
    if saved is None:
        return None, None
    # Else its weights are to be evaluated anew, and to train on where an evaluation has ended it early.
    changed = makes_incomparable(saved.differences.accepted, spec)
    comparable = not changed
    looks = world.is_main and (comparable or saved.is_result)
    looked = whole_report(run_dir, alone=saved.is_result) if looks else None
    report: dict[str, Any] | None = broadcast_object(looked)
    if comparable and report is not None:
        last_step = report["steps"] if saved.is_result else saved.reached
        if says_all_is_done(report, spec, last_step, total_steps):
            if world.is_main:  # after all have heard of it: the copy may fail
                copy_report(report, options.report_json)
            return report, saved
    if not saved.is_result:
        return None, saved
    if report is not None:
        raise ConfigError(_nothing_to_go_on_from(run_dir, spec, changed))
    logger.warning("[STEP] final/ is there and no checkpoint: the run begins again, and replaces it at its end")
    return None, None


def _nothing_to_go_on_from(run_dir: RunDir, spec: RunSpec, changed: Collection[str]) -> Problem:
    """`changed`: by what the result would be evaluated anew."""
    why = "more, or another result, is asked for than was made here"
    if changed:
        why = f"{listed(changed)} changed since the result here was made"
    anew = f"another name, such as name={name_beside(spec)}, trains anew"
    hint = f"{'undo it; ' if changed else ''}{anew}; so does this one where {run_dir.final} is moved away"
    return Problem(f"{why}, and there is no checkpoint to go on from", str(run_dir.root), hint)


def what_is_next(report: dict[str, Any], spec: RunSpec, *, alone: bool = False) -> str:
    """What to do with a run that is over. `alone`: there is no checkpoint to go on from."""
    if alone:
        return "this run is finished, and its checkpoints are gone; another name trains again"
    if report["ended_early"]:
        return "this run has ended early; raise eval.early_stopping_patience, or give it another name to train again"
    length = "num_train_epochs" if spec.train.max_steps is None else "max_steps"
    return f"this run is finished; raise its length (train.{length}), or give it another name to train again"


def restore(
    run_dir: RunDir,
    saved: Saved | None,
    session: Session,
    spec: RunSpec,
    layout: dict[str, str],
    world: World,
    ledger: Ledger,
) -> Position:
    """Continue from `saved`, or start. Says what is as if the run had never stopped, and what is not."""
    if saved is None:
        return Position()
    with ledger.phase("resume"):
        position = load_checkpoint(run_dir.checkpoint(saved.step), session.parallel, world)
    accepted = saved.differences.accepted
    in_order = session.device.adds_in_fixed_order
    unsure = list(saved.differences.unsure)
    if session.train.waits and tokens_of_another_version(position.stream):
        unsure.append("another version made the tokens of the rows before")
    otherwise = moved(saved.layout, layout)
    how = how_it_continues(position.step, accepted, otherwise, unsure, fixed_order=in_order)
    logger.info("[STEP] %s", how)
    if moves_rows(accepted) and not session.train.waits:
        say_what_is_left_out(position, session, spec)
    if position.eval_first is not None and position.eval_first_step is None:
        position = with_first_evaluation_s_step(position, run_dir, world)
    changed = makes_incomparable(accepted, spec)
    crossed = set(accepted) & spec.task_section.units.keys() - set(changed)
    for unit in crossed if position.best else ():
        words = "[EVAL] %s changed: where evaluations before and after are the same by %s, eval_loss chooses the best"
        logger.warning(f"{words}, though it is in another unit", unit, spec.checkpoint.best_metric)
    if changed and (position.eval_last or position.eval_first):
        words = "[EVAL] evaluations so far are not compared with those to come, since %s changed"
        logger.info(words, ", ".join(changed))
    elif best_is_lost(run_dir, position, world) or saved.best_metric != spec.checkpoint.best_metric:
        position = best_of_what_is_kept(run_dir, spec, position, world)
    position = under(spec, position, comparable=not changed)
    if world.is_main:
        run_dir.point_to_best(position.best_step)
    return with_end_evaluated(position, session, run_dir, world)


def say_what_is_left_out(position: Position, session: Session, spec: RunSpec) -> None:
    """Where a run goes on follows from the step alone. With steps of another size, or other rows, that is not where it
    was: warn of rows that no step will have, and of those that come again."""
    by_now = rows_taken(position.step, len(session.train.dataset), spec.train)
    if by_now == position.rows:
        return
    over = is_over(position, session.schedule)
    differ = counted(abs(by_now - position.rows), "row")
    what = [f"{differ} left out"] if by_now > position.rows else [f"{differ} trained once more"] * (not over)
    words = "[DATA] step %d has had %s, and is behind %s with the new settings: %s; another name trains from the start"
    have, had = counted(position.rows, "row"), counted(by_now, "row")
    logger.warning(words, position.step, have, had, ", and ".join([*what, *["no step is left"] * over]))


def with_first_evaluation_s_step(position: Position, run_dir: RunDir, world: World) -> Position:
    """The position of a checkpoint by a version that did not save of which step the first evaluation is: the only one
    in metrics.jsonl that measured the same. A collective."""
    if world.is_main:
        first = without_nan(dict(position.eval_first or {}))
        same = [step for step, found in all_measures(run_dir.metrics).items() if without_nan(found) == first]
        position = replace(position, eval_first_step=same[0] if len(same) == 1 else None)
    known: Position = broadcast_object(position)
    return known


def best_is_lost(run_dir: RunDir, position: Position, world: World) -> bool:
    """Whether the checkpoint that was best is gone, so that nothing could beat it and none of the others would be kept
    for being best. A collective."""
    best = position.best_step
    lost = world.is_main and best is not None and best not in (position.step, *run_dir.committed_steps())
    if lost:
        logger.warning("[EVAL] the checkpoint of step %d, the best so far, is lost", best)
    return bool(broadcast_object(lost))


def best_of_what_is_kept(run_dir: RunDir, spec: RunSpec, position: Position, world: World) -> Position:
    """The position with what is best by today's checkpoint.best_metric, of the checkpoints that there are. A
    collective."""
    metric = spec.checkpoint.best_metric
    if world.is_main:
        kept = run_dir.committed_steps()
        position = judged_again(position, all_measures(run_dir.metrics), kept, metric)
        if position.best_step is not None:
            logger.info("[EVAL] by %s the best so far is step %d, of those that are kept", metric, position.best_step)
    judged: Position = broadcast_object(position)
    return judged


def with_end_evaluated(position: Position, session: Session, run_dir: RunDir, world: World) -> Position:
    """The position of a start that finds no step left to do, whose last one was not evaluated: the run was made shorter
    than it was to be, or its evaluation data changed. That evaluation is made as one that a stop has cut short. A
    collective."""
    known = position.unevaluated is not None or position.eval_last_step == position.step
    if session.eval is None or known or not position.step or not is_over(position, session.schedule):
        return position
    facts = step_of(run_dir.metrics, position.step) or forgotten_step(position, session) if world.is_main else None
    return replace(position, unevaluated=broadcast_object(facts))


def forgotten_step(position: Position, session: Session) -> dict[str, Any]:
    """What can be said of the last step where metrics.jsonl has lost it; the rest is NaN."""
    unknown = ("learning_rate", "grad_norm", "tokens", "supervised_tokens", "tokens_per_second", "peak_memory_bytes")
    return {
        "epoch": position.step / session.schedule.steps_per_epoch,
        "loss": math.nan if position.train_loss_last is None else position.train_loss_last,
        **dict.fromkeys(unknown, math.nan),
        "time": time.time(),
    }
