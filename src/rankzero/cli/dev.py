"""`rankzero dev`: pods that stay, get changed files in a moment, and run commands on all nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.help import Sections
from rankzero.cli.logs import JsonOption
from rankzero.cli.render import ClusterOption
from rankzero.errors import INTERRUPTED, Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankzero.launch.backend import Backend
    from rankzero.launch.warm.gpus import PodGpus
    from rankzero.launch.warm.jupyter import Jupyter
    from rankzero.launch.warm.pods import WarmPod
    from rankzero.launch.warm.sync import Synced
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.load import Reading
    from rankzero.spec.run_spec import RunSpec

app = typer.Typer(cls=Sections, help="Try code in pods that stay.", no_args_is_help=True, rich_markup_mode=None)
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Of the pods: everybody has their own.")]
FromOption = Annotated[str, typer.Option("--from", metavar="DIR", help="Whose files are sent.")]
NAME = "dev"
JUPYTER_PORT = 8888
_OTHERWISE = "`rankzero dev down` removes them, then `dev up` makes these; `--name NAME` makes these beside them"


@app.callback()
def root() -> None:
    """Try code in pods that stay."""


@app.command("up")
def up(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="cluster.KEY=VALUE", help="Changes of the cluster spec.")
    ] = None,
    cluster: ClusterOption = None,
    name: NameOption = NAME,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be applied; needs no cluster.")] = False,
) -> None:
    """Make the pods of a cluster.yaml, idle, and wait until all run.

    They hold their GPUs until `dev down`. Given again, it starts what is missing.
    """
    from rankzero.api import dev
    from rankzero.api.clusters import open_backend, submitter
    from rankzero.cli.cluster_option import say
    from rankzero.cli.planning import warn_of_what_has_no_effect
    from rankzero.cli.render import print_objects
    from rankzero.cli.smoke import cluster_settings
    from rankzero.cli.submit import apply
    from rankzero.launch.render import render

    place, where = dev.warm_cluster(cluster, cluster_settings(arguments or []))
    plan = dev.warm_plan(place, name, submitter="" if dry_run else submitter(), where=where)
    warn_of_what_has_no_effect(plan)
    objects = render(plan)
    if dry_run:
        print_objects(objects)
        return
    backend = open_backend(plan.cluster, say=say)
    try:
        apply(backend, objects, plan, otherwise=_OTHERWISE)
        pods = dev.wait_until_warm(backend, plan.name, say)
    except KeyboardInterrupt:
        say("\nthey go on starting; the same command waits for them, rankzero dev down removes them")
        raise typer.Exit(INTERRUPTED) from None
    _warn_of_owner(pods[0].made_by)
    _warn_of_other_code(backend, pods)
    typer.echo("\n".join(pod.name for pod in pods))


@app.command("sync")
def sync(cluster: ClusterOption = None, name: NameOption = NAME, source: FromOption = ".") -> None:
    """Send the files that changed to every pod.

    `.git` and what .gitignore names stay here. Files deleted here go there too, if they were sent before.
    """
    from rankzero.api import dev
    from rankzero.cli.cluster_option import say

    directory = _directory(source)
    _, backend = _place(cluster)
    pods = dev.warm_pods(backend, _object_name(name))
    _warn_of_owner(pods[0].made_by)
    for pod, done in dev.sync(backend, pods, directory, say).items():
        typer.echo(f"{pod}: {_changes(done)}")


@app.command("run", context_settings={"ignore_unknown_options": True})
def run(
    arguments: Annotated[
        list[str], typer.Argument(metavar="RUN.yaml|key=value|-- COMMAND", help="What runs on every node.")
    ],
    cluster: ClusterOption = None,
    name: NameOption = NAME,
    source: FromOption = ".",
    no_sync: Annotated[bool, typer.Option("--no-sync", help="Leave the pods' files as they are.")] = False,
) -> None:
    """Send changed files, then run a command on every node, or a run.yaml.

    What ran there before is ended. Ends with the command's own exit code; Ctrl-C ends it there.
    """
    from rankzero.api import dev
    from rankzero.cli.cluster_option import say

    reading = _spec_given(arguments)
    directory = None if no_sync else _directory(source)
    spec, backend = _place(cluster)
    pods = dev.warm_pods(backend, _object_name(name))
    _warn_of_owner(pods[0].made_by)

    def line(pod: WarmPod, text: str) -> None:
        from rankzero.wording import printable

        typer.echo(f"[{pod.name}] {printable(text)}")

    if directory is not None:
        for pod, done in dev.sync(backend, pods, directory, say).items():
            if done.put or done.removed:
                say(f"{pod}: {_changes(done)}")
    if reading is None:
        code = dev.run_command(backend, pods, arguments, line, say)
    else:
        _warn_of_other_code(backend, pods)
        code = dev.run_spec(backend, pods, reading, spec, line, say)
    raise typer.Exit(code)


def _warn_of_owner(by: str) -> bool:
    """Pods of one name are everybody's in a namespace. Returns whether they are somebody else's."""
    from rankzero.api.clusters import submitter
    from rankzero.cli.cluster_option import say

    if by in ("", submitter()):
        return False
    say(f"warning: {Problem(f'{by} made these pods, and may use them', hint='`--name NAME` makes pods of your own')}")
    return True


def _warn_of_other_code(backend: Backend, pods: Sequence[WarmPod]) -> None:
    """A run spec that is written for this version may not be one for theirs."""
    from rankzero.api import dev
    from rankzero.cli.cluster_option import say

    for problem in dev.other_code(backend, pods):
        say(f"warning: {problem}")


def _spec_given(arguments: Sequence[str]) -> Reading[RunSpec] | None:
    """The run spec, where that is what shall run. Raises UsageError for what is the cluster's."""
    from rankzero.cli.planning import read_arguments

    if not arguments[0].endswith((".yaml", ".yml")):
        return None
    reading, for_cluster = read_arguments(arguments)
    if for_cluster:
        hint = "the pods are there already: give it to `rankzero dev up`"
        raise UsageError("this is the cluster's", where=for_cluster[0], hint=hint)
    return reading


