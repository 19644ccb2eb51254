"""Train a run on this machine: in processes of its own, or in this one. Knows no terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.api.arguments import process_count
from rankzero.api.places import places_told
from rankzero.api.specs import SpecSource
from rankzero.spec.run_options import RunOptions

if TYPE_CHECKING:
    from rankzero.api.runs import Run
    from rankzero.spec.run_spec import RunSpec


@places_told()
def train(
    spec: SpecSource,
    overrides: Mapping[str, object] | None = None,
    *,
    nproc_per_node: int | None = None,
    max_restarts: int = 0,
    options: RunOptions | None = None,
    in_process: bool = False,
) -> Run:
    """Train a run on this machine, or continue it where it stopped. Returns it when it is finished.

    `spec` is a run.yaml, a mapping, or what `load_spec` gave. `nproc_per_node` is how many processes; None: one for
    each GPU, or one. `max_restarts` is how often it is started again after a failure that may pass.

    The run has processes of its own, also where it is one: what they take they give back when they end, a run that is
    out of memory does not take a notebook along, and an interrupt (Ctrl-C, or a notebook's stop button) lets the step
    end, saves, and raises StoppedError; the same call continues. `in_process` trains one process inside this one
    instead, where a debugger reaches it; a second interrupt waits there for what torch is computing.

    What is only doubtful is a Python warning. Raises the run's error: ConfigError or DataError before a model is
    loaded, with every problem, StorageError where the directory is held by another, KeyboardInterrupt after a
    second interrupt within 5 s, which saves nothing.
    """
    from rankzero.api.python_warnings import doubts_told
    from rankzero.api.runs import Run
    from rankzero.api.specs import checked, read
    from rankzero.errors import UsageError
    from rankzero.preflight import EVERYTHING

    processes = process_count(nproc_per_node)
    if in_process and (processes > 1 or max_restarts):
        hint = "leave in_process out: a run of several processes, or one that is started again, has its own"
        raise UsageError("this process can be one process of a run, once", where="in_process", hint=hint)
    with doubts_told() as warn:
        resolved = settled_elsewhere(checked(read(spec, overrides), EVERYTHING, warn=warn))
        chosen = options or RunOptions()
        require_startable(resolved, chosen, processes)
    run_to_end(resolved, chosen, processes, max_restarts, in_process=in_process, own_process=False)
    return Run(Path(resolved.output_dir) / str(resolved.name))


def start(
    spec: RunSpec,
    options: RunOptions,
    nproc: int,
    max_restarts: int = 0,
    *,
    in_process: bool,
    begun: float | None = None,
) -> dict[str, Any]:
    """Run a resolved spec to its end. Returns the report. `begun` is when the start began, on the monotonic clock,
    where that was before this call. Raises as `require_startable`, or the run's error."""
    require_startable(spec, options, nproc)
    return run_to_end(spec, options, nproc, max_restarts, in_process=in_process, begun=begun)


def require_startable(spec: RunSpec, options: RunOptions, nproc: int) -> None:
    """Raise as `require_same_run`, or ConfigError where processes cannot be grouped as the spec asks for or nothing is
    installed that trains it."""
    from rankzero.api.installed import require_engine
    from rankzero.spec.process_groups import require_whole_groups

    require_same_run(spec, options)
    if options.smoke is None and "RANK" not in os.environ:  # else whoever set it knows how many there are
        require_whole_groups(spec, nproc)
    require_engine()
    if options.smoke is None:
        require_packages_of(spec)  # before rows become tokens, which takes longest


def require_packages_of(spec: RunSpec) -> None:
    """Raise ConfigError where the run has steps to come and cannot do without what is not installed."""
    from rankzero.api.installed import require_packages
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.setting import is_finished

    if not is_finished(RunDir(Path(spec.output_dir) / str(spec.name)), spec):
        require_packages(spec)


def require_same_run(spec: RunSpec, options: RunOptions) -> None:
    """Raise UsageError for a change that no run may be allowed, ConfigError where the run directory has checkpoints of
    another run. Data and weights are compared when they are read."""
    from rankzero.errors import UsageError
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.same_run import refuse_foreign_directory
    from rankzero.spec.diff import not_allowable

    if problems := not_allowable(options.allow_changes):
        raise UsageError(problems)
    refuse_foreign_directory(RunDir(Path(spec.output_dir) / str(spec.name)), spec, options.allow_changes)


def run_to_end(
    spec: RunSpec,
    options: RunOptions,
    nproc: int,
    max_restarts: int,
    *,
    in_process: bool,
    begun: float | None = None,
    own_process: bool = True,
) -> dict[str, Any]:
    """As `start`, with nothing left to check. `own_process`: this one was started for the run; it is not its caller's,
    which goes on after the run, however that ends."""
    with kept_elsewhere(spec, options.allow_changes):
        if in_process and options.smoke is not None:
            from rankzero.engine.smoke.check import smoke  # of the training stack it imports torch alone

            return smoke(spec, options, begun=begun, own_process=own_process)
        if in_process:
            from rankzero.engine.worker import run

            return run(spec, options, begun=begun, own_process=own_process)
        from rankzero.launch.local import run_processes

        text = run_processes(spec, options, nproc, os.environ, max_restarts=max_restarts, begun=begun)
        report: dict[str, Any] = json.loads(text)
        return report


def settled_elsewhere(spec: RunSpec) -> RunSpec:
    """The spec with the name that it runs under, which with `resume: new` may be decided by what only its object store
    has. Raises StorageError where that does not answer."""
    if spec.output_url is None or spec.resume != "new":
        return spec
    from rankzero.persist import copying
    from rankzero.persist.run_store import copy_url

    return copying.settled_by_copies(spec, [str(copy_url(spec))], _said())


@contextmanager
def kept_elsewhere(spec: RunSpec, allowed: Collection[str] = ()) -> Iterator[None]:
    """As copying.kept_elsewhere, said on standard error. Under torchrun rank 0 does it."""
    if spec.output_url is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    from rankzero.persist import copying

    with copying.kept_elsewhere(spec, _said(), allowed=allowed):
        yield


def _said() -> Callable[[str], None]:
    """Says on standard error what is copied."""
    from rankzero.redaction import Redactor
    from rankzero.stderr import write_stderr
    from rankzero.wording import printable

    redact = Redactor(os.environ)

    def say(text: str) -> None:
        write_stderr(redact(printable(f"{datetime.now():%H:%M:%S} [COPY] {text}\n")))

    return say
