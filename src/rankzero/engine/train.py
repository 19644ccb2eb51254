"""The training loop, top to bottom. One loop for adapters and full fine-tuning, one process or many.

A step: plan the global batch -> gradients (engine/step.py) -> optimizer -> metrics -> evaluation where due ->
checkpoint where due -> stop where all ranks agreed to. Position is the only state; everything else follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from rankzero.data.batches.loader import Batches, MicroBatch, Work
from rankzero.engine.checkpoint import Position, is_over, only_ends, under, with_eval
from rankzero.engine.console import RunConsole, Speed, logger, step_in_words
from rankzero.engine.device import peak_memory
from rankzero.engine.distributed import LONGEST_WAIT, World, broadcast_object, time_limit
from rankzero.engine.evaluate import EvalResult, evaluate
from rankzero.engine.goodput import Ledger
from rankzero.engine.hooks import Hooks
from rankzero.engine.loss_scale import after_overflow, after_step, with_loss_scale
from rankzero.engine.metrics import MetricsLog
from rankzero.engine.optim import set_learning_rate
from rankzero.engine.pace import Pace
from rankzero.engine.samples import log_samples
from rankzero.engine.saving import Saver
from rankzero.engine.setup import Session, learning_rate
from rankzero.engine.signals import StopRequest
from rankzero.engine.step import StepResult, non_finite_error
from rankzero.engine.streams import wait_for_rows, what_became_of_rows
from rankzero.errors import NonFiniteError, Problem, StoppedError
from rankzero.model.compiling import save_artifacts
from rankzero.model.out_of_memory import free_what_is_left, suppress_out_of_memory
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import is_due


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the loop reports to and saves into. `lease`, `metrics` and `pace` are the main rank's only."""

    spec: RunSpec
    options: RunOptions
    world: World
    console: RunConsole
    run_dir: RunDir
    lease: Lease | None
    saver: Saver
    metrics: MetricsLog | None
    stop: StopRequest
    ledger: Ledger
    pace: Pace | None
    manifest_meta: dict[str, Any]
    hooks: Hooks


def train(session: Session, run: RunContext, position: Position) -> Position:
    """Run from `position` to the end of the schedule. Raises StoppedError after saving where a stop was agreed."""
    spec, schedule = run.spec, session.schedule
    clock, speed, owed = Clock(position), Speed(), False
    run.stop.defer(run.run_dir.stop_flag)
    position = with_loss_scale(position, session.dtype)
    run.ledger.continues_from(position.step, schedule.total_steps, position.compared_from)
    run.ledger.loop_at(position.step)
    session.train.begin(position.stream)
    with closing(session.train), run.console.progress("step", schedule.total_steps, position.step) as advance:
        position = before_next_step(session, run, position, advance)
        while position.unevaluated is not None or not is_over(position, schedule):
            tell_what_is_saved(run)
            if position.unevaluated is None and session.train.waits:
                await_rows(session, run, position)
            run.ledger.loop_at(position.step)
            begun, skipped = position.unevaluated, position.nonfinite_steps
            if begun is None:
                run.stop.now("step", step=position.step, saved=run.saver.committed)
                position, facts, stop = next_step(session, run, position, clock)
            else:  # an earlier start has made the step, and was stopped in its evaluation
                position, facts, stop = replace(position, unevaluated=None), begun, False

            improved = False
            if session.eval is not None and is_due(spec.eval.every, position.step, schedule):
                run.stop.now("evaluation", step=position.step, saved=run.saver.committed)
                judged = None if stop else run_evaluation(session, run, position, advance)
                if judged is None:
                    log_metrics(run, position.step, facts)
                    position = replace(position, unevaluated=facts)
                    save(session, run, position)
                    wait_until_saved(run, position)
                    raise stopped(run, position)
                position, improved = judged
                facts |= position.eval_last or {}
                position = under(spec, position, comparable=True)
            log_metrics(run, position.step, facts)
            answered = ask_prompts(session, run, position, advance)
            shown = step_in_words(facts, speed.after(facts))
            advance(int(begun is None), shown)
            position = replace(position, wall_seconds=clock.wall())

            over = is_over(position, schedule)
            stop_now = not answered or (stop and not over)
            owed = owed or is_due(spec.checkpoint.every, position.step, schedule)
            # Weights that give NaN are no reason to drop older ones: what is due waits for a step that is finite.
            if improved or over or stop or stop_now or (owed and position.nonfinite_steps == skipped):
                save(session, run, position)
                owed = False
            if stop_now:
                wait_until_saved(run, position)
                raise stopped(run, position)
    if position.stream is not None:
        logger.info("[DATA] train: %s", what_became_of_rows(position.stream))
    wait_until_saved(run, position)
    if run.saver.taken != position.step or nothing_saved(run):
        save(session, run, position)
        wait_until_saved(run, position)
    run.ledger.loop_at(position.step)
    require_trained(position)
    run.stop.now("result", step=position.step, saved=position.step)
    if position.ended_early:
        logger.info("[TRAIN] ended early: %d evaluations without a new best", position.evals_since_best)
    return replace(position, wall_seconds=clock.wall())