@app.command("shell")
def shell(
    pod: Annotated[str | None, typer.Argument(metavar="POD", help="Its name or number; the first.")] = None,
    cluster: ClusterOption = None,
    name: NameOption = NAME,
) -> None:
    """Open a shell in a pod, where the files that were sent lie."""
    from rankzero.api import dev
    from rankzero.launch.node.settings import WARM_DIR
    from rankzero.launch.warm.sync import WORK

    spec, backend = _place(cluster)
    chosen = _chosen(dev.warm_pods(backend, _object_name(name)), pod)
    place = f"{WARM_DIR}/{WORK}"
    script = f"mkdir -p {place} && cd {place} && if command -v bash >/dev/null; then exec bash; else exec sh; fi"
    sys.exit(subprocess.run([*_terminal(spec, chosen), "sh", "-c", script], check=False).returncode)


@app.command("jupyter")
def jupyter(
    cluster: ClusterOption = None,
    name: NameOption = NAME,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of this machine, on loopback; 8888 or a free one.")
    ] = None,
) -> None:
    """Start Jupyter in the first pod, or find it there, and forward a port to it until Ctrl-C.

    It stays for the next time, whatever `dev run` runs, until `dev down`.
    """
    from rankzero.api import dev
    from rankzero.cli import forwarding
    from rankzero.launch.backends.docker.relay import relay
    from rankzero.spec.kinds import kind_section

    spec, backend = _place(cluster)
    here = kind_section(spec.kind).on_this_machine
    program = [] if here else forwarding.kubectl(spec, "forwards the port")
    pod = dev.warm_pods(backend, _object_name(name))[0]
    with forwarding.listen(port, JUPYTER_PORT) as listening:
        found = dev.jupyter(backend, pod, spec, _object_name(name))
        chosen = listening.getsockname()[1]
        if here:
            with suppress(KeyboardInterrupt):  # who has read the URL may end it at once
                _say_where(found, chosen)
                relay(listening, pod.name, found.port)
            return
    ports = f"{chosen}:{found.port}"
    forwarding.forward(program, f"pod/{pod.name}", ports, lambda: _say_where(found, chosen))


