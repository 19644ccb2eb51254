"""`rankzero cluster`: a cluster made at a provider, and taken down again, by the provider's own programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.help import Sections
from rankzero.cli.logs import JsonOption
from rankzero.cli.output import print_warning, tell
from rankzero.errors import ConfigError, UsageError
from rankzero.spec.providers import Provider

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankzero.api.provisioning import Deletion, Planned, Provisioning
    from rankzero.provision.steps import Step

app = typer.Typer(
    cls=Sections, help="Make a cluster at a provider, and take it down.", no_args_is_help=True, rich_markup_mode=None
)
FileOption = Annotated[str, typer.Option("--file", "-f", metavar="infra.yaml", help="What the cluster is.")]
ProviderOption = Annotated[Provider | None, typer.Option(help="Who has it, where the file does not say.")]


@app.callback()
def cluster() -> None:
    """Clusters at a provider."""


@app.command()
def plan(file: FileOption, provider: ProviderOption = None, as_json: JsonOption = False) -> None:
    """Print the commands that would make what is not there. Changes nothing."""
    from rankzero.cli.cluster_option import say

    wanted = opened(file, provider, say)
    warn_of_the_unread(wanted)
    try:
        wanted.require()
        look = True
    except ConfigError as error:
        say(f"{error}\nnobody is asked what is there already")
        look = False
    planned = wanted.plan(look=look)
    if as_json:
        value = [{"step": one.title, "there": one.there, "commands": list(one.commands)} for one in planned]
        typer.echo(json.dumps(value, indent=1))
    else:
        typer.echo("\n".join(shown(planned)))


@app.command()
def create(file: FileOption, provider: ProviderOption = None) -> None:
    """Make what is not there, step by step. Given again after a failure, it goes on from there."""
    wanted = opened(file, provider)
    warn_of_the_unread(wanted)
    wanted.require()
    tell("\n".join(shown(wanted.plan(look=False))))
    tell("this is all of it; what is there already is not made again\n")
    with changing(wanted, file, provider):
        facts = wanted.create()
    tell(f"\ncluster {wanted.spec.name} is ready. For cluster.yaml:\n  context: {facts['kubeconfig']}")
    chart = wanted.spec.chart
    if chart is not None and chart.storage_class is not None:
        tell(f"  storage: {{outputs: {{…, class: {chart.storage_class}}}}}")


@app.command()
def credentials(file: FileOption, provider: ProviderOption = None) -> None:
    """Give this machine's kubeconfig access to a cluster that is there."""
    wanted = opened(file, provider)
    wanted.require(wanted.walk.taken(["kubeconfig"]))
    with changing(wanted, file, provider):
        context = wanted.credentials()
    tell(f"context: {context}")


@app.command()
def delete(
    file: FileOption,
    provider: ProviderOption = None,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Also file systems, with all that is on them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take down what create made, and nothing else. File systems stay, unless asked for."""
    wanted = opened(file, provider)
    wanted.require(wanted.walk.noted())
    with changing(wanted, file, provider):
        deletion = wanted.deletion(with_data=with_data, asks=not yes)
        _delete(wanted, deletion, yes)
    if with_data and deletion.kept:
        what = f"{', '.join(step.title for step in deletion.kept)} is still there, with what is on it"
        raise UsageError(what, where="--with-data", hint="the same command without --yes asks, and then deletes it")


def _delete(wanted: Provisioning, deletion: Deletion, yes: bool) -> None:
    """What is foretold, once it is agreed to."""
    doomed, gone = deletion.doomed, deletion.there.gone
    tell("\n".join(foretold(deletion, wanted.walk.record.path.name)))
    if not doomed and not gone:
        return
    question = (
        f"delete {len(doomed)} of {wanted.spec.name}?" if doomed else f"forget {len(gone)} of {wanted.spec.name}?"
    )
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask", where="delete", hint="--yes deletes without asking")
        typer.confirm(question, abort=True, err=True)
    wanted.delete(deletion)
    for word, steps in (("deleted", doomed), ("forgotten", gone)):
        if steps:
            tell(f"{word}: {', '.join(step.title for step in steps)}")


@contextmanager
def changing(wanted: Provisioning, file: str, provider: Provider | None) -> Iterator[None]:
    """One command at a time, which says what it leaves where it is stopped."""
    from rankzero.cli.cluster_option import say
    from rankzero.cli.undoing import undone_where_stopped

    with undone_where_stopped(), wanted.alone():
        try:
            yield
        except BaseException as end:
            if isinstance(end, Exception):
                raise
            left = ", ".join(wanted.walk.record.titles) or "nothing"
            what = f"stopped; {wanted.walk.record.path} has {left}: the same command goes on from here"
            chosen = () if provider is None else ("--provider", provider)
            say(f"{what}, and `{shlex.join(('rankzero', 'cluster', 'delete', '-f', file, *chosen))}` takes it down")
            raise


def foretold(deletion: Deletion, made_file: str) -> list[str]:
    """What a deletion will do, line by line; `made_file` says what was made."""
    lines = [
        f"{step.title} will be deleted{' WITH ALL THAT IS ON IT' if step.data else ''}" for step in deletion.doomed
    ]
    lines += [f"{step.title} stays, with what is on it; {_deleted_by(step, deletion)}" for step in deletion.kept]
    lines += [
        f"{step.title} was asked for, and nobody said that it was made: it is taken for that by its name alone"
        for step in deletion.guessed
    ]
    lines += [
        f"{step.title} was made, and is not found there any more: it will be forgotten" for step in deletion.there.gone
    ]
    lines += [
        f"{title} was made from this file, and not asked for: give what has another name now its old one to delete it"
        for title in deletion.there.unasked
    ]
    for step, commands in deletion.theirs:
        away = " with all that is on it" if step.data else ""
        lines.append(f"{step.title} is there and stays: {made_file} does not say that it was made. It goes{away} by")
        lines += [f"  {command}" for command in commands]
    if not deletion.doomed and not deletion.there.gone:
        kept = deletion.kept or deletion.there.unasked or deletion.theirs
        lines.append("nothing else is there that was made from this file" if kept else "nothing that was made is there")
    return lines


def _deleted_by(step: Step, deletion: Deletion) -> str:
    if step in deletion.guessed:
        return "--with-data without --yes asks before it deletes it, too"
    return "--with-data deletes it, too"


def warn_of_the_unread(wanted: Provisioning) -> None:
    """Fields that change nothing of what is made."""
    for problem in wanted.unread:
        print_warning(problem)


def opened(file: str, provider: str | None, say: Callable[[str], None] = tell) -> Provisioning:
    """An infra.yaml, whose commands are shown as they run: where a plan is the result, beside it."""
    from rankzero.api.provisioning import Provisioning

    return Provisioning(Path(file), provider, say)


def shown(planned: Sequence[Planned]) -> list[str]:
    """A plan, line by line."""
    lines = []
    for one in planned:
        state = "is there" if one.there else "" if one.commands else "is looked for"
        lines.append(f"# {one.title} {state}".rstrip())
        lines += one.commands
    return lines
