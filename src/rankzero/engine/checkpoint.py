"""Everything a run continues from: what a checkpoint holds, and how it is found and restored. Saver writes them.

checkpoints/step-<n>/
    model/                  adapter or weights
    optimizer.safetensors   the optimizer's state by parameter name (a fully sharded run: sharded/ holds both)
    trainer.json            position: all that the loop has besides, the best so far included
    rng-rank-<r>.json       torch, CUDA, numpy and Python generators of each rank
    manifest.json           sizes and hashes; what the run was: spec, data, tokenizer, world size
Tensors are safetensors, the rest JSON: nothing is unpickled.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from rankzero.engine.distributed import World
from rankzero.engine.parallel.base import Parallel
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import (
    NotReadError,
    not_read_errors,
    read_manifest,
    stage_name,
    storage_errors,
    verify_directory,
)
from rankzero.run_dir.intact import not_now
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import MOVED_OUT
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schedule import Schedule
from rankzero.spec.tasks import becomes_best, makes_progress


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is. The data position is a function of `step`, so no sampler state is needed; but for a stream, of
    which nobody could find it without reading all that was before."""

    step: int = 0
    rows: int = 0
    tokens: int = 0
    supervised: int = 0
    computed: int = 0
    """Tokens that went through the model, padding included."""
    seconds: float = 0.0
    """Time spent in training steps, over all starts of the run."""
    wall_seconds: float = 0.0
    """The same with evaluations and checkpoints."""
    train_loss_first: float | None = None
    """Of the first step that was finite; None before it."""
    train_loss_last: float | None = None
    eval_first: dict[str, float] | None = None
    """The first evaluation that is compared: before training, of step 0, where eval.on_start is set."""
    eval_first_step: int | None = None
    eval_last: dict[str, float] | None = None
    eval_last_step: int | None = None
    best: dict[str, float] | None = None
    """The evaluation that checkpoint.best_metric prefers, and the step that it was after."""
    best_step: int | None = None
    compared_from: int = 0
    """Evaluations of earlier steps are compared with none: they were of other data, tokens or weights."""
    evals_since_best: int = 0
    """Evaluations in a row without progress. One whose best_metric equals the best may become the best, but is none."""
    nonfinite_steps: int = 0
    loss_scale: float | None = None
    """What losses are multiplied by in float16; None in other precisions."""
    clean_steps: int = 0
    """Steps since the loss scale was last changed."""
    overflows: int = 0
    """How often a step's gradients were not finite at one loss scale and were computed again at half of it."""
    ended_early: bool = False
    unevaluated: dict[str, Any] | None = None
    """Of a step whose evaluation a stop has cut short: its object in metrics.jsonl, without what is evaluated."""
    stream: dict[str, Any] | None = None
    """Of a stream of rows: where it goes on (data/cache/stream/rows.py)."""


def evaluation_of(position: Position, step: int) -> dict[str, float] | None:
    """What the weights of a step scored; None where nobody has looked, or it is not kept any more."""
    if step == position.best_step:
        return position.best
    return position.eval_last if step == position.eval_last_step else None


def prune_checkpoints(run_dir: RunDir, *, keep: int, best_step: int | None) -> None:
    """Remove all but the newest `keep` and the best. A directory loses its name before its files."""
    for step in run_dir.committed_steps()[keep:]:
        if step != best_step:
            doomed = run_dir.checkpoints / stage_name(f"step-{step}")
            with storage_errors(doomed):
                run_dir.checkpoint(step).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Found:
    """What a run directory holds. `newest`: the manifest of the newest checkpoint whose every byte verifies."""

    newest: dict[str, Any] | None
    damaged: tuple[int, ...] = ()
    """Steps of checkpoints that are not what was saved, or not what the run goes on from."""


def find_checkpoints(run_dir: RunDir, notice: Callable[[str], None], passed_over: Collection[int] = ()) -> Found:
    """Look for the checkpoint to continue from; each damaged one is spoken of. Of those that are older than the one
    found, manifests and sizes are looked at, and nothing else is read. `passed_over`: those that only end a run which
    is to go on."""
    newest: dict[str, Any] | None = None
    damaged = []
    for step in run_dir.committed_steps():
        if step in passed_over:
            notice(f"checkpoint step-{step} is not gone on from: its weights are NaN or Inf")
            damaged.append(step)
            continue
        try:
            manifest = verify_directory(run_dir.checkpoint(step), hashes=newest is None)
            newest = newest or manifest
        except NotReadError as error:
            if newest is None:  # an older one would be gone on from, and this one's steps made again
                raise not_now(error, MOVED_OUT) from error
            notice(f"checkpoint step-{step} is left as it is: {error}")
        except StorageError as error:
            notice(f"checkpoint step-{step} is damaged and is not used: {error}")
            damaged.append(step)
    return Found(newest, tuple(damaged))