def nothing_saved(run: RunContext) -> bool:
    """Whether the run has no checkpoint at all. Rank 0 says it for all, who would wait in vain for each other where
    their volume shows them different things. A collective."""
    nothing: bool = broadcast_object(not run.run_dir.committed_steps() if run.world.is_main else None)
    return nothing


def require_trained(position: Position) -> None:
    """Raise NonFiniteError where every step was skipped: the weights are those that the run began with."""
    if position.step and position.train_loss_last is None:
        what = f"no step of {position.step} was finite: all were skipped, and nothing is trained"
        hint = "the log names the rows of each; lower train.learning_rate, or look whether the model itself gives NaN"
        raise NonFiniteError(Problem(what, "train.max_nonfinite_steps", hint))


def await_rows(session: Session, run: RunContext, position: Position) -> None:
    """Until every rank has the rows of the next step.

    Raises, after saving what was trained, StoppedError where a stop was agreed on meanwhile, and the error that keeps
    rows from coming.
    """

    def waiting() -> None:
        run.stop.now("rows", step=position.step, saved=run.saver.committed)

    with run.ledger.phase("input_wait"):
        outcome = wait_for_rows(
            session.train, session.device.torch_device, stop_wanted=lambda: run.stop.wanted, waiting=waiting
        )
    if outcome is True:
        return
    if position.step > run.saver.taken:
        save(session, run, position)
    wait_until_saved(run, position)
    if outcome is not False:
        raise outcome
    raise stopped(run, position) if position.step else run.stop.early()


class Clock:
    """Seconds of a run over all its starts."""

    def __init__(self, position: Position) -> None:
        self._started, self._before = time.monotonic(), position.wall_seconds

    def wall(self) -> float:
        """With evaluations and checkpoints."""
        return self._before + time.monotonic() - self._started


