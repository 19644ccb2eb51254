"""Runs on clusters: submitted, found, judged. Talks to a cluster's API where it is asked to; knows no terminal.

A run there is called by its name, or by its run.yaml, and its objects by a form of that name that clusters allow.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.api.places import places_told
from rankzero.api.specs import SpecSource
from rankzero.errors import ConfigError, RankzeroError, UsageError

if TYPE_CHECKING:
    from rankzero.launch.backend import Backend
    from rankzero.launch.evidence import Evidence
    from rankzero.launch.labels import Manifest
    from rankzero.launch.plan import Plan
    from rankzero.launch.status.model import RunStatus
    from rankzero.run_dir.view import RunView
    from rankzero.spec.cluster_spec import ClusterSpec

Say = Callable[[str], None]
"""Is told, in a line each, what a long call does."""


def _silent(_line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run that was submitted."""

    name: str
    """Of its objects."""
    kind: str
    namespace: str
    run_dir: str | None
    """As the pods see it. None with `resume: new`, until its status says which one they took."""
    backend: Backend

    @places_told()
    def status(self) -> RunStatus:
        """One look: phase, verdict, what to do. Raises ServiceError where the cluster does not answer."""
        from rankzero.launch.status import run_status

        return run_status(self.backend.collect(self.name))

    @places_told()
    def cancel(self) -> None:
        """Stop it: it saves, and leaves its GPUs. Submitting it again continues it."""
        self.backend.cancel(self.name, _silent)


@places_told()
def submit(
    spec: SpecSource,
    cluster: str | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    cluster_overrides: Mapping[str, object] | None = None,
    allow_changes: Sequence[str] = (),
    replace: bool = False,
    say: Say = _silent,
) -> ClusterRun:
    """Have a cluster train a run, or continue it there; returns when it is accepted.

    `spec` is a run.yaml or what would stand in one: its relative paths are files here that travel along; what
    `load_spec` gave has none. `cluster` is a cluster.yaml or a profile's name; None: as $RANKZERO_CLUSTER or
    ./cluster.yaml says. `replace` ends another run of this name. Raises ConfigError with every problem before anything
    is sent, AlreadyRunsError, ServiceError, or AccessError.
    """
    from rankzero.api.planning import plan_of, without_effect
    from rankzero.api.python_warnings import warn_of
    from rankzero.launch.render import render

    there, who = cluster_overrides, submitter()
    plan = plan_of(spec, cluster, overrides, cluster_overrides=there, allow_changes=allow_changes, submitter=who)
    for doubtful in without_effect(plan):
        warn_of(doubtful)
    backend = open_backend(plan.cluster, say=say, detach=True)
    return submitted(backend, render(plan), plan, say=say, replace=replace)


def submitted(backend: Backend, objects: list[Manifest], plan: Plan, *, say: Say, replace: bool) -> ClusterRun:
    """Send a plan's objects. A preparation that failed is explained by what the cluster shows of it."""
    from rankzero.errors import Problem
    from rankzero.launch.backends.preparation import PreparationError
    from rankzero.launch.diagnose import diagnose

    try:
        backend.submit(objects, say, replace=replace)
    except PreparationError as error:
        told = " ".join(str(problem) for problem in error.problems)
        found = [
            one for one in diagnose(backend.collect(plan.name)) if one.severity != "info" and one.cause not in told
        ]
        more = [Problem(one.cause, hint=one.fix) for one in found[:2]]
        raise PreparationError([*error.problems, *more], error.exit_code) from error
    return ClusterRun(plan.name, plan.kind, plan.cluster.namespace, plan.known_run_dir, backend)


@places_told()
def status(run: str | os.PathLike[str], cluster: str | None = None) -> RunView | RunStatus:
    """How a run is: one of this machine by its directory or name in ./runs, else a cluster's by its name or run.yaml.

    A cluster's where `cluster`, $RANKZERO_CLUSTER or ./cluster.yaml names one. Raises UsageError where there is no such
    run there, ServiceError where the cluster does not answer.
    """
    from rankzero.run_dir.view import view_run

    asked = os.path.expanduser(os.fspath(run))
    here = local_run(asked, cluster)
    if here is not None:
        return view_run(here)
    from rankzero.launch.status import run_status

    with told_of_this_machine(asked, cluster):
        backend = backend_for(cluster)[1]
        return run_status(backend.collect(find_run(backend, asked)))


