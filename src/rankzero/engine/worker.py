"""One process of a run, from its spec to its exit code. What a launcher, torchrun or the command line starts."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rankzero.data.cache.dataset import TokenizedDataset, summary
from rankzero.engine.checkpoint import Position, generators_kept
from rankzero.engine.console import RunConsole, logger, results_alone_on_stdout
from rankzero.engine.continuing import (
    Saved,
    find_checkpoint,
    forget_other_starts,
    restore,
    set_aside,
    what_is_left,
    what_is_next,
)
from rankzero.engine.device import (
    Device,
    peak_memory,
    pick_device,
    pick_dtype,
    set_threads,
    without_cudnn_attention,
)
from rankzero.engine.distributed import (
    World,
    broadcast_object,
    gather_objects,
    process_group,
    world_from_env,
)
from rankzero.engine.finish import copy_report, finish, write_page
from rankzero.engine.forecasting import note_timing, say_forecast
from rankzero.engine.goodput import Ledger
from rankzero.engine.hooks import Hooks
from rankzero.engine.inputs import Inputs, read_inputs
from rankzero.engine.metrics import MetricsLog, evaluations
from rankzero.engine.pace import Pace
from rankzero.engine.passes import PassMemory
from rankzero.engine.process import process
from rankzero.engine.resume import (
    layout_of,
    manifest_meta,
    refuse_different_inputs,
)
from rankzero.engine.saving import Saver
from rankzero.engine.setup import Session, build_session, collect_environment
from rankzero.engine.signals import Activity, Tell, stop_on_signals
from rankzero.engine.train import RunContext, tell_what_is_saved, train
from rankzero.errors import StorageError
from rankzero.model.fingerprint_beside import FingerprintBeside
from rankzero.model.load import settled_libraries
from rankzero.model.out_of_memory import is_out_of_memory
from rankzero.run_dir.atomic import ONE_VOLUME, remove_stale, stage_name, write_json, write_text
from rankzero.run_dir.handover import (
    AGAIN_VARIABLE,
    BEAT_FILE_VARIABLE,
    Beat,
    write_beat,
)
from rankzero.run_dir.lease import Lease, known_process
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.same_run import refuse_foreign_directory
from rankzero.spec.process_groups import require_whole_groups
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import make_schedule
from rankzero.spec.shardings import sharding_section
from rankzero.track.protocol import TrackedRun, open_trackers
from rankzero.track.sender import sending
from rankzero.wording import counted, listed

SEEN_SECONDS = 10.0
"""How long a file of rank 0 may take until it is seen on another host."""
LOOK_SECONDS = 0.1


def run(
    spec: RunSpec,
    options: RunOptions,
    hooks: Hooks | None = None,
    *,
    begun: float | None = None,
    own_process: bool = True,
) -> dict[str, Any]:
    """Train, or continue, or find finished, one run as one of its processes. Returns the report. `hooks` hear of its
    steps; `begun` is when the start began, on the monotonic clock, where that was before this call; `own_process`:
    this one was started for the run: a second Ctrl-C ends it, and its random generators are the run's.

    Raises a RankzeroError; StoppedError where a signal ended it after saving.
    """
    ledger = Ledger(begun)
    world = world_from_env(dict(os.environ))
    require_whole_groups(spec, world.world_size)
    with (
        settled_libraries,
        beats() as tell,
        stop_on_signals(logger.warning, tell, own_process=own_process) as stop,
        ExitStack() as stack,
    ):
        if not own_process:
            stack.enter_context(generators_kept())
        console = RunConsole(speaks=world.is_main, level=options.log_level)
        stack.callback(console.close)
        stack.enter_context(results_alone_on_stdout())
        device, dtype = take_device(spec, world, stack)
        deepspeed = deepspeed_file(spec, world, device, dtype)
        run_dir = RunDir(Path(spec.output_dir) / str(spec.name))
        logger.info("[STEP] run %s in %s", spec.name, run_dir.root)
        refuse_foreign_directory(run_dir, spec, options.allow_changes)
        lease = Lease(run_dir.root, launcher=launcher()) if world.is_main else None
        held = hold_if_there(lease, run_dir, stack)
        base = stack.enter_context(closing(FingerprintBeside(spec.own_code)))
        inputs = read_inputs(spec, world, ledger, heard=base.begin)
        environment = collect_environment(device, dtype, world)
        if lease is not None and not held:  # wrong inputs leave no directory
            hold(lease, stack)
            # Another start may have made it meanwhile.
            refuse_foreign_directory(run_dir, spec, options.allow_changes)
        logger.info("[DDP] %s on %s", place_of(world), device.describe())
        with ledger.phase("rendezvous"):
            stack.enter_context(process_group(world, device, dict(os.environ)))
        with ledger.phase("model_files"):
            meta = manifest_meta(spec, inputs, environment)
            if world.spans_nodes:  # else a base that nothing is compared with is hashed while it is loaded, too
                meta["model"] = base.wait()
            refuse_different_inputs(meta, inputs.prompts)
        with ledger.phase("resume"):
            found, saved = find_checkpoint(run_dir, spec, meta, base, inputs, options, world)
        sender = stack.enter_context(sending(run_dir, spec if world.is_main else None, logger.info, logger.warning))
        finished, saved = what_is_left(run_dir, spec, saved, options, total_steps(inputs, spec), world)
        if finished is not None:
            sender.finish_what_is_left()
            logger.info("[DONE] %s", what_is_next(finished, spec, alone=saved is not None and saved.is_result))
            return finished
        claim_directory(run_dir, spec, environment, inputs, world, console)
        if lease is not None:
            begin_records(run_dir, lease, ledger, world, deepspeed, stack)
            stop.tell_of_leaving(ledger.leaves)
            set_aside(run_dir, found)
        session = build_session(spec, inputs, world, device, dtype, run_dir, ledger)
        with ledger.phase("model_files"):
            meta["model"] = base.wait()
        meta |= {"layout": layout_of(session, spec, environment), "stop_ids": session.stop_ids}
        position = restore(run_dir, saved, session, spec, meta["layout"], world, ledger)
        metrics = open_metrics(run_dir, spec, position, stack) if world.is_main else None
        sender.start(anew=meta if saved is None else None)
        saver = Saver(
            run_dir,
            lease,
            session.parallel,
            world,
            meta=meta,
            keep=spec.checkpoint.keep,
            step=position.step,
            step_bytes=session.planned.need.host_bytes_of_a_step,
        )
        context = RunContext(
            spec=spec,
            options=options,
            world=world,
            console=console,
            run_dir=run_dir,
            lease=lease,
            saver=saver,
            metrics=metrics,
            stop=stop,
            ledger=ledger,
            pace=open_pace(spec, session, world),
            manifest_meta=meta,
            hooks=hooks or Hooks(),
        )
        begin_saving(context, saved, stack)
        log_plan(spec, session, inputs, world)
        position = train_and_time(session, context, position)
        measured = {
            "time_to_first_step_seconds": ledger.time_to_first_step,
            "peak_memory_bytes": highest_memory(run_dir, device, world),
            "stragglers": context.pace.report() if context.pace is not None else [],
        }
        report = finish(session, context, inputs, position, environment, measured)
        if world.is_main:
            copy_report(report, options.report_json)
        return report


def take_device(spec: RunSpec, world: World, stack: ExitStack) -> tuple[Device, torch.dtype]:
    """What this process computes on until the run is over, and in which precision. Raises ConfigError."""
    set_threads(world.local_world_size)
    device = pick_device(world.local_rank)
    stack.enter_context(without_cudnn_attention(device))
    scaling = sharding_section(spec.train.sharding).scales_losses
    return device, pick_dtype(spec.model.dtype, device, loss_scaling=scaling)


def train_and_time(session: Session, run: RunContext, position: Position) -> Position:
    """All steps that are left; how fast they were is remembered for the next run of this shape."""
    with memory_errors(session.passes):
        after = train(session, run, position)
    if run.world.is_main:
        note_timing(run.spec, session, position, after)
    return after


def highest_memory(run_dir: RunDir, device: Device, world: World) -> int:
    """What the process that needed most of this start has needed, or the main one in a start before; on the main rank
    alone that is looked for. A collective."""
    now: int = max(gather_objects(peak_memory(device)))
    before = evaluations(run_dir.metrics, "peak_memory_bytes").values() if world.is_main else ()
    return int(max([now, *before]))


@contextmanager
def memory_errors(passes: PassMemory) -> Iterator[None]:
    """What torch says of memory that ran out becomes an error with ways out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise passes.error() from error


