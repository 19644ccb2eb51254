"""What training teaches to end an answer with: the token that the chat template writes behind one, which neither the
tokenizer nor the base need know as an end (a base model, or a template of one's own)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.cache.training_data import token_rules
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.tokens.chat import Rendered, Renderer
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.token_rules import TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import RunSpec

_BEHIND = 4
"""Trained tokens behind an answer, at most: its end, and a line break or two."""
_LOOKED_AT = 64
_LONGEST = 8192
"""Room for the system prompt that a template may bring."""


def taught_stop(spec: RunSpec, tokenizer: Any, train: TokenizedDataset | Stream) -> int | None:
    """The token; None where answers are not trained, no template writes them, or none of the first rows has it, and of
    a stream, whose rows come later."""
    found = written_stop(tokenizer, token_rules(spec)) if spec.task_section.uses == "writes" else None
    if found is None or isinstance(train, Stream):  # whose rows nobody has seen yet: they may be text without answers
        return None
    for number in range(min(len(train), _LOOKED_AT)):
        ids, trained = train.row(number)
        if found in ids[trained]:
            return found
    return None


def written_stop(tokenizer: Any, rules: TokenRules) -> int | None:
    """The token of its own that the chat template writes behind an answer; None where it writes none, or no answers."""
    if tokenizer.chat_template is None:
        return None
    parts = take_apart(tokenizer, "answers")
    rules = replace(rules, trains="answers", train_on="all_turns", max_length=_LONGEST)
    asked = Conversation((Message("user", "a"), Message("assistant", "a")), templated=True, line=1)
    try:
        rendered = Renderer(parts, rules).render(asked)
    except ConfigError:  # the template is none; then the rows that were read need none
        return None
    if not isinstance(rendered, Rendered):  # the template takes no such turns, and so no rows of them
        return None
    row = next(Encoder(parts, rules).encode([rendered]))
    learnt = [token for start, end in row.ranges for token in row.ids[start:end]]
    own_words = tokenizer.added_tokens_decoder
    return next((token for token in reversed(learnt[-_BEHIND:]) if token in own_words), None)