def local_run(run: str, cluster: str | None) -> Path | None:
    """The directory of the run that is meant, where it is one of this machine: a run directory by its path, or, where
    no cluster is chosen, a name in ./runs or a run.yaml that was trained. None: it is a cluster's.

    Raises ConfigError where no cluster is chosen and there is no such run here.
    """
    from rankzero.api.planning import cluster_is_chosen
    from rankzero.api.runs import Run
    from rankzero.run_dir.known import is_run

    if cluster is not None:
        return None
    if is_run(Path(run)):
        return Path(run)
    if cluster_is_chosen():
        return None
    try:
        return Run.open(_directory_of(run)).path
    except ConfigError as error:
        hint = "a run on a cluster is looked for with --cluster FILE|PROFILE"
        raise ConfigError([replace(one, hint=f"{one.hint}; {hint}") for one in error.problems]) from None


@contextmanager
def told_of_this_machine(run: str | None, cluster: str | None) -> Iterator[None]:
    """Where a cluster.yaml or $RANKZERO_CLUSTER made a command ask a cluster, what it is refused says where the run of
    that name on this machine is. `run`: None asks for all."""
    try:
        yield
    except RankzeroError as error:
        hint = "" if cluster is not None else runs_of_this_machine(run)
        if not hint:
            raise
        told = [replace(one, hint="; ".join(filter(None, (one.hint, hint)))) for one in error.problems]
        raise type(error)(told) from error


def runs_of_this_machine(run: str | None) -> str:
    """How to look at a run in ./runs, or at all of them; empty where there are none."""
    from rankzero.run_dir.named import DEFAULT_OUTPUT, named_run, runs_in

    if run is None:
        found = len(runs_in(Path(DEFAULT_OUTPUT)))
        return f"`rankzero list {DEFAULT_OUTPUT}` shows this machine's ({found})" if found else ""
    place = named_run(run)
    if not (Path(place) / "run.yaml").is_file():
        return ""
    return f"{place} is a run of this machine: `rankzero status {shlex.quote(place)}`"


def _directory_of(run: str) -> str:
    """The run directory of a run.yaml that trains; any other name as it is."""
    if not (run.endswith((".yaml", ".yml")) and Path(run).is_file()):
        return run
    from rankzero.run_dir.setting import settled
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    loaded = load_run_spec(Path(run), env=os.environ)
    spec = settled(absolute(resolve(loaded.spec), loaded.base))
    return str(Path(spec.output_dir) / str(spec.name))


def submitter() -> str:
    """Who submits from here: `user@machine`."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def open_backend(cluster: ClusterSpec, *, say: Say = _silent, detach: bool = False) -> Backend:
    """Where the runs of a cluster spec are. With `detach`, submit does not wait for the preparation."""
    from rankzero.spec.kinds import kind_section

    section = kind_section(cluster.kind)
    if section.on_this_machine:
        from rankzero.launch.backends.docker.backend import DockerBackend

        return DockerBackend()
    if section.on_hosts:
        from rankzero.launch.backends.slurm.backend import SlurmBackend
        from rankzero.launch.kinds.slurm import state_directory

        return SlurmBackend(Path(state_directory(cluster)), say=say, explain=why_it_waits)
    from rankzero.launch.backends.kubernetes.backend import open_kubernetes

    return open_kubernetes(cluster.context, cluster.namespace, say=say, wait=not detach)


def why_it_waits(evidence: Evidence) -> list[str]:
    """What keeps a run from starting and what to do about it; nothing where nothing does."""
    from rankzero.errors import Problem
    from rankzero.launch.diagnose import diagnose

    found = [one for one in diagnose(evidence) if one.severity in ("broken", "waiting")]
    return [str(Problem(one.cause, hint=one.fix)) for one in found[:1]]


def backend_for(cluster: str | None, say: Say = _silent) -> tuple[ClusterSpec, Backend]:
    """The place that `cluster` names."""
    from rankzero.api.planning import cluster_from

    spec = cluster_from(cluster)
    return spec, open_backend(spec, say=say)


def object_name_of(run: str) -> str:
    """The object name of a run that is given by its name or its run.yaml."""
    from rankzero.launch.labels import object_name

    if not run.endswith((".yaml", ".yml")):
        return object_name(run)
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.resolve import resolve

    return object_name(str(resolve(load_run_spec(Path(run), env=os.environ).spec).name))


def find_run(backend: Backend, run: str) -> str:
    """The object name of a run that exists. Raises UsageError with what may have been meant."""
    name = object_name_of(run)
    known = [evidence.run for evidence in backend.runs()]
    if name in known:
        return name
    evidence = backend.collect(name, log_lines=0)
    if evidence.objects or evidence.pods:  # its training object is gone, the rest is not
        return name
    raise unknown_run(run, name, known)


def unknown_run(run: str, name: str, known: list[str]) -> UsageError:
    """What to say of a run that is not there."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = "`rankzero list` shows all runs" if known else "there are no runs there; is it the right --cluster?"
    return UsageError("there is no such run", where=run, hint=hint)