@app.command("gpu")
def gpu(cluster: ClusterOption = None, name: NameOption = NAME, as_json: JsonOption = False) -> None:
    """Show what every pod's GPUs do, of warm pods or of a run (--name RUN)."""
    from rankzero.api import dev

    found = dev.gpus(_place(cluster)[1], _object_name(name))
    typer.echo(json.dumps([asdict(one) for one in found]) if as_json else table(found))


@app.command("down")
def down(cluster: ClusterOption = None, name: NameOption = NAME) -> None:
    """Remove the pods and all that `dev up` made; claims stay."""
    from rankzero.api import dev
    from rankzero.cli.cluster_option import say

    _, backend = _place(cluster)
    if _warn_of_owner(dev.made_by(backend, _object_name(name))) and sys.stdin.isatty():
        typer.confirm("remove them?", abort=True, err=True)
    for removed in dev.down(backend, _object_name(name), say):
        typer.echo(f"removed {removed}")


def table(found: Sequence[PodGpus]) -> str:
    """One line a GPU."""
    rows = [("POD", "GPU", "BUSY", "MEMORY", "TEMP", "POWER", "NAME")]
    for one in found:
        for gpu in one.gpus:
            memory = f"{_said(gpu.memory_used, '')} / {_said(gpu.memory_total, ' MiB')}"
            power = _said(None if gpu.power is None else round(gpu.power), " W")
            busy, heat = _said(gpu.utilization, " %"), _said(gpu.temperature, " C")
            rows.append((one.pod, str(gpu.index), busy, memory, heat, power, gpu.name))
        if not one.gpus:
            rows.append((one.pod, "-", one.trouble or "it has no GPU", "", "", "", ""))
    widths = [max(len(row[column]) for row in rows if row[1] != "-" or column < 2) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _say_where(found: Jupyter, port: int) -> None:
    from rankzero.cli.cluster_option import say

    what = "started" if found.started else "runs already"
    say(f"Jupyter {what} in {found.pod}; Ctrl-C ends the forwarding, `rankzero dev down` ends Jupyter")
    typer.echo(found.url(port))
    sys.stdout.flush()


def _said(number: int | None, unit: str) -> str:
    return "?" if number is None else f"{number}{unit}"


def _place(cluster: str | None) -> tuple[ClusterSpec, Backend]:
    from rankzero.api import dev
    from rankzero.api.clusters import open_backend
    from rankzero.cli.cluster_option import say

    spec, _ = dev.warm_cluster(cluster)
    return spec, open_backend(spec, say=say)


def _directory(source: str) -> Path:
    """Raises UsageError where it is none."""
    from rankzero.launch.warm.files import must_be_directory

    must_be_directory(Path(source), f"--from {source}")
    return Path(source)


def _object_name(name: str) -> str:
    from rankzero.launch.labels import object_name

    return object_name(name)


def _changes(done: Synced) -> str:
    if not done.put and not done.removed:
        return "up to date"
    removed = f", {done.removed} removed" if done.removed else ""
    kept = "".join(f"\n  changed there; what it was is kept as {path}" for path in done.replaced)
    return f"{done.put} files put ({done.sent / 1e6:,.2f} MB){removed}{kept}"


def _chosen(pods: Sequence[WarmPod], wanted: str | None) -> WarmPod:
    """Raises UsageError where there is no such pod."""
    found = [pod for pod in pods if wanted is None or wanted in (pod.name, str(pod.node))]
    if not found:
        raise UsageError("there is no such pod", where=str(wanted), hint=", ".join(pod.name for pod in pods))
    return found[0]


def _terminal(spec: ClusterSpec, pod: WarmPod) -> list[str]:
    """What opens a terminal in a pod; without one here, its standard input. Raises ConfigError where there is no such
    program."""
    from rankzero.cli.forwarding import kubectl
    from rankzero.launch.backends.docker.command import PROGRAM
    from rankzero.launch.backends.docker.pod import container_name
    from rankzero.spec.kinds import kind_section

    wants = "-it" if sys.stdin.isatty() else "-i"
    if kind_section(spec.kind).on_this_machine:
        return [PROGRAM, "exec", wants, container_name(pod.name)]
    return [*kubectl(spec, "opens a terminal in a pod"), "exec", wants, pod.name, f"--container={pod.container}", "--"]
