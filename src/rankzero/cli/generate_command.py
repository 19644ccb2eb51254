"""`rankzero generate`: ask a finished run a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.spec.run_spec import RunSpec


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT…", help="One or more questions.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply, in tokens.")] = 128,
    base: Annotated[bool, typer.Option("--base", help="Ask the model as it was before training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of {prompt, reply}.")] = False,
) -> None:
    """Answer prompts greedily with the result of a run."""
    from rankzero.cli.train_command import require_engine

    spec = finished_spec(Path(run))
    require_engine()
    from rankzero.engine.ask import ask_run

    replies = ask_run(spec, Path(run), prompts, max_new_tokens=max_new_tokens, base=base)
    if as_json:
        pairs = [{"prompt": prompt, "reply": reply} for prompt, reply in zip(prompts, replies, strict=True)]
        typer.echo(json.dumps(pairs, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n\n".join(f"> {prompt}\n{reply}" for prompt, reply in zip(prompts, replies, strict=True)))


def finished_spec(run: Path) -> RunSpec:
    """The spec of a run that has a result. Raises ConfigError where there is none."""
    from rankzero.spec.load import load_run_spec

    if not (run / "run.yaml").is_file():
        raise ConfigError("this is no run directory: run.yaml is missing", where=str(run))
    if not (run / "final").is_dir():
        hint = "give its `rankzero train` command again; it continues from the newest checkpoint"
        raise ConfigError("this run has no result yet: final/ is missing", where=str(run), hint=hint)
    return load_run_spec(run / "run.yaml", env={}).spec
