"""`rankzero doctor`: what this machine or a cluster has for training, what it lacks, and how to mend it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.logs import JsonOption
from rankzero.cli.render import ThereOption
from rankzero.cli.typed import refuse_typed

if TYPE_CHECKING:
    from rankzero.doctor.finding import Finding

_COLOURS = {"ok": "32", "look": "33", "wrong": "31"}


def doctor(
    context: typer.Context,
    cluster: ThereOption = None,
    output: Annotated[str, typer.Option(metavar="DIR", help="Where results would go.")] = "runs",
    online: Annotated[bool, typer.Option("--online", help="Ask the Hub too; without it nothing is asked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what training would lack here, and how to mend it.

    With --cluster: there, for the pods of that cluster.yaml. Nothing is applied.

    Ends with 0 only where training would start, else with the code that it would end with.
    """
    from rankzero.doctor.finding import exit_code, to_json

    if cluster is None:
        from rankzero.doctor.here import this_machine

        findings = _shown(this_machine(os.environ, Path(output), online=online), as_json=as_json)
    else:
        refuse_typed(context, ("output", "online"), "this is looked at from here", "leave it out, or --cluster")
        from rankzero.api.doctor import cluster_findings
        from rankzero.cli.cluster_option import say

        findings = _shown(cluster_findings(cluster, say), as_json=as_json)
    if as_json:
        typer.echo(json.dumps(to_json(findings), indent=2))
    raise typer.Exit(int(exit_code(findings)))


def _shown(findings: Iterable[Finding], *, as_json: bool) -> list[Finding]:
    """Each is printed as it is found: some take seconds. Secrets are out of what is returned, too."""
    from rankzero.redaction import Redactor
    from rankzero.wording import printable

    redact, seen = Redactor(os.environ), []
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for found in findings:
        one = replace(found, what=redact(found.what), fix=redact(found.fix))
        seen.append(one)
        if as_json:
            continue
        state = f"\x1b[{_COLOURS[one.state]}m{one.state:5}\x1b[0m" if colour else f"{one.state:5}"
        typer.echo(f"{state}  {printable(f'{one.name:15}  {one.what}')}")
        if one.fix:
            typer.echo(f"       {'':15}  fix: {printable(one.fix)}")
    return seen
