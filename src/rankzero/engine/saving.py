"""Saving beside the steps: what a checkpoint holds is copied between two of them, and written while the run goes on.

    the loop        copy to the host ──┐                        next save: waits until this one is committed
    another thread                     └─ write ─ sync, hash ─ commit ─ move `last`, `best` ─ prune

Every rank hashes what it wrote itself. The thread has a process group of its own, so that a slow volume holds up no
collective of a step. A kill at any moment leaves the checkpoints that were committed before. Knows nothing of steps.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankzero.engine.checkpoint import Position, generator_states, prune_checkpoints
from rankzero.engine.console import logger
from rankzero.engine.distributed import World, background_group, broadcast_object, gather_objects, lost_a_peer
from rankzero.engine.parallel.base import Parallel, Snapshot
from rankzero.engine.parallel.formats import is_finite, written_by
from rankzero.errors import NonFiniteError, PeerLostError, Problem, StorageError
from rankzero.machine import available_memory
from rankzero.run_dir.atomic import (
    commit_directory,
    fsync_path,
    stage_name,
    storage_errors,
    write_json,
    written_files,
)
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.steps import ONLY_ENDS

_MOST_OF_MEMORY = 0.5
"""A copy that takes more of the memory that is available is not made: the step waits for the volume instead."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Contents:
    """What this rank has of one checkpoint."""

    position: Position
    tensors: Snapshot
    generators: dict[str, Any]
    only_to_end: bool = False
    """Nothing is made of these weights, and nothing goes on from them: they are saved though they are NaN."""


