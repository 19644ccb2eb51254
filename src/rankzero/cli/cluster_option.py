"""What commands that look at runs say, and how wide and colourful they may."""

from __future__ import annotations

import os
import sys

import typer


def say(line: str) -> None:
    """A word to the person who waits; results go to stdout, so this does not."""
    from rankzero.redaction import Redactor
    from rankzero.wording import printable

    typer.echo(Redactor(os.environ)(printable(line)), err=True)


def terminal_width() -> int:
    """Columns of the terminal; 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def wants_colour() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
