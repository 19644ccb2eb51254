"""`rankzero open tensorboard`: look at a run in TensorBoard, one of this machine or one of a cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from rankzero.cli.forwarding import forward, kubectl, until_interrupted
from rankzero.cli.help import Sections
from rankzero.cli.logs import RunArgument
from rankzero.cli.render import ClusterOption
from rankzero.errors import ConfigError, ServiceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rankzero.launch.labels import Manifest

app = typer.Typer(cls=Sections, help="Look at runs in a browser.", no_args_is_help=True, rich_markup_mode=None)
DEFAULT_PORT = 6006


@app.callback()
def root() -> None:
    """Look at runs in a browser."""


@app.command("tensorboard")
def open_tensorboard(
    run: RunArgument,
    cluster: ClusterOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of this machine, on loopback.")] = DEFAULT_PORT,
    as_yaml: Annotated[bool, typer.Option("--print", help="Print the objects for a cluster, and end.")] = False,
) -> None:
    """Serve TensorBoard for a run, until Ctrl-C.

    A run of this machine: on its own directory. One of a cluster: a Deployment and a Service for all runs on the volume
    `outputs` are made where they are not there yet, and kubectl forwards the port.
    """
    from rankzero.api.clusters import local_run

    here = None if as_yaml else local_run(run, cluster)
    if here is not None:
        _serve(here, port)
        return
    _forward(run, cluster, port, as_yaml=as_yaml)


def _serve(run: Path, port: int) -> None:
    """TensorBoard on a run directory. Raises ConfigError where there is nothing for it, ServiceError where it ends by
    itself."""
    import importlib.util

    events = run / "events"
    if not events.is_dir():
        hint = "tracking.tensorboard: true writes them; `rankzero report` makes a page of any run"
        raise ConfigError("this run has no TensorBoard events", where=str(events), hint=hint)
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("TensorBoard is not installed", hint="pip install 'rankzero[train]'")
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(events)]
    code = until_interrupted([*command, "--host", "127.0.0.1", "--port", str(port)])
    if code:
        hint = "its own words are above; where the port is taken, give another --port"
        raise ServiceError(f"TensorBoard ended with {code}", where=f"port {port}", hint=hint)


def _forward(run: str, cluster: str | None, port: int, *, as_yaml: bool) -> None:
    """Raises UsageError where there is no such run, ConfigError where there is no kubectl, ServiceError."""
    from rankzero.api.clusters import find_run, open_backend, told_of_this_machine
    from rankzero.api.planning import cluster_from
    from rankzero.cli.cluster_option import say
    from rankzero.launch.backends.kubernetes.backend import KubernetesBackend
    from rankzero.launch.refusals import Asked
    from rankzero.launch.render.tensorboard import PORT, tensorboard

    spec = cluster_from(cluster)
    objects = tensorboard(spec)
    if as_yaml:
        from rankzero.launch.render.content import to_yaml

        typer.echo(to_yaml(objects), nl=False)
        return
    hint = "install it, or reach the Service of `--print` in your own way"
    with told_of_this_machine(run, cluster):
        program = kubectl(spec, "forwards the port", hint)
        backend = open_backend(spec, say=say)
        if not isinstance(backend, KubernetesBackend):
            raise UsageError("runs in containers here are in a directory", where=run, hint="give that of the run")
        name = find_run(backend, run)
    target = backend.serve(objects, say)
    shown = re.escape(_run_name(backend.collect(name, log_lines=0).objects) or run)
    say(f"http://127.0.0.1:{port}/?runFilter={quote(shown)}#timeseries  (Ctrl-C ends it here)")
    try:
        forward(program, target, f"{port}:{PORT}")
    finally:
        kinds, name = ",".join(one["kind"].lower() for one in reversed(objects)), objects[-1]["metadata"]["name"]
        removes = f"{Asked('', context=spec.context or '').kubectl} delete {kinds} {name} -n {spec.namespace}"
        say(f"TensorBoard stays on the cluster for the next time; `{removes}` removes it")


def _run_name(objects: Sequence[Manifest]) -> str | None:
    from rankzero.launch.labels import RUN_NAME

    names = ((one["metadata"].get("annotations") or {}).get(RUN_NAME) for one in objects)
    return next((str(name) for name in names if name), None)
