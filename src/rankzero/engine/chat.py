"""A chat with a run's result, or any model, on this machine's device: loaded once, with what was said so far.

Knows nothing of terminals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from rankzero.engine.ask import require_unicode
from rankzero.engine.console import logger, results_alone_on_stdout
from rankzero.engine.device import pick_device, pick_dtype
from rankzero.model.converse import reply
from rankzero.model.generate import NO_MEMORY_HINT, Speaker, Turn, load_speaker
from rankzero.model.load import settled_libraries
from rankzero.model.out_of_memory import out_of_memory_told
from rankzero.run_dir.result import Result
from rankzero.spec.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Voice:
    """One of the models that answer. `name` is `base` or `tuned` where there are two, else empty."""

    name: str
    speaker: Speaker
    muted: Callable[[], AbstractContextManager[object]] = nullcontext
    """Within, its adapter does nothing: the model as it was before training."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one voice said."""

    voice: str
    text: str


OnPiece = Callable[[str, str], None]
"""Is told the voice's name and each piece of its answer when it is written; first an empty one."""


def _nobody(_voice: str, _piece: str) -> None:
    """Hears nothing."""


class Chat:
    """A conversation. With two voices each goes on from its own answers."""

    def __init__(self, voices: Sequence[Voice], sampling: Sampling, system: str | None = None) -> None:
        self.voices, self.sampling, self._system = tuple(voices), sampling, system
        self._turns: dict[str, list[Turn]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        first = [] if self._system is None else [Turn("system", self._system)]
        self._turns = {voice.name: list(first) for voice in self.voices}

    @settled_libraries
    def ask(self, text: str, *, images: Sequence[str] = (), on_piece: OnPiece = _nobody) -> list[Answer]:
        """The answer of each voice. An error, or an interrupt, leaves the conversation as it was.

        Raises ConfigError where there are images and the model sees none, DataError where one cannot be read,
        UsageError for what is no text, RankzeroError where memory runs out.
        """
        require_unicode([text], "the message")
        asked = Turn("user", text, tuple(map(os.path.expanduser, images)))
        answers = []
        for voice in self.voices:

            def tell(piece: str, name: str = voice.name) -> None:
                on_piece(name, piece)

            tell("")
            turns = [*self._turns[voice.name], asked]
            with voice.muted(), out_of_memory_told("the message", NO_MEMORY_HINT):
                answers.append(Answer(voice.name, reply(voice.speaker, turns, self.sampling, tell)))
        for answer in answers:
            self._turns[answer.voice] += [asked, Turn("assistant", answer.text)]
        return answers


def open_chat(result: Result, sampling: Sampling, *, base: Result | None = None, system: str | None = None) -> Chat:
    """Load what answers; with `base`, that too, before the result. An adapter's base is not loaded a second time. Warns
    where a system prompt is left out.

    Raises ConfigError, AccessError, ServiceError, UsageError.
    """
    require_unicode([] if system is None else [system], "the system prompt")
    voices = open_voices(result, base)
    for voice in voices:
        if system is not None and voice.speaker.tokenizer.chat_template is None:
            words = "[RESULT] %s has no chat template: it goes on with the last message, without the system prompt"
            logger.warning(words, voice.name or "the model")
    return Chat(voices, sampling, system)


def open_voices(result: Result, base: Result | None = None, *, measures: bool = False) -> list[Voice]:
    """The result alone, or `base` before it; `measures`: chat templates see the date of training, not today. Raises
    ConfigError, AccessError, ServiceError."""
    tuned = replace(_speaker(result), dated_as_trained=measures)
    if base is None:
        return [Voice("", tuned)]
    if result.adapter:
        return [Voice("base", tuned, tuned.model.disable_adapter), Voice("tuned", tuned)]
    return [Voice("base", replace(_speaker(base), dated_as_trained=measures)), Voice("tuned", tuned)]


@settled_libraries
def _speaker(result: Result) -> Speaker:
    device = pick_device(0)
    with results_alone_on_stdout():
        return load_speaker(result, pick_dtype(result.model.dtype, device), device.torch_device)
