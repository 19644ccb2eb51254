"""`rankzero generate`: ask the result of a run, or any model, a question."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rankzero.cli.target import BaseOption, TargetArgument


def generate(
    target: TargetArgument,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="One or more questions.")],
    image: Annotated[
        list[str] | None, typer.Option("--image", metavar="FILE", help="What the questions are about; repeatable.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply, in tokens.")] = 128,
    base: Annotated[bool, typer.Option("--base", help="Ask the run's model as it was before training.")] = False,
    model: BaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of {prompt, reply}.")] = False,
) -> None:
    """Ask the result of a run, or any model, a question.

    Replies are greedy. In a prompt, <image> says where the next image stands.
    """
    from rankzero.api.results import generate as answers
    from rankzero.cli.output import warn_of_changes

    replies = answers(
        target, prompts, images=image or (), max_new_tokens=max_new_tokens, base=base, model=model, tell=warn_of_changes
    )
    if as_json:
        pairs = [{"prompt": prompt, "reply": reply} for prompt, reply in zip(prompts, replies, strict=True)]
        typer.echo(json.dumps(pairs, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n\n".join(f"> {prompt}\n{reply}" for prompt, reply in zip(prompts, replies, strict=True)))
