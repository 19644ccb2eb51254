"""The command line: commands by name, and one place where errors become text and exit codes.

Command modules import only what parsing needs; torch and its like are imported inside the commands.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer

from rankzero.api.places import FULL, as_ours
from rankzero.cli import cache as cache_command
from rankzero.cli import cluster as cluster_command
from rankzero.cli import dev as dev_command
from rankzero.cli import runs as runs_command
from rankzero.cli import secret as secret_command
from rankzero.cli import track as track_command
from rankzero.cli.argv import as_usage_error, help_asked_for, is_parser_error, spread_values
from rankzero.cli.chat import chat
from rankzero.cli.data import show as data_command
from rankzero.cli.data.datasets import fire, volcano
from rankzero.cli.data.prepare import prepare
from rankzero.cli.doctor import doctor
from rankzero.cli.eval import evaluate
from rankzero.cli.export import export
from rankzero.cli.generate import generate
from rankzero.cli.help import WIDTH, Sections, use_flags
from rankzero.cli.init import init
from rankzero.cli.logs import logs
from rankzero.cli.merge import merge
from rankzero.cli.open import app as open_app
from rankzero.cli.output import has_no_reader, leave_unsaid, print_error, print_traceback
from rankzero.cli.plan import plan
from rankzero.cli.predict import predict
from rankzero.cli.pull import pull
from rankzero.cli.quickstart import quickstart
from rankzero.cli.render import render
from rankzero.cli.report import report
from rankzero.cli.serve import serve
from rankzero.cli.smoke import smoke
from rankzero.cli.submit import submit
from rankzero.cli.sweep import sweep
from rankzero.cli.train import is_first_here, train
from rankzero.cli.watch import watch
from rankzero.errors import INTERRUPTED, ExitCode, RankzeroError, UsageError
from rankzero.hub_variables import adopt_hub_variables

app = typer.Typer(
    name="rankzero",
    cls=Sections,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=WIDTH,
)
app.command(rich_help_panel="Start")(quickstart)
app.command(rich_help_panel="Start")(init)
app.command(rich_help_panel="Start")(doctor)
app.add_typer(data_command.app, name="data", rich_help_panel="Data")
app.command(rich_help_panel="Train")(train)
app.command(rich_help_panel="Train")(sweep)
app.command(rich_help_panel="Train")(smoke)
app.command(rich_help_panel="Results")(generate)
app.command(rich_help_panel="Results")(chat)
app.command(rich_help_panel="Results")(serve)
app.command("eval", rich_help_panel="Results")(evaluate)
app.command(rich_help_panel="Results")(predict)
app.command(rich_help_panel="Results")(merge)
app.command(rich_help_panel="Results")(export)
app.command("list", rich_help_panel="Runs")(runs_command.list_runs)
for look_at in (runs_command.status, watch, logs, runs_command.compare):
    app.command(rich_help_panel="Runs")(look_at)
app.command(rich_help_panel="Runs")(report)
app.command(rich_help_panel="Runs")(pull)
app.add_typer(open_app, name="open", rich_help_panel="Runs")
app.add_typer(track_command.app, name="track", rich_help_panel="Runs")
app.add_typer(cache_command.app, name="cache", rich_help_panel="Runs")
for command in (plan, render, submit):
    app.command(rich_help_panel="Cluster")(command)
for end in (runs_command.describe, runs_command.cancel, runs_command.delete):
    app.command(rich_help_panel="Cluster")(end)
app.add_typer(cluster_command.app, name="cluster", rich_help_panel="Cluster")
app.add_typer(dev_command.app, name="dev", rich_help_panel="Cluster")
app.add_typer(secret_command.app, name="secret", rich_help_panel="Cluster")
for make in (prepare, fire, volcano):
    data_command.app.command(rich_help_panel=data_command.MAKE)(make)
use_flags(app)

DEBUG_VARIABLE = "RANKZERO_DEBUG"
_ASK_THE_HUB = frozenset(
    {"chat", "data", "eval", "export", "generate", "merge", "plan", "predict", "quickstart", "serve", "sweep", "train"}
)


def print_version(wanted: bool) -> None:
    """Print the version and end, before a command is looked for."""
    if wanted:
        from rankzero.launch.node.code import this_code

        typer.echo(this_code())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Fine-tune language models from one run spec."""


