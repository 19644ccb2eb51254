"""From a cluster spec to the backend that serves it, and from what a user calls a run to its object name."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.launch.backend import Backend
    from rankzero.spec.cluster_spec import ClusterSpec


def say(line: str) -> None:
    """A word to the person who waits; results go to stdout, so this does not."""
    typer.echo(line, err=True)


def open_backend(cluster: ClusterSpec, *, detach: bool = False) -> Backend:
    """Where the runs of a cluster spec are. With `detach`, submit does not wait for the preparation."""
    from rankzero.spec.kinds import kind_section

    if kind_section(cluster.kind).on_this_machine:
        from rankzero.launch.backends.docker.backend import DockerBackend

        return DockerBackend()
    from rankzero.launch.backends.kubernetes.backend import open_kubernetes

    return open_kubernetes(cluster.context, cluster.namespace, say=say, wait=not detach)


def backend_for(cluster: str | None) -> tuple[ClusterSpec, Backend]:
    """The place that --cluster names."""
    from rankzero.cli.planning import cluster_from

    spec = cluster_from(cluster)
    return spec, open_backend(spec)


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


def terminal_width() -> int:
    """Columns of the terminal; 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def wants_colour() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