def next_step(
    session: Session, run: RunContext, position: Position, clock: Clock
) -> tuple[Position, dict[str, Any], bool]:
    """One optimizer step. Returns where the run is then, what metrics.jsonl gets of it, and whether to stop."""
    spec, schedule, number = run.spec, session.schedule, position.step + 1
    run.hooks.step_begins(number)
    if run.pace is not None:
        run.pace.begin_step(saving=run.saver.writing)
    before = time.monotonic()
    _, step_in_epoch = schedule.position(position.step)
    work = session.train.step(position.step)
    rate = schedule.learning_rate(position.step, learning_rate(spec))
    log_pass = batch_logger(run.options, number, step_in_epoch, schedule.steps_per_epoch)

    def on_pass(batch: MicroBatch, loss: torch.Tensor) -> None:
        log_pass(batch, loss)
        run.hooks.pass_done(number, batch, loss.detach())

    first = run.ledger.time_to_first_step is None
    kind = "compile" if first and session.compiled is not None else "step"
    with run.ledger.phase(kind), patience(run, first=first):
        position, result = gradients(session, run, position, work, on_pass)
        set_learning_rate(session.parallel.optimizer, rate)
        position = apply_step(session, spec, position, work, result)
        run.ledger.step_done(position.step)
    if kind == "step":
        run.ledger.waited_for_input(result.input_seconds)
    seconds = time.monotonic() - before
    position = replace(position, seconds=position.seconds + seconds, wall_seconds=clock.wall())
    facts = step_facts(position, work, result, rate, seconds) | {"peak_memory_bytes": peak_memory(session.device)}
    if work.ended is not None:
        logger.info("[EPOCH] %d done at step %d: loss %.4f", work.ended, position.step, result.loss)
    if result.routers is not None:
        evaluated = session.eval is not None and is_due(spec.eval.every, position.step, schedule)
        facts |= result.routers.facts(each=evaluated)
    if result.pass_limit:
        facts |= limit_passes(session, run, result.pass_limit, f"step {position.step}")
    if run.pace is not None:
        facts |= run.pace.add(result.ranks)
    run.hooks.step_ends(number, facts)
    return position, facts, result.stop


def gradients(
    session: Session,
    run: RunContext,
    position: Position,
    work: Work,
    on_pass: Callable[[MicroBatch, torch.Tensor], None],
) -> tuple[Position, StepResult]:
    """The step's gradients. Where they overflow float16 they are dropped, on every rank, and computed again at half the
    loss scale, so that no row is lost; where a pass runs out of memory, on this rank, in smaller passes. Returns the
    position with the scale that did.

    Where no scale makes them finite, it stays as it was before the step.
    """
    before, limit = position, 0
    while True:
        result = session.stepper.gradients(
            session.train,
            work,
            position.step,
            stop_wanted=run.stop.wanted or run.saver.failed,
            on_pass=on_pass,
            loss_scale=position.loss_scale or 1.0,
            pass_limit=limit,
        )
        if result is None:
            session.parallel.zero_grad()
            free_what_is_left()
            work, limit = session.passes.cut_smaller(session.train, work, f"step {position.step + 1}")
            continue
        lowered = after_overflow(position) if result.overflowed else None
        if lowered is None:
            return position if result.finite else before, result
        session.parallel.zero_grad()
        position = lowered
        words = "[TRAIN] step %d: gradients overflow float16; computed again with loss scale %g"
        logger.info(words, position.step + 1, position.loss_scale)


def limit_passes(session: Session, run: RunContext, limit: int, what: str) -> dict[str, Any]:
    """A rank has run out of memory in `what`: all cut smaller from here on, and later starts do. Returns what
    metrics.jsonl gets of it."""
    for batches in (session.train, session.eval):
        if batches is not None:
            batches.limit_passes(limit)
    run.manifest_meta["layout"]["tokens of a pass"] = str(limit)
    if run.world.is_main:
        session.passes.remember(limit, what)
        logger.info("[TRAIN] passes have up to %d tokens from %s on, also after a restart", limit, what)
    return {"out_of_memory": True, "micro_batch_tokens": limit}


def patience(run: RunContext, *, first: bool) -> AbstractContextManager[None]:
    """How long the ranks wait for each other; longer for what is done for the first time, which may compile."""
    return time_limit(LONGEST_WAIT.total_seconds() if first else run.spec.train.collective_timeout_seconds)


def log_metrics(run: RunContext, step: int, facts: dict[str, Any]) -> None:
    """A step's object, on the main rank."""
    if run.metrics is not None:
        run.metrics.log(step, facts)