def main() -> None:
    """Run the command line and exit with the code that its outcome has."""
    debug = os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}
    if sys.stdin is None:  # it was closed before Python began: nobody is there to be asked
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open till the end
    _write_what_there_is_no_letter_for()
    if sys.argv[1:2] and sys.argv[1] in _ASK_THE_HUB:
        said = adopt_hub_variables(os.environ)
        if said and is_first_here():
            typer.echo("\n".join(said), err=True)
    try:
        code = _run(sys.argv[1:])
    except RankzeroError as error:
        if debug:
            print_traceback()
        print_error(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except Exception as error:
        if is_parser_error(error):
            _print_usage_error(error)
            sys.exit(ExitCode.USAGE)
        if debug:
            print_traceback()
        words = f"internal error: {type(error).__name__}: {error}"
        hint = f"this should not happen; {DEBUG_VARIABLE}=1 shows where. Please report it"
        print_error(RankzeroError(words, hint=hint))
        sys.exit(ExitCode.INTERNAL)
    if isinstance(code, int) and code:  # a command that ended by typer.Exit
        sys.exit(code)


def _write_what_there_is_no_letter_for() -> None:
    """On stdout in another encoding than UTF-8 as its number: a table's line or a name would end the command. Where
    somebody has said what to do with such letters, that is done."""
    stdout = sys.stdout
    if (
        isinstance(stdout, TextIOWrapper)
        and stdout.errors == "strict"
        and codecs.lookup(stdout.encoding).name != "utf-8"
    ):
        codecs.register_error("rankzero.escape", _escaped)
        stdout.reconfigure(errors="rankzero.escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As JSON writes it in a string, which the output may be."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _run(arguments: Sequence[str]) -> object:
    """What a command returns; its exit code, where it ended by typer.Exit.

    A command whose output nobody reads any more (`rankzero … | head`, a terminal that was closed) has done its work.
    """
    stdout = sys.stdout  # the parser puts another in its place, and ends the process itself
    try:
        return app(args=spread_values(arguments), prog_name="rankzero", standalone_mode=False)
    except (OSError, SystemExit) as end:
        cause = end.__context__ if isinstance(end, SystemExit) else end
        if not isinstance(cause, OSError):
            raise
        if has_no_reader(cause, stdout):
            leave_unsaid(stdout)
            return ExitCode.DONE
        if (told := _of_this_machine(cause, stdout)) is not None:
            raise told from cause
        raise cause from None
    except ValueError as error:  # also pydantic's, and those of encoding
        if (word := next(filter(_is_no_text, arguments), None)) is None:
            raise
        hint = "rename the file, or give another name"
        raise UsageError("this name is no UTF-8 text", where=ascii(word), hint=hint) from error


def _of_this_machine(error: OSError, stdout: TextIO) -> RankzeroError | None:
    """What a user can mend, wherever a command comes upon it. None where the fault may be ours."""
    if error.errno in FULL and not error.filename and _takes_nothing(stdout):
        leave_unsaid(stdout)
        return as_ours(OSError(error.errno, error.strerror, "standard output"))
    return as_ours(error)


def _takes_nothing(stream: TextIO) -> bool:
    """Whether what waits to be written there cannot be."""
    try:
        stream.flush()
    except OSError:
        return True
    return False


def _is_no_text(word: str) -> bool:
    """Whether it is bytes of another encoding than UTF-8, which Python holds as halves of surrogate pairs."""
    return not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word)


def _print_usage_error(error: Exception) -> None:
    help_text = help_asked_for(error)
    if help_text is None:
        print_error(as_usage_error(error))
    else:
        typer.echo(help_text, err=True)
