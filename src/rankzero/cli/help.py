"""Help in sections: commands and flags by what they are for, in whole sentences. Light: no rich.

What typer calls `rich_help_panel` is the section here; typer shows panels only where it imports rich, which costs more
than all the rest of --help.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup

from rankzero.errors import UsageError

_ORDER = ("Start", "Data", "Train", "Results", "Runs", "Cluster", "Look", "Make", "Arguments", "Options")
WIDTH = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command line: both names of the help, and no longer lines on a wide terminal."""

_TYPE = re.compile(r" <([^<>]+)>$")
"""What typer says of a value for which the flag has no word of its own; of an argument it says it beside that word."""
_TYPE_WORDS = {"int": "N", "float": "X", "str": "TEXT", "list[str]": "TEXT", "path": "PATH"}


class Sections(TyperGroup):
    """A group of commands whose help has a section for each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first: that is what is looked for."""
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        longest = max(len(name) for name, _ in shown)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in shown:
            row = (f"{name:{longest}}", first_sentence(command.help or ""))
            sections.setdefault(_panel(command) or "Commands", []).append(row)
        _write(sections, formatter)
        _write_flags(self.get_params(ctx), ctx, formatter)


_PLACES = frozenset({"FILE", "DIR", "PATH", "RUN", "MODEL", "ADAPTER", ".env", "infra.yaml"})
"""What the help calls text that is or may be a path here, alone or beside something else (`DIR|ID`)."""


class Flags(TyperCommand):
    """A command whose flags have a section for each panel, whose numbers are finite, and whose paths may begin with
    `~`: no shell sees to it in `--output=~/page.html`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises UsageError for `nan` and `inf`, which pass what is said of the least and the most."""
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if value is not None:
                is_place = not _PLACES.isdisjoint((parameter.metavar or "").split("|"))
                ctx.params[parameter.name] = _at_home(value, is_place=is_place)
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"must be a finite number, but is {value}", where=max(parameter.opts, key=len))
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, flags without a panel, then the panels."""
        _write_flags(self.get_params(ctx), ctx, formatter)


def _at_home(value: Any, *, is_place: bool) -> Any:
    if isinstance(value, list):
        return [_at_home(one, is_place=is_place) for one in value]
    if isinstance(value, Path):
        return Path(os.path.expanduser(value))
    return os.path.expanduser(value) if is_place and isinstance(value, str) else value


def use_flags(app: Typer) -> None:
    """Have every command of `app`, and of those within it, show its help so."""
    for command in app.registered_commands:
        command.cls = Flags
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_flags(group.typer_instance)


def first_sentence(text: str) -> str:
    """`Train a run.` of a text that says more; in one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    match = re.match(r".*?[^.]\.(?=\s|$)", paragraph)
    return match.group() if match else paragraph


def _write_flags(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            name = _TYPE.sub("" if is_argument else _word_for_type, record[0])
            usual = "Arguments" if is_argument else "Options"
            sections.setdefault(_panel(parameter) or usual, []).append((name, record[1]))
    _write(sections, formatter)


def _word_for_type(found: re.Match[str]) -> str:
    """` N` for ` <int range>`; choices are left as they are."""
    word = _TYPE_WORDS.get(found[1].removesuffix(" range"))
    return f" {word}" if word else found[0]


def _write(sections: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    for name in sorted(sections, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        with formatter.section(name):
            formatter.write_dl(sections[name])


def _panel(owner: object) -> str | None:
    """The section that something was given; typer has a placeholder where it was given none."""
    panel = getattr(owner, "rich_help_panel", None)
    return panel if isinstance(panel, str) else None