def apply_step(session: Session, spec: RunSpec, position: Position, work: Work, result: StepResult) -> Position:
    """Move the optimizer, or skip a non-finite step where the spec allows it. Raises NonFiniteError, and ConfigError
    where no adapter is reached by gradients."""
    parallel = session.parallel
    step = position.step + 1
    if result.finite:
        if session.adapters is not None:
            session.adapters.look(result.loss, last=step == session.schedule.total_steps)
        parallel.step()
        position = after_step(position)
    else:
        error = non_finite_error(session.train.dataset, work, result, step, session.dtype)
        if position.nonfinite_steps >= spec.train.max_nonfinite_steps:
            raise error
        logger.warning("[TRAIN] skipped %s", error)
    parallel.zero_grad()
    loss = result.loss if result.finite else None
    return replace(
        position,
        step=step,
        rows=position.rows + len(work.rows),
        stream=work.stream,
        tokens=position.tokens + work.tokens,
        supervised=position.supervised + work.supervised,
        computed=position.computed + result.computed_tokens,
        train_loss_first=loss if position.train_loss_first is None else position.train_loss_first,
        train_loss_last=position.train_loss_last if loss is None else loss,
        nonfinite_steps=position.nonfinite_steps + (not result.finite),
    )


def before_next_step(
    session: Session, run: RunContext, position: Position, show: Callable[[int, str], None]
) -> Position:
    """What is due where a start begins. Raises StoppedError where it was cut short: there is nothing to save."""
    if run.spec.eval.on_start and position.step == 0 and position.eval_first is None:
        position = evaluate_first(session, run, position, show)
    if not ask_prompts(session, run, position, show):
        raise stopped(run, position) if position.step else run.stop.early()
    return position


def evaluate_first(session: Session, run: RunContext, position: Position, show: Callable[[int, str], None]) -> Position:
    """The evaluation before the first step. Raises StoppedError where it was cut short: there is nothing to save."""
    run.stop.now("evaluation", step=0, saved=0)
    judged = run_evaluation(session, run, position, show)
    if judged is None:
        raise run.stop.early()
    position, _ = judged
    if position.eval_last is not None:
        log_metrics(run, 0, {"epoch": 0.0, **position.eval_last, "time": time.time()})
    return position


def run_evaluation(
    session: Session, run: RunContext, position: Position, show: Callable[[int, str], None]
) -> tuple[Position, bool] | None:
    """Evaluate, and judge whether this is the best so far. None, on every rank, where a stop has cut it short."""
    if session.eval is None:
        return position, False
    done = 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        show(0, f"evaluating {done}/{len(session.eval.dataset) if session.eval else 0} rows")

    with run.ledger.phase("evaluation"), patience(run, first=run.ledger.first("evaluation")):
        result = evaluated(session, run, session.eval, position.step, tick)
    if result is None:
        logger.info(
            "[EVAL] step %d: left out, since the run is to stop; it is made when the run continues", position.step
        )
        return None
    position, improved = with_eval(position, result.metrics, run.spec.checkpoint.best_metric)
    values = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    logger.info("[EVAL] step %d: %s%s", position.step, values, ", the best so far" if improved else "")
    return position, improved


def evaluated(
    session: Session, run: RunContext, batches: Batches, step: int, tick: Callable[[int], None]
) -> EvalResult | None:
    """An evaluation, made again in smaller passes where one runs out of memory. Ranks meet between its passes, so of
    several none can do so alone: RankzeroError."""
    while True:
        with suppress_out_of_memory():
            return evaluate(
                session.parallel.model,
                session.stepper,
                batches,
                session.device.torch_device,
                tick,
                stop_wanted=lambda: run.stop.wanted,
                meter=session.new_meter(),
            )
        free_what_is_left()
        what = f"the evaluation after step {step}"
        _, limit = session.passes.cut_smaller(batches, batches.everything(), what, together=True)
        limit_passes(session, run, limit, what)