def load_checkpoint(directory: Path, parallel: Parallel, world: World) -> Position:
    """Restore everything. Where the number of ranks has changed, their generators stay as they were seeded.

    Raises StorageError where a file is not what it is named: its bytes are those of the manifest, so whoever wrote one
    wrote the other.
    """
    try:
        with not_read_errors(directory):
            parallel.load(directory)
            position = read_position(directory)
            # By the manifest: a network file system may list what was there a while ago.
            kept = [name for name in read_manifest(directory)["files"] if fnmatch(name, "rng-rank-*.json")]
            if len(kept) == world.world_size:
                _restore_rng(json.loads((directory / f"rng-rank-{world.rank}.json").read_text(encoding="utf-8")))
        return position
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"this is no checkpoint that rankzero wrote: {type(error).__name__}: {error}"
        hint = "move it away; the same command then continues from the one before"
        raise StorageError(what, where=str(directory), hint=hint) from error


def read_position(directory: Path) -> Position:
    """How far the run was, by a checkpoint whose files are as they were saved."""
    state = json.loads((directory / "trainer.json").read_text(encoding="utf-8"))
    known = {field.name for field in fields(Position)}
    return Position(**{name: value for name, value in state["position"].items() if name in known})


def generator_states() -> dict[str, Any]:
    """The states of this process's random generators, for JSON."""
    numpy_state: Any = np.random.get_state(legacy=False)
    version, internal, gauss = random.getstate()
    return {
        "torch": _encode(torch.get_rng_state()),
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
        "python": [version, list(internal), gauss],
    }


@contextmanager
def generators_kept() -> Iterator[None]:
    """This process's random generators are after the block as they were before it, whatever it seeds and draws."""
    before = generator_states()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []  # a seed is one of all
    try:
        yield
    finally:
        _restore_rng(before)
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)


def _restore_rng(state: dict[str, Any]) -> None:
    torch.set_rng_state(_decode(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["cuda"]))  # of this process's own device
    inner = {**state["numpy"]["state"], "key": np.array(state["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**state["numpy"], "state": inner})
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def _encode(tensor: torch.Tensor) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def with_eval(position: Position, metrics: dict[str, float], metric: str) -> tuple[Position, bool]:
    """Position after an evaluation, and whether it is the best so far. NaN never is.

    An evaluation before the first step is a baseline to compare with: nothing trained could be saved as best there.
    """
    since = min(position.compared_from, position.step)
    position = replace(position, eval_last=metrics, eval_last_step=position.step, compared_from=since)
    if position.step == 0:
        return replace(position, eval_first=metrics, eval_first_step=0), False
    if position.eval_first is None:
        position = replace(position, eval_first=metrics, eval_first_step=position.step)
    best = becomes_best(metric, metrics, position.best)
    progress = makes_progress(metric, metrics, position.best)
    return (
        replace(
            position,
            best=metrics if best else position.best,
            best_step=position.step if best else position.best_step,
            evals_since_best=0 if progress else position.evals_since_best + 1,
        ),
        best,
    )


def judged_again(
    position: Position, evaluations: Mapping[int, dict[str, float]], kept: Collection[int], metric: str
) -> Position:
    """The position where another metric than before says what is best: of the comparable `evaluations` so far, those of
    which a checkpoint is `kept`. Patience counts all of them; a run that has ended early stays one."""

    def judged(steps: Iterable[int]) -> Position:
        after = replace(position, best=None, best_step=None, evals_since_best=0)
        for step in sorted(steps):
            if max(1, position.compared_from) <= step <= position.step and metric in evaluations[step]:
                after, _ = with_eval(replace(after, step=step), evaluations[step], metric)
        return after

    best = judged(evaluations.keys() & set(kept))
    waited = position.evals_since_best if position.ended_early else judged(evaluations).evals_since_best
    return replace(position, best=best.best, best_step=best.best_step, evals_since_best=waited)


def under(spec: RunSpec, position: Position, *, comparable: bool) -> Position:
    """The position as a run with this spec continues from it: whether it has ended early is for today's patience to
    say. Not `comparable`: evaluations so far were of other data, other tokens or another model than those to come, or
    in another unit."""
    if not comparable:
        position = replace(position, best=None, best_step=None, evals_since_best=0)
        position = replace(position, eval_first=None, eval_first_step=None, eval_last=None, eval_last_step=None)
        position = replace(position, compared_from=position.step + 1)
    patience = spec.eval.early_stopping_patience
    return replace(position, ended_early=patience is not None and position.evals_since_best >= patience)


def is_over(position: Position, schedule: Schedule) -> bool:
    """Whether no step is left to do."""
    return position.ended_early or position.step >= schedule.total_steps


def only_ends(spec: RunSpec, position: Position, schedule: Schedule) -> bool:
    """Whether the run is over and its result is an earlier step's: nothing is made of the weights as they are now."""
    another = spec.checkpoint.final == "best" and position.best_step not in (None, position.step)
    return another and is_over(position, schedule)
