"""Results to stdout, everything else to stderr; colour only where a terminal shows it. No rich at import."""

from __future__ import annotations

import errno
import os
import select
import shutil
import sys
import textwrap
import traceback
from typing import TextIO

import typer

from rankzero.cli.first_line import leave_out_first_line
from rankzero.errors import Problem, RankzeroError, StoppedError
from rankzero.redaction import Redactor
from rankzero.wording import printable

MOST_PROBLEMS = 25
"""A thousand bad lines are one bad file: the rest is counted."""


def tell(line: str) -> None:
    """What is told on stdout of work that changes something: it goes on where nobody reads that any more."""
    stdout = sys.stdout  # the parser may put another in its place
    try:
        typer.echo(line)
    except OSError as error:
        if not has_no_reader(error, stdout):
            raise
        leave_unsaid(stdout)


def has_no_reader(error: OSError, stream: TextIO) -> bool:
    """Whether something could not be written since nothing that is written there arrives anywhere any more."""
    if error.errno not in (errno.EPIPE, errno.EIO):
        return False
    looked_at = select.poll()
    looked_at.register(stream.fileno(), 0)
    return bool(looked_at.poll(0))


def leave_unsaid(stream: TextIO) -> None:
    """What is still to be flushed goes nowhere, rather than to fail once more at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_error(error: RankzeroError) -> None:
    """Every problem as `error: where: what`, then its hint."""
    leave_out_first_line()
    word, colour = ("stopped", "33") if isinstance(error, StoppedError) else ("error", "31")
    redact = Redactor(os.environ)
    for problem in error.problems[:MOST_PROBLEMS]:
        sys.stderr.write(redact(_problem_text(problem, word, colour)))
    hidden = len(error.problems) - MOST_PROBLEMS
    if hidden > 0:
        sys.stderr.write(f"… and {hidden} more\n")


def print_warning(problem: Problem) -> None:
    """What is doubtful and keeps nothing from running."""
    sys.stderr.write(Redactor(os.environ)(_problem_text(problem, "warning", "33")))


def print_traceback() -> None:
    """Where the error that is being handled came from."""
    sys.stderr.write(Redactor(os.environ)(printable(traceback.format_exc())))


def warn_of_changes(names: tuple[str, ...]) -> None:
    """Files of a result that somebody, or a disk, has changed since the run wrote them."""
    for name in names:
        sys.stderr.write(f"{_paint('warning:', '33')} {name} is not as the run wrote it\n")


def _problem_text(problem: Problem, word: str, colour: str) -> str:
    here = os.path.join(os.getcwd(), "")  # a path below it is read more easily from there
    places = problem.where.split(", ") if here != "/" else [problem.where]  # rows of a batch that went wrong are many
    where = f"{', '.join(place.removeprefix(here) for place in places)}: " if problem.where else ""
    text = _wrapped(printable(f"{word}: {where}{problem.what}"), "  ")
    text = text.replace(f"{word}:", _paint(f"{word}:", colour), 1)
    if problem.hint:
        text += "\n" + _wrapped(printable(f"  hint: {problem.hint}"), "    ").replace("hint:", _paint("hint:", "36"), 1)
    return f"{text}\n"


def _wrapped(text: str, indent: str) -> str:
    """Lines that end between words on a terminal; as it is elsewhere, where programs may read it."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.fill(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        for line in text.split("\n")
    )
    return "\n".join(lines)


def _paint(text: str, colour: str) -> str:
    shown = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[1;{colour}m{text}\x1b[0m" if shown else text
