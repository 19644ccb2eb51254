"""Which flags of a command were typed, so that one that would do nothing is refused rather than ignored."""

from __future__ import annotations

import typer

from rankzero.errors import UsageError


def refuse_typed(context: typer.Context, names: tuple[str, ...], what: str, hint: str) -> None:
    """Raise UsageError where flags of these parameters were typed."""
    flags = [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name in names and _is_typed(context, parameter.name)
    ]
    if flags:
        raise UsageError(what, where=", ".join(flags), hint=hint)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
