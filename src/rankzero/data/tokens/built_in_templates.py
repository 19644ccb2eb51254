"""The chat templates that come with rankzero: a plain one for models without, and some for training with reasoning.

A template for training is never chosen by a model's name. It is one that renders what the model's own template renders
wherever there is no reasoning. That is tried out: for the head of an answer once, and for every row that it is to
render.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError
from rankzero.data.tokens.tokenizer import Tokenizer, opens_with_bos
from rankzero.data.tokens.turns import turn_of
from rankzero.spec.names import PLAIN_TEMPLATE

_FOLDER = Path(__file__).with_name("templates")
_FOR_TRAINING = ("qwen3", "deepseek_r1")
_QUESTION, _ANSWER = Message("user", "question"), Message("assistant", "answer")


def read_template(wanted: str, tokenizer: Tokenizer) -> str:
    """The text of a Jinja file, or of rankzero's plain template where that is wanted, as it is for this tokenizer.

    Raises OSError or UnicodeDecodeError where a file cannot be read.
    """
    if wanted == PLAIN_TEMPLATE:
        return plain_template(opens_with_bos=opens_with_bos(tokenizer))
    return Path(wanted).read_text(encoding="utf-8")


def plain_template(*, opens_with_bos: bool) -> str:
    """The text of `data.chat_template: plain`. `opens_with_bos`: as texts that the model was trained on."""
    return ("{{- bos_token -}}\n" if opens_with_bos else "") + _read("plain")


@dataclass(frozen=True, slots=True)
class TrainingTemplate:
    """One that keeps the reasoning of all turns, and renders as `own` does where there is none."""

    name: str
    template: ChatTemplate
    own: ChatTemplate

    @property
    def note(self) -> str:
        """For reports."""
        return f"chat template: rankzero's {self.name} for training, since the model's own leaves out reasoning"

    def agrees(self, conversation: Conversation) -> bool:
        """Whether the row comes to the same text under both, once its reasoning is taken out."""
        turns = [turn_of(message.without_thought()) for message in conversation.messages]
        try:
            return self.template.render(turns, tools=conversation.tools) == self.own.render(
                turns, tools=conversation.tools
            )
        except TemplateRefusedError:
            return False


def training_template(own: ChatTemplate, variables: Mapping[str, Any]) -> TrainingTemplate | None:
    """The one that agrees with a model's own template, opening of answers included; None where none does."""
    try:
        asked = own.render([turn_of(_QUESTION)])
        opened = own.render([turn_of(_QUESTION)], opening=True).removeprefix(asked)
        answered = own.render([turn_of(_QUESTION), turn_of(_ANSWER)])
    except TemplateRefusedError:
        return None
    closed = "</think>" in opened
    found = {
        "thought_opened": "<think>" in opened and not closed,
        "thought_closed": closed,
        "empty_thought": "</think>" in answered,
    }
    for name in _FOR_TRAINING:
        template = ChatTemplate(_read(name), {**variables, **found})
        try:
            same = template.render([turn_of(_QUESTION)], opening=True) == asked + opened
        except TemplateRefusedError:
            continue
        if same:
            return TrainingTemplate(name, template, own)
    return None


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
