"""`rankzero quickstart`: a real model learns facts about rankzero on this machine, and answers before and after."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.spec.run_options import RunOptions

if TYPE_CHECKING:
    from rankzero.engine.quickstart import QuickstartResult


def quickstart(
    output_dir: Annotated[str, typer.Option(help="The run directory is DIR/quickstart.", metavar="DIR")] = "runs",
) -> None:
    """Fine-tune a small chat model on this machine, in two minutes.

    SmolLM2-135M-Instruct learns facts about rankzero, and is asked before and after. Needs no network.
    """
    from rankzero.api.installed import require_engine
    from rankzero.api.training import start
    from rankzero.cli.train import summary

    require_engine()
    typer.echo("SmolLM2-135M-Instruct is asked three questions about rankzero, learns, is asked again …", err=True)
    from rankzero.engine.quickstart import RECIPE, find_model, overrides
    from rankzero.engine.quickstart import quickstart as run_quickstart
    from rankzero.spec.load import Setting, load_run_spec
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.nearby import shown
    from rankzero.spec.resolve import resolve

    settings = [Setting(name, value, "quickstart") for name, value in overrides(find_model(), output_dir).items()]
    loaded = load_run_spec(RECIPE / "run.yaml", settings, env=os.environ)
    spec = absolute(resolve(loaded.spec), loaded.base)
    result = run_quickstart(spec, lambda resolved: start(resolved, RunOptions(), 1, in_process=True))
    typer.echo(conversation(result))
    typer.echo(summary(result.report, shown(result.run_dir)))
    typer.echo("your own       rankzero init; then: rankzero train run.yaml")


def conversation(result: QuickstartResult) -> str:
    """The same questions before and after."""
    width = min(100, os.get_terminal_size().columns if os.isatty(1) else 100)

    def wrap(label: str, text: str) -> str:
        return textwrap.fill(" ".join(text.split()), width, initial_indent=label, subsequent_indent=" " * len(label))

    blocks = [
        f"{wrap('  asked   ', question)}\n{wrap('  before  ', before + ' …')}\n{wrap('  after   ', after)}"
        for question, before, after in result.answers
    ]
    return "\n" + "\n\n".join(blocks) + "\n"
