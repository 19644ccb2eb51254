"""`rankzero secret set`: values from an env file or the environment into the Secrets that a cluster spec refers to.

No value is ever an argument, and none is printed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from rankzero.cli.help import Sections
from rankzero.cli.logs import JsonOption
from rankzero.cli.render import ClusterOption
from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.launch.secrets import Choice
    from rankzero.spec.cluster_spec import ClusterSpec

app = typer.Typer(
    cls=Sections, help="Set the Secrets that runs on a cluster use.", no_args_is_help=True, rich_markup_mode=None
)


class Written(TypedDict):
    """What was done to one Secret."""

    outcome: str
    keys: list[str]


@app.callback()
def secret() -> None:
    """Secrets of runs on a cluster."""


@app.command("set")
def set_secrets(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these variables; never values.")] = None,
    cluster: ClusterOption = None,
    from_env_file: Annotated[str | None, typer.Option(metavar=".env", help="File of KEY=VALUE lines.")] = None,
    from_env: Annotated[bool, typer.Option("--from-env", help="Take the values from the environment.")] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="One Secret for all keys, whatever the cluster spec refers to.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create or update the Secrets that a cluster spec refers to."""
    from rankzero.api.planning import cluster_from
    from rankzero.spec.kinds import kind_section

    refuse_values(keys or [])
    if (from_env_file is None) == (not from_env):
        raise UsageError("where are the values?", hint="either --from-env-file .env or --from-env")
    spec = cluster_from(cluster)
    if not kind_section(spec.kind).in_kubernetes:
        hint = "export the variables before `rankzero submit`"
        raise UsageError(f"{spec.kind} runs take secrets from this environment", where="--cluster", hint=hint)
    choice = chosen(spec, keys or [], from_env_file, name)
    done = write(spec, choice)
    if as_json:
        typer.echo(json.dumps(done))
        return
    for one, facts in done.items():
        typer.echo(f"{facts['outcome']} Secret/{one} in {spec.namespace}: {', '.join(facts['keys'])}")
    if choice.missing:
        typer.echo(f"left as they are, for want of a value: {', '.join(choice.missing)}", err=True)


def refuse_values(keys: list[str]) -> None:
    """Raise UsageError, without a word of what was typed, where an argument holds or may hold a value."""
    if any("=" in key for key in keys):
        hint = "it is in the shell's history now, and others could see it: make a new one, and use --from-env-file .env"
        raise UsageError("a value on the command line is no secret any more", where="secret set", hint=hint)


def chosen(spec: ClusterSpec, keys: list[str], file: str | None, name: str | None) -> Choice:
    """What goes to which Secret. Raises UsageError or ConfigError."""
    from rankzero.launch.secrets import Choice, choose, from_environment, read_env_file
    from rankzero.spec.cluster_checks import env_name_of

    source = file or "environment"
    if name is None:
        for number, key in enumerate(keys, start=1):
            if env_name_of(key) not in map(env_name_of, spec.secrets):  # not shown: it may be a value that slipped in
                hint = f"those of cluster.yaml are: {', '.join(spec.secrets) or 'none'}"
                raise UsageError(
                    "not a variable that cluster.yaml's secrets have", where=f"argument {number}", hint=hint
                )
        values = from_environment(spec.secrets, os.environ) if file is None else read_env_file(Path(file))
        return choose(spec.secrets, values, keys or None, source)
    if file is None and not keys:
        raise UsageError("which variables?", where="--name", hint="rankzero secret set KEY… --from-env --name NAME")
    values = from_environment(keys, os.environ) if file is None else read_env_file(Path(file))
    absent = [number for number, key in enumerate(keys, start=1) if key not in values]
    if absent or not values:
        which = ", ".join(f"argument {number}" for number in absent) or "any variable"
        raise UsageError(f"{which}: nothing of this name", where=source)
    return Choice({name: {key: values[key] for key in keys or values}})


def write(spec: ClusterSpec, choice: Choice) -> dict[str, Written]:
    """Send them. Returns, for each Secret, what was done and the names of its keys."""
    from rankzero.cli.cluster_option import say
    from rankzero.launch.backends.kubernetes.backend import open_kubernetes
    from rankzero.launch.secrets import secret_manifest

    manifests = {name: secret_manifest(name, spec.namespace, values) for name, values in choice.secrets.items()}
    backend = open_kubernetes(spec.context, spec.namespace, say=say)
    done: dict[str, Written] = {}
    for name, manifest in manifests.items():
        done[name] = Written(outcome=backend.put_secret(manifest), keys=sorted(manifest["data"]))
    return done