def deepspeed_file(spec: RunSpec, world: World, device: Device, dtype: torch.dtype) -> dict[str, Any] | None:
    """What DeepSpeed is configured with; None where it has no part in the run. Raises ConfigError."""
    if not sharding_section(spec.train.sharding).reads_deepspeed_file:
        return None
    from rankzero.engine.parallel.zero.parallel import deepspeed_config

    return deepspeed_config(spec, world, device, dtype)


def launcher() -> dict[str, Any] | None:
    """Who may start this run again when it has ended; None where nobody does by itself."""
    directory = os.environ.get(AGAIN_VARIABLE)
    return {**known_process(os.getppid()), "directory": directory} if directory else None


def hold(lease: Lease, stack: ExitStack) -> None:
    """Take the run directory until the run is over. Raises StorageError."""
    lease.acquire(say=partial(logger.info, "[STEP] %s"))
    let_go(stack, lease.release)


def hold_if_there(lease: Lease | None, run_dir: RunDir, stack: ExitStack) -> bool:
    """Take a run directory that exists; whether it was taken. Raises StorageError."""
    if lease is None or not run_dir.root.exists():
        return False
    hold(lease, stack)
    return True


@contextmanager
def beats() -> Iterator[Tell | None]:
    """Tells the launcher what the loop does, where it wants to know."""
    path = os.environ.get(BEAT_FILE_VARIABLE)
    if path is None:
        yield None
        return
    begun = 0
    with open(path, "wb", buffering=0) as file:

        def tell(activity: Activity, step: int) -> None:
            nonlocal begun
            begun += activity == "step"
            with suppress(OSError):  # of a full /tmp: the run goes on unwatched
                write_beat(file.fileno(), Beat(activity, step, begun))

        yield tell


