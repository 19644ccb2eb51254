"""What decides the tokens of a row and which of them are trained. Pure; knows no templates or tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rankzero.data.rows.conversation import Conversation
from rankzero.data.tokens.image_tokens import ImageRules

if TYPE_CHECKING:  # workers need not load pydantic
    from rankzero.spec.row_formats import Reasoning
    from rankzero.spec.run_spec import OverLength, TrainOn
    from rankzero.spec.tasks import Trains


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens of a row are kept, and which of those are trained; most fields are those of the spec."""

    max_length: int = 2048
    over_length: OverLength = "truncate"
    assistant_only_loss: bool = True
    trains: Trains = "answers"
    vision: ImageRules | None = None
    """Of a model that sees images."""
    train_on: TrainOn = "all_turns"
    reasoning: Reasoning = "keep"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    minus_one_is_a_class: bool = False
    """Of rows with labels: -1 is one of data.labels, else it says that there is none."""

    def as_json(self) -> dict[str, Any]:
        """For fingerprints and manifests. Without what is as it is by default: a version with one more rule gives the
        rules of one that did not have it the same words."""
        default = type(self)()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values = {name: value for name, value in values.items() if value != getattr(default, name)}
        if self.vision is not None:
            values["vision"] = self.vision.fingerprint
        if self.template_kwargs:
            values["template_kwargs"] = dict(self.template_kwargs)
        return values


def turn_weights(conversation: Conversation, rules: TokenRules) -> tuple[float, ...]:
    """What the losses of each turn's tokens are multiplied by; 0: the turn is not trained.

    The row's own wish counts first. Where it has none, `train_on` decides about the assistant's turns, and
    `assistant_only_loss` about all others.
    """
    messages = conversation.messages
    answers_only = rules.assistant_only_loss or conversation.completion_only
    weights = [
        0.0 if message.train is False or (answers_only and message.role != "assistant") else message.weight
        for message in messages
    ]
    if rules.train_on == "last_turn":
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
        weights = [weight if i == last or messages[i].train is not None else 0.0 for i, weight in enumerate(weights)]
    return tuple(weights)


LEFT_OUT = "reasoning left out (data.reasoning: drop)"
EARLIER_LEFT_OUT = "reasoning of earlier turns left out (data.reasoning: last)"


def with_wanted_reasoning(conversation: Conversation, rules: TokenRules) -> tuple[Conversation, tuple[str, ...]]:
    """The row with as much of its reasoning as `reasoning` keeps, and a note where that is less than it has.

    last: that of turns behind the last question. Raw text that is not an answer to a prompt is left alone.
    """
    if rules.reasoning == "keep" or not (conversation.templated or len(conversation.messages) > 1):
        return conversation, ()
    messages = conversation.messages
    asked = max((i for i, message in enumerate(messages) if message.role in ("user", "prompt")), default=-1)
    until = len(messages) if rules.reasoning == "drop" else asked
    kept = tuple(message.without_thought() if i < until else message for i, message in enumerate(messages))
    if kept == messages:
        return conversation, ()
    note = LEFT_OUT if rules.reasoning == "drop" else EARLIER_LEFT_OUT
    return replace(conversation, messages=kept), (note,)
