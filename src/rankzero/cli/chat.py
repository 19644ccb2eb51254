"""`rankzero chat`: talk with the result of a run, or any model. Reads lines, prints answers as they are written."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.target import BaseOption, TargetArgument
from rankzero.errors import DataError, RankzeroError, UsageError

if TYPE_CHECKING:
    from rankzero.engine.chat import Chat

_HELP = (
    "/image PATH  what the next message is about\n/reset       forget what was said\n/exit        leave (Ctrl-D too)"
)
_COMMANDS = ("/exit", "/help", "/image", "/quit", "/reset")


def chat(
    target: TargetArgument,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    image: Annotated[
        list[str] | None, typer.Option("--image", metavar="FILE", help="What the first message is about; repeatable.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw among the likeliest of this probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among so many of the likeliest; 0: all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Draw the same each time.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    base: Annotated[bool, typer.Option("--base", help="Talk with the run's model as it was before training.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Base and tuned answer, each for itself.")] = False,
    model: BaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="An object {prompt, replies} a line.")] = False,
) -> None:
    """Talk with the result of a run, or any model.

    It is loaded once and knows what was said. Without a terminal: a message a line, but blank ones, and an answer for
    each. /help says what else can be typed, alone on a line; Ctrl-C ends an answer.
    """
    from rankzero.api.results import chat as open_chat
    from rankzero.cli.output import warn_of_changes
    from rankzero.spec.sampling import Sampling

    sampling = Sampling(max_new_tokens, temperature, top_p, top_k, seed)
    opened = open_chat(target, sampling, system=system, base=base, compare=compare, model=model, tell=warn_of_changes)
    talk = Talk(opened, as_json=as_json, attended=sys.stdin.isatty(), images=list(image or ()))
    for line in lines(talk.attended):
        if not talk.hear(line):
            return


@dataclass(slots=True)
class Talk:
    """A chat and what its next message is about."""

    chat: Chat
    as_json: bool
    attended: bool
    """Whether a person types: then a mistake is told, and the talk goes on."""
    images: list[str] = field(default_factory=list)

    def hear(self, line: str) -> bool:
        """One line that was typed. Returns whether the talk goes on."""
        word, _, rest = line.strip().partition(" ")
        if not word:
            return True
        if word in ("/exit", "/quit") and not rest:
            return False
        try:
            self._do(word, rest.strip(), line.strip())
        except RankzeroError as error:
            if not self.attended:
                raise
            from rankzero.cli.output import print_error

            print_error(error)
        except KeyboardInterrupt:
            if not self.attended:
                raise
            typer.echo("\n(ended; the model does not remember it)", err=True)
        return True

    def _do(self, word: str, rest: str, line: str) -> None:
        if word == "/image":
            self._note_image(rest)
        elif line == "/reset":
            self.chat.reset()
            self.images.clear()
        elif line == "/help":
            typer.echo(_HELP, err=True)
        elif self.attended and word.startswith("/") and word[1:].isalpha():
            what = f"{word} stands alone on a line" if word in _COMMANDS else f"{word} is no command"
            raise UsageError(what, where="chat", hint=", ".join(_COMMANDS))
        else:  # of a pipe, whose lines may begin with anything
            self._answer(line)

    def _note_image(self, path: str) -> None:
        import os

        path = os.path.expanduser(path)
        if not os.path.isfile(path):
            raise DataError("there is no such image", where=path or "/image", hint="/image PATH")
        self.images.append(path)

    def _answer(self, text: str) -> None:
        images, self.images = tuple(self.images), []
        if self.as_json:
            answers = self.chat.ask(text, images=images)
            replies = {answer.voice or "reply": answer.text for answer in answers}
            typer.echo(json.dumps({"prompt": text, "replies": replies}, ensure_ascii=False))
            return
        self.chat.ask(text, images=images, on_piece=_Streamed(len(self.chat.voices) > 1))
        typer.echo()


class _Streamed:
    """Prints pieces as they come, each voice's under its name where there are several."""

    def __init__(self, named: bool) -> None:
        self._named, self._voice, self._begun = named, "", False

    def __call__(self, voice: str, piece: str) -> None:
        if self._named and voice != self._voice:
            typer.echo(("\n" if self._voice else "") + f"{voice + ':':7}", nl=False)
            self._voice, self._begun = voice, False
        text = piece if self._begun else piece.lstrip()
        self._begun = self._begun or bool(text)
        typer.echo(text, nl=False)
        sys.stdout.flush()


def lines(attended: bool, ask: Callable[[str], str] = input) -> Iterator[str]:
    """What is typed, to the end of it. Of bytes that are no text the message is told, as of an argument."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if not attended:
        yield from sys.stdin
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - arrow keys and a history in input()
    typer.echo("/help says what can be typed; /exit leaves", err=True)
    while True:
        try:
            yield ask("> ")
        except EOFError:
            typer.echo(err=True)
            return
        except KeyboardInterrupt:
            typer.echo("\n/exit leaves", err=True)