def let_go(stack: ExitStack, release: Callable[[], None]) -> None:
    """Call `release` when the run is over. That it fails is said, and hides neither what ended the run nor its result:
    a full disk that ends a run also keeps it from giving back what it held."""

    def quietly() -> None:
        try:
            release()
        except (OSError, StorageError) as error:
            logger.warning("[STEP] while ending: %s", error)

    stack.callback(quietly)


def place_of(world: World) -> str:
    """Which of the run's processes this one is."""
    return "one process" if world.world_size == 1 else f"rank {world.rank} of {world.world_size} processes"


def claim_directory(
    run_dir: RunDir, spec: RunSpec, environment: dict[str, Any], inputs: Inputs, world: World, console: RunConsole
) -> None:
    """Make the run directory this run's: what it is, what it runs on, and a log for each rank. A collective."""
    if world.is_main:
        run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
        forget_other_starts(run_dir, spec)  # first of all: what cannot be read now ends the start
        for parent in (run_dir.root, run_dir.checkpoints):
            for name in remove_stale(parent):
                logger.info("[STEP] removed %s, left unfinished by an earlier start", name)
        for path in run_dir.make_way_for_links():
            logger.warning("[STEP] a directory stood where a link belongs; it is now %s, delete it when you like", path)
        run_dir.stop_flag.unlink(missing_ok=True)
        run_dir.report.unlink(missing_ok=True)  # of an end that this start goes beyond
        write_text(run_dir.spec, to_yaml(spec))
        write_json(run_dir.environment, environment)
        parts = {"train": inputs.train, "eval": inputs.eval}  # of a stream nobody knows yet
        known = {name: part for name, part in parts.items() if isinstance(part, TokenizedDataset)}
        write_json(run_dir.data, {name: summary(part) for name, part in known.items()})
    broadcast_object(None)  # no rank writes into a log that the first one may yet empty
    console.log_to(run_dir.log(world.rank))
    require_one_volume(run_dir, world)


def begin_records(
    run_dir: RunDir, lease: Lease, ledger: Ledger, world: World, deepspeed: dict[str, Any] | None, stack: ExitStack
) -> None:
    """What the main rank keeps of this start from now on, until the run is over."""
    stack.enter_context(
        ledger.kept_in(
            run_dir,
            alive_before=lease.alive_before,
            world_size=world.world_size,
            owner=lease.owner,
            at_end=partial(write_page, run_dir),
        )
    )
    if deepspeed is not None:
        write_json(run_dir.deepspeed, deepspeed)


