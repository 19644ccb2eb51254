"""What a tokenizer itself puts before and behind a raw text. Knows the tokenizer's backend; nothing of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rankzero.errors import ConfigError

BEGINS = "the text begins with the tokenizer's own first token, which is not put before it once more"
ENDS = "the text ends with the tokenizer's own last token, which is not put behind it once more"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The ids before and behind a text."""

    before: list[int]
    after: list[int]

    def around(self, text: Sequence[int]) -> tuple[list[int], list[int], tuple[str, ...]]:
        """What is to stand before and behind a text's tokens, and a note where the text brings it: one that was written
        for a trainer that adds nothing has the tokenizer's own tokens as text."""
        begins = bool(self.before) and list(text[: len(self.before)]) == self.before
        ends = bool(self.after) and list(text[-len(self.after) :]) == self.after
        notes = (*((BEGINS,) if begins else ()), *((ENDS,) if ends else ()))
        return [] if begins else self.before, [] if ends else self.after, notes


def surroundings(backend: Any) -> Surroundings:
    """Of a tokenizers' Tokenizer. Raises ConfigError where it makes nothing of any text, so that nobody can see where
    a text would stand."""
    for text in _texts(backend):
        found = backend.encode(text, add_special_tokens=True)
        # What someone padded with this object before is not put around a text.
        there = [i for i, counts in enumerate(found.attention_mask) if counts]
        ids, added = [found.ids[i] for i in there], [bool(found.special_tokens_mask[i]) for i in there]
        if not ids:
            return Surroundings([], [])
        if not all(added):
            first = sum(1 for _ in takewhile(bool, added))
            last = sum(1 for _ in takewhile(bool, reversed(added)))
            return Surroundings(ids[:first], ids[len(ids) - last :])
    hint = "use the tokenizer that belongs to the model"
    raise ConfigError("the tokenizer makes no tokens of any text", where="model.tokenizer_dir", hint=hint)


def _texts(backend: Any) -> Iterator[str]:
    """Texts, of one of which a tokenizer should make something: an alphabet of DNA has no "a"."""
    yield "a"
    yield from sorted(backend.get_vocab(with_added_tokens=True), key=backend.token_to_id)
