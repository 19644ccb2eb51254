"""Results copied to object stores while a run trains, and brought back before it starts. Knows no training.

What is committed here comes first: a store that is down or slow costs the run nothing, and gets later what it lacks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from rankzero.errors import Problem, StopNow, StorageError
from rankzero.persist.run_store import RunStore, copy_url, newest_intact
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import settled, what_is_held
from rankzero.spec.run_spec import RunSpec

T = TypeVar("T")
Say = Callable[[str], None]
INTERVAL_SECONDS = 15.0
ATTEMPTS = 3
PAUSE_SECONDS = 2.0
"""Between attempts, at the start and at the end of a run."""


def settled_by_copies(spec: RunSpec, urls: Sequence[str], say: Say, *, in_pods: bool = False) -> RunSpec:
    """As `setting.settled`, where the copies of the run's directory at these URLs count as well.

    Raises StorageError where one that has to tell does not answer.
    """
    run_dir = RunDir(Path(spec.output_dir) / str(spec.name))

    def newest() -> Mapping[str, Any] | None:
        for url in urls:
            try:
                held = _tried(RunStore(run_dir, url, spec).newest_manifest, say)
            except StorageError as error:
                raise _not_started(error, url) from error
            if held is not None:
                return held
        return None

    return settled(spec, newest, in_pods=in_pods)


def _not_started(error: StorageError, url: str) -> StorageError:
    hint = "a run may be there that this one would write over: try again"
    if all(problem.where == url for problem in error.problems):  # the store's own fault, and not the disk's here
        hint += ", or leave the copy's URL out"
    return StorageError([*error.problems, Problem("so nothing was started", url, hint)])


def bring_back(run_dir: RunDir, store: RunStore, say: Say) -> None:
    """Before a start: fill the run directory from its store where that has a newer checkpoint, or alone has any.

    Raises StorageError where the store does not answer and nothing is here: the run may be there, and a new one would
    write over it. With a checkpoint here it is only said. Raises OtherRunError where the store has another run under
    this name, StorageError where another process trains here.
    """
    here = max(run_dir.committed_steps(), default=None)
    try:
        _tried(store.require_ours, say)
        there = _tried(store.newest_step, say)
        nothing_here = here is None and what_is_held(run_dir) is None
        if nothing_here and there is None and _tried(store.newest_manifest, say) is not None:
            say(f"{store.url} has a result of this run and no checkpoint: it is trained from its beginning")
            say(f"the result stays there until this run has ended; `rankzero pull {run_dir.root.name} …` brings it")
        if there is None or (here is not None and there < here):
            return
        here = newest_intact(run_dir)  # one that is damaged here is whole there, perhaps
        if here is not None and there <= here:
            return
        lease = Lease(run_dir.root)
        lease.acquire(say=say)  # nobody trains here meanwhile
        try:
            step = _tried(lambda: store.restore(say), say)
        finally:
            lease.release()
    except StorageError as error:
        if here is None and store.is_finished_here():
            say(f"{error}; the run is finished, by what is here")
            return
        if here is None:
            raise _not_started(error, store.url) from error
        say(f"{error}; the run goes on from step {here}, which is here")
        return
    if step is not None:
        say(f"step {step} brought back from {store.url}")


@contextmanager
def kept_elsewhere(
    spec: RunSpec, say: Say, *, allowed: Collection[str] = (), hurried: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Where the spec names an object store: what it has of the run comes first, what is committed goes there. `allowed`
    are fields that may have changed, `hurried` is as in `copied`.

    A store that fails is spoken of and changes no run's end: all is here, and the same command copies what is missing.
    Raises, before the run, OtherRunError where the store has another run under this name, and StorageError where it
    does not answer and this one may be there.
    """
    url = copy_url(spec)
    if url is None:
        yield
        return
    run_dir = RunDir(Path(spec.output_dir) / str(spec.name))
    store = RunStore(run_dir, url, spec, allowed)
    bring_back(run_dir, store, say)
    failures: list[StorageError] = []
    try:
        with copied([store], say, hurried=hurried) as failures:
            yield
    finally:
        for failure in failures:
            say(f"not all of the run is in {store.url}: {failure}")
            say(f"all of it is in {run_dir.root}; the same command copies what is missing")


@contextmanager
def copied(
    stores: Sequence[RunStore], say: Say, *, hurried: Callable[[], bool] = lambda: False
) -> Iterator[list[StorageError]]:
    """For the duration, what is committed goes to the stores; at the end the rest does, also of a run that failed.

    What is yielded holds, after the end, the errors of stores that lack something. A second Ctrl-C leaves at once;
    where it is heard in another thread, `hurried` tells of it.
    """
    failures: list[StorageError] = []
    ended = threading.Event()
    thread = threading.Thread(target=_copy_until, args=(ended, stores, say), daemon=True)
    thread.start()
    in_a_hurry = False
    try:
        yield failures
    except BaseException as end:
        in_a_hurry = isinstance(end, (KeyboardInterrupt, StopNow))
        raise
    finally:
        ended.set()
        if not in_a_hurry and not hurried():
            thread.join()
            failures += [error for store in stores if (error := _last_copy(store, say)) is not None]


def _copy_until(ended: threading.Event, stores: Sequence[RunStore], say: Say) -> None:
    failing: set[str] = set()
    while not ended.wait(INTERVAL_SECONDS):
        for store in stores:
            try:
                store.upload()
            except StorageError as error:
                if store.url not in failing:
                    say(f"{error}; the run goes on, and this is tried again every {INTERVAL_SECONDS:.0f} s")
                failing.add(store.url)
            else:
                if store.url in failing:
                    say(f"{store.url} answers again and has all that was saved")
                failing.discard(store.url)


def _last_copy(store: RunStore, say: Say) -> StorageError | None:
    try:
        _tried(store.upload, say)
    except StorageError as error:
        return error
    finally:
        with suppress(StorageError):  # who comes next has the place in any case
            store.release()
    say(f"results copied to {store.url}")
    return None


def _tried(work: Callable[[], T], say: Say) -> T:
    """More than once. Raises the last StorageError."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except StorageError as error:
            say(f"{error} (attempt {attempt} of {ATTEMPTS})")
            time.sleep(PAUSE_SECONDS)
    return work()