def require_one_volume(run_dir: RunDir, world: World) -> None:
    """Raise StorageError, on every rank, where one does not see what rank 0 writes into the run directory: it could
    neither add to a checkpoint nor go on from one. A collective."""
    if world.world_size == 1:
        return
    host, mark = socket.gethostname(), run_dir.root / stage_name("seen")
    try:
        if world.is_main:
            write_text(mark, "")
        name, of_main = broadcast_object((mark.name, host))
        seen = gather_objects((host, appears(run_dir.root / name)))
    finally:
        if world.is_main:
            with suppress(OSError):  # the next start removes it
                mark.unlink(missing_ok=True)
    blind = [f"rank {rank} on {where}" for rank, (where, there) in enumerate(seen) if not there]
    if blind:
        what = f"{listed(blind)} does not see what rank 0 writes on {of_main}"
        raise StorageError(what, where=str(run_dir.root), hint=ONE_VOLUME)


def appears(path: Path) -> bool:
    """Whether a file that another host has written is seen here: a network file system may take a moment."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not path.exists():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def open_metrics(run_dir: RunDir, spec: RunSpec, position: Position, stack: ExitStack) -> MetricsLog:
    """metrics.jsonl, and the trackers of the spec that are files, until the run is over."""
    tracked = TrackedRun(str(spec.name), run_dir.events)
    trackers = partial(open_trackers, spec.tracking, tracked)
    last = position.step or -1  # one that begins has no lines of its own
    metrics = MetricsLog(run_dir, resume_step=last, unevaluated=position.unevaluated is not None, trackers=trackers)
    let_go(stack, metrics.close)
    return metrics


def begin_saving(run: RunContext, saved: Saved | None, stack: ExitStack) -> None:
    """Let the saver work until the run is over. saves.jsonl gets what an earlier start had committed and was ended
    before it told; what this one is still writing when it ends, however it does, is told behind that. A collective."""
    if saved is None or not saved.only_ends:
        with run.ledger.phase("model"):
            run.saver.take_as_they_are()
    if run.metrics is not None:
        for step in sorted(run.run_dir.committed_steps()):
            run.metrics.saved(step)
    let_go(stack, partial(tell_what_is_saved, run))
    # Whatever ends the loop: what takes time from here on is no step that hangs.
    stack.callback(lambda: run.stop.after_the_loop("leaving", saved=run.saver.committed))
    stack.enter_context(run.saver)
    stack.callback(lambda: run.stop.after_the_loop("ending", saved=run.saver.committed))


def open_pace(spec: RunSpec, session: Session, world: World) -> Pace | None:
    """What compares the ranks, on the main one; None where there is nothing to compare, since passes
    wait for each other. A collective."""
    hosts = gather_objects(socket.gethostname())
    together = sharding_section(session.parallel.name).divides or spec.train.meets_in_passes
    return Pace(hosts) if world.is_main and world.world_size > 1 and not together else None


def total_steps(inputs: Inputs, spec: RunSpec) -> int:
    """Steps of the whole run."""
    return make_schedule(inputs.n_rows, spec.train).total_steps


def log_plan(spec: RunSpec, session: Session, inputs: Inputs, world: World) -> None:
    """Say what is about to happen."""
    schedule, processes = session.schedule, counted(world.world_size, "process", "processes")
    if inputs.n_rows is None:
        logger.info("[DATA] rows are streamed, %d steps in all, %s", schedule.total_steps, processes)
    else:
        words = "[DATA] %d rows, %d steps an epoch, %d steps in all, %s"
        logger.info(words, inputs.n_rows, schedule.steps_per_epoch, schedule.total_steps, processes)
    if inputs.n_rows is not None and spec.train.global_batch_size > inputs.n_rows:
        words = "[DATA] a step has all %d rows: there are not train.global_batch_size: %d of them"
        logger.warning(words, inputs.n_rows, spec.train.global_batch_size)
    if spec.train.warmup_steps > schedule.total_steps:
        words = "[MODEL] the warm-up of %d steps is cut to the run's %d: it is at its peak in the last one only"
        logger.warning(words, spec.train.warmup_steps, schedule.total_steps)
    logger.debug(
        "[DATA] rows of a step are a function of (seed, epoch, step); passes of up to %d tokens",
        session.memory.micro_batch_tokens,
    )
    if world.is_main:
        say_forecast(spec, session, inputs, world)
    logger.info("[STEP] train")


if __name__ == "__main__":
    process(run)