def ask_prompts(session: Session, run: RunContext, position: Position, show: Callable[[int, str], None]) -> bool:
    """Have the prompts of the run answered, where that is due here and not done. False, on every rank, where a stop has
    cut it short: nothing is kept of it then, and a start that goes on from here makes all of it."""
    samples, step = session.samples, position.step
    if samples is None or not samples.due(step):
        return True
    if broadcast_object(run.metrics is not None and run.metrics.has_samples(step)):
        return True
    run.stop.now("samples", step=step, saved=run.saver.committed)
    count = len(samples.prompts)
    with run.ledger.phase("evaluation"), patience(run, first=run.ledger.first("prompts")):
        rows = samples.take(
            step,
            stop_wanted=lambda: run.stop.wanted,
            tick=lambda done: show(0, f"answering {done}/{count} prompts"),
        )
    if rows is None:
        words = "[SAMPLE] step %d: left out, since the run is to stop; they are made when the run continues"
        logger.info(words, step)
        return False
    if run.metrics is not None:
        run.metrics.samples(step, rows)
        log_samples(rows)
    return True


def save(session: Session, run: RunContext, position: Position) -> None:
    """Have a checkpoint of this step written while the run goes on. Raises StorageError where the one before failed."""
    run.stop.now("save", step=position.step, saved=run.saver.committed)
    with run.ledger.phase("save_wait"):
        run.saver.save(position, only_to_end=only_ends(run.spec, position, session.schedule))
        if run.world.is_main and session.compiled is not None:
            save_artifacts(session.compiled)


def wait_until_saved(run: RunContext, position: Position) -> None:
    """Until what is being written is committed. Raises StorageError where it failed."""
    run.stop.now("save", step=position.step, saved=run.saver.committed)
    with run.ledger.phase("save_wait"):
        run.saver.wait()
    tell_what_is_saved(run)


def tell_what_is_saved(run: RunContext) -> None:
    """saves.jsonl and the hooks hear of checkpoints between steps, in the run's own thread."""
    for step in run.saver.newly_committed():
        if run.metrics is not None:
            run.metrics.saved(step)
        run.hooks.saved(step)


def stopped(run: RunContext, position: Position) -> StoppedError:
    """The error that ends a run that was asked to stop, after everything is saved."""
    if run.world.is_main:
        run.run_dir.stop_flag.unlink(missing_ok=True)
    why = run.stop.reason or "another process"
    return StoppedError(
        f"stopped by {why} and saved at step {position.step}",
        where=str(run.run_dir.root),
        hint="give the same command again to continue",
    )


def step_facts(
    position: Position, work: Work, result: StepResult, learning_rate: float, seconds: float
) -> dict[str, Any]:
    """The step's object in metrics.jsonl. `time` is Unix seconds; tokens are useful ones, padding not counted.

    In float16 also the loss scale that the next step begins with, and how often one was too large so far.
    """
    scaling = {"loss_scale": position.loss_scale, "overflows": position.overflows}
    return {
        "epoch": work.epoch,
        "loss": result.loss,
        "learning_rate": learning_rate,
        "grad_norm": result.grad_norm,
        "tokens": work.tokens,
        "supervised_tokens": work.supervised,
        "tokens_per_second": work.tokens / seconds,
        **(scaling if position.loss_scale is not None else {}),
        **result.measures,
        "time": time.time(),
    }


def batch_logger(
    options: RunOptions, step: int, step_in_epoch: int, steps_per_epoch: int
) -> Callable[[MicroBatch, torch.Tensor], None]:
    """[COLLATE] and [BATCH] lines at DEBUG: of all steps, or of the first and last of each epoch. `step` counts
    from 1."""
    edge = step_in_epoch in (0, steps_per_epoch - 1)
    if (
        options.log_level != "DEBUG"
        or options.log_batches == "none"
        or (options.log_batches == "first-last" and not edge)
    ):
        return lambda _batch, _loss: None
    started = time.monotonic()

    def log(batch: MicroBatch, loss: torch.Tensor) -> None:
        shapes = {name: tuple(value.shape) for name, value in batch.inputs.items() if isinstance(value, torch.Tensor)}
        logger.debug("[COLLATE] %s, targets %d", shapes, len(batch.targets_N))
        mean = loss.item() / max(float(batch.losses), 1.0)
        logger.debug(
            "[BATCH] step %d rows %d loss %.4f, %.3f s", step, len(batch.rows), mean, time.monotonic() - started
        )

    return log
