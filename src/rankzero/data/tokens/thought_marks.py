"""The special tokens that a chat template puts around reasoning, and what an answer says between and behind them. Knows
text; nothing of ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError

_THOUGHT, _SAID = "\ufdd2thought\ufdd3", "\ufdd2said\ufdd3"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """What stands before and behind reasoning: Magistral's `[THINK]` and `[/THINK]`, Gemma 4's `<|channel>`, with the
    head `thought`, and `<channel|>`."""

    opens: str
    head: str
    closes: str

    def parted(self, text: str) -> tuple[str, str, bool] | None:
        """The reasoning of an answer, what it says besides, and whether the reasoning has ended; None of an answer
        without. The prompt may have opened it."""
        if self.opens not in text and self.closes not in text:
            return None
        thoughts, said, rest = list[str](), list[str](), text
        inside = self.closes in text.partition(self.opens)[0]
        while rest:
            piece, met, rest = rest.partition(self.closes if inside else self.opens)
            if inside:
                thoughts.append(piece.strip().removeprefix(self.head).strip())
            else:
                said.append(piece)
            inside = inside is not bool(met)
        return "\n".join(filter(None, thoughts)), "".join(said), not inside


def opened_by(prompt: str, marks: ThoughtMarks | None) -> str:
    """What a prompt that ends inside reasoning has begun it with: these marks or `<think>`; "" of any other prompt."""
    for opens, head in (("<think>", ""), *([(marks.opens, marks.head)] if marks else [])):
        _, met, behind = prompt.rpartition(opens)
        if met and behind.strip() in ("", head):
            return met + behind
    return ""


@lru_cache(8)
def thought_marks(source: str, specials: frozenset[str]) -> ThoughtMarks | None:
    """As a template writes them; None where it writes reasoning without special tokens of its own, or none. Raises
    ConfigError where the template is none."""
    template = ChatTemplate(source, {})
    found = (_marks(text, specials) for turn in _turns(template) if (text := _rendered(template, turn)))
    return next(filter(None, found), None)


def _turns(template: ChatTemplate) -> list[dict[str, Any]]:
    """Answers with reasoning in all forms in which templates read it. Some write it beside calls alone."""
    keys = dict.fromkeys(template.reasoning_keys, _THOUGHT)
    parts = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _SAID}]
    call = {"type": "function", "id": "call12345", "function": {"name": "look", "arguments": {}}}
    return [{"content": _SAID, **keys}, {"content": parts}, {"content": _SAID, **keys, "tool_calls": [call]}]


def _rendered(template: ChatTemplate, turn: Mapping[str, Any]) -> str:
    try:
        return template.render([{"role": "user", "content": "question"}, {"role": "assistant", **turn}])
    except TemplateRefusedError:
        return ""


def _marks(text: str, specials: frozenset[str]) -> ThoughtMarks | None:
    """What stands next to the reasoning, where it stands nowhere else: what ends turns, too, is no mark."""
    before, thought, behind = text.partition(_THOUGHT)
    if not thought or not specials:
        return None
    any_of_them = re.compile("|".join(sorted(map(re.escape, specials), key=len, reverse=True)))
    closing = any_of_them.search(behind.partition(_SAID)[0])
    *_, opening = [None, *any_of_them.finditer(before)]
    if opening is None or closing is None or text.count(opening[0]) > 1 or text.count(closing[0]) > 1:
        return None
    return ThoughtMarks(opening[0], before[opening.end() :].strip(), closing[0])