class Saver:
    """Writes one checkpoint after the other. `lease` is the main rank's; a run that lost its directory commits nothing.

    Used by one thread: `save` and `wait` are collectives.
    """

    def __init__(
        self,
        run_dir: RunDir,
        lease: Lease | None,
        parallel: Parallel,
        world: World,
        *,
        meta: dict[str, Any],
        keep: int,
        step: int,
        step_bytes: float = 0.0,
    ) -> None:
        """`meta`: what the manifest says of the run. `keep`: how many checkpoints stay besides the best. `step`: where
        the run begins or continues. `step_bytes`: of the host's memory, what a step of this rank takes beyond what is
        held between two; 0 where it is not known. A collective."""
        self._run_dir, self._lease, self._parallel, self._world = run_dir, lease, parallel, world
        self._meta, self._keep, self._step_bytes = meta, keep, step_bytes
        self._group = background_group()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._untold: deque[int] = deque()
        self._copy: Snapshot | None = None
        self._lost_before: frozenset[str] = frozenset()
        self.taken = self.committed = step
        """The steps of the newest checkpoints that were taken, and committed."""

    def take_as_they_are(self) -> None:
        """The weights that the run begins with, or goes on from: what is NaN or Inf in them is no loss of a step, as in
        rows of embeddings that nothing uses. A collective of their names: ranks look at their own parts alone."""
        own = [name for name, part in self._parallel.trained() if not is_finite(part)]
        found = sorted({name for names in gather_objects(own) for name in names})
        self._lost_before = frozenset(found)
        if found:
            shown = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
            words = "[MODEL] %s: NaN or Inf before this start's first step; what training adds to it is not looked at"
            logger.warning(words, shown)

    @property
    def failed(self) -> bool:
        """Whether what is being written was not saved. The next `save` or `wait` raises it, on all ranks."""
        return self._failure is not None

    @property
    def writing(self) -> bool:
        """Whether this process writes a checkpoint, beside whatever else it does."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, position: Position, *, only_to_end: bool = False) -> None:
        """Take what the checkpoint of this step holds, and have it written. Waits until the one before is committed.
        `only_to_end`: the run is over, and its result is another step's.

        Raises StorageError, on every rank, where the one before failed, and NonFiniteError.
        """
        self.wait()
        self.taken = position.step
        tensors = self._parallel.snapshot()
        at_once = not all(gather_objects(self._copy is not None or self._has_room(tensors.held)))
        self._copy = None if at_once else tensors.copied(self._copy)
        contents = Contents(position, self._copy or tensors, generator_states(), only_to_end)
        if at_once:
            logger.debug("[CHECKPOINT] no memory for a copy: the steps wait until step %d is saved", position.step)
            self._write(contents)
            self.wait()
            return
        self._thread = threading.Thread(target=self._write, args=(contents,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until what was taken is committed. Raises StorageError, on every rank, where it was not."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def newly_committed(self) -> list[int]:
        """Steps whose checkpoints were committed since the last call."""
        told = []
        while self._untold:  # one at a time: the other thread may be adding
            told.append(self._untold.popleft())
        return told

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Let what is being written be finished, whatever ends the run; after the loss of a process it may never be.
        That it failed is said, and does not hide what ended the run."""
        if self._thread is not None and not (error is not None and lost_a_peer(error)):
            self._thread.join()
        if self._failure is not None:
            logger.warning("[CHECKPOINT] while ending: %s", self._failure)

    def _has_room(self, nbytes: int) -> bool:
        """For a copy of so many bytes, beside which the next steps need theirs: no gradients are held now."""
        if nbytes == 0:
            return True
        processes, available = self._world.local_world_size, available_memory()
        beside_a_step = (nbytes + self._step_bytes) * processes < available
        return nbytes * processes < _MOST_OF_MEMORY * available and beside_a_step

    def _write(self, contents: Contents) -> None:
        try:
            self.commit(contents)
        except StorageError as error:
            self._failure = error
        except Exception as error:
            gone = lost_a_peer(error)
            self._failure = PeerLostError(f"another process is gone, or does not answer: {error}") if gone else error
        else:
            step = contents.position.step
            self.committed = step
            self._untold.append(step)
            logger.info("[CHECKPOINT] saved step %d", step)

    def commit(self, contents: Contents) -> None:
        """Write and commit a checkpoint. A collective of the thread's own group; raises on every rank StorageError, and
        NonFiniteError where weights are not finite: the run would go on from them, and the good ones be pruned."""
        step, world = contents.position.step, self._world
        name: str = broadcast_object(stage_name(f"step-{step}") if world.is_main else None, self._group)
        staged = self._run_dir.checkpoints / name
        generators = staged / f"rng-rank-{world.rank}.json"
        failure: str | None = None
        try:
            with storage_errors(staged):
                staged.mkdir(parents=True, exist_ok=True)
                write_json(generators, contents.generators)
        except (StorageError, OSError) as error:
            failure = _not_saved(error)
        # before a rank waits for one that left
        own = [name for name in contents.tensors.not_finite() if name not in self._lost_before]
        found = self._agree(failure, (contents.tensors.nbytes, own), staged)
        needed = sum(nbytes for nbytes, _ in found)
        if lost := [name for _, names in found for name in names]:
            not_finite = not_finite_error(step, lost)
            if not contents.only_to_end:
                shutil.rmtree(staged, ignore_errors=True)
                raise not_finite
            logger.warning("[CHECKPOINT] step %d: weights are NaN or Inf; the result is of another step", step)
        entries: dict[str, dict[str, Any]] = {}
        try:
            check_space(staged, needed)
            with storage_errors(staged):
                contents.tensors.write(staged, self._group)
                if world.is_main:
                    write_json(staged / "trainer.json", {"position": asdict(contents.position)})
            entries = written_files(staged, [generators, *written_by(world.rank, staged)])
        except (StorageError, OSError) as error:
            failure = _not_saved(error)
        known = {file: entry for part in self._agree(failure, entries, staged) for file, entry in part.items()}
        if world.is_main and self._lease is not None:
            committed = False
            try:
                with storage_errors(self._run_dir.metrics), suppress(FileNotFoundError):
                    fsync_path(self._run_dir.metrics)  # no checkpoint of steps whose lines a power cut takes
                self._lease.check()
                final = self._run_dir.checkpoint(step)
                about = {**self._meta, "step": step, **({ONLY_ENDS: True} if lost else {})}
                commit_directory(staged, final, about, known=known)
                committed = True
                self._point_to(contents.position, keep=self._keep + bool(lost))
            except StorageError as error:
                done = (
                    f"the checkpoint of step {step} is saved; `best`, `last` and older ones are not as they should be"
                )
                failure = f"{done}\n{error}" if committed else _not_saved(error)
        self._agree(failure, None, staged)

    def _point_to(self, position: Position, *, keep: int) -> None:
        """Move `last` and `best` to the new checkpoint, and drop what is no longer kept."""
        self._run_dir.set_link("last", position.step)
        self._run_dir.point_to_best(position.best_step)
        prune_checkpoints(self._run_dir, keep=keep, best_step=position.best_step)

    def _agree(self, failure: str | None, value: Any, staged: Path) -> list[Any]:
        """Every rank's value, where no rank has failed: all learn of any failure, so that none waits in vain."""
        told = gather_objects((failure, value), self._group)
        failures = [text for text, _ in told if text]
        if failures:
            shutil.rmtree(staged, ignore_errors=True)
            raise StorageError(failures[0])
        return [value for _, value in told]


def _not_saved(error: Exception) -> str:
    return f"the checkpoint was not saved; older ones are intact\n{error}"


def not_finite_error(step: int, names: Sequence[str]) -> NonFiniteError:
    """Names the weights that are NaN or Inf after a step."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    what = f"after step {step} weights are NaN or Inf: that is no checkpoint, and older ones stay"
    hint = (
        "to go on from the newest one, give the command again with a lower train.learning_rate and "
        "--allow-change train.learning_rate"
    )
    return NonFiniteError(Problem(what, f"{names[0]}{more}", hint))


def check_space(
    directory: Path,
    needed: int,
    what: str = "the checkpoint",
    way_out: str = "set checkpoint.keep lower, or set output_dir to another one",
) -> None:
    """Raise StorageError where the volume of `directory` has fewer than `needed` bytes left for `what`."""
    with storage_errors(directory):
        free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(
            f"{what} takes {needed / 1e9:.3g} GB, and this volume has {free / 1e9:.3g} GB left",
            where=str(directory),
            hint=f"free space on this volume, {way_out}",
        )
