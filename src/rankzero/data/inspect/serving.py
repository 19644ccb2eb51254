"""Training's rendering of a chat row beside the one of serving, and the first difference between them.

A server renders the messages before an answer with `add_generation_prompt`, and the model goes on from there: what it
saw in training up to each trained answer must be that very text. Knows templates; nothing of who serves or of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rankzero.data.inspect.report import Sample
from rankzero.data.rows.conversation import Conversation
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.token_rules import turn_weights, with_wanted_reasoning
from rankzero.data.tokens.tokenizer import TokenizerParts
from rankzero.data.tokens.turns import turn_of

Turns = Sequence[Mapping[str, Any]]
Serve = Callable[[Turns, Turns, Mapping[str, Any]], str]
"""Turns up to an answer, tools, and what the template is given besides → the prompt of the server: transformers' or
vLLM's own rendering."""

Cause = Literal[
    "date",
    "think block in serving",
    "think block in training",
    "earlier reasoning",
    "generation prompt",
    "answer",
    "end token",
    "rendering",
    "refused",
]

_MEANING: dict[Cause, str] = {
    "date": "the template writes today's date; training writes the same date every day, so that runs can be repeated",
    "think block in serving": "in use the template opens the answer with a think block that the row does not have",
    "think block in training": "the template writes a think block before the answer, so the model learns to write it",
    "earlier reasoning": "in use the model's own template leaves the reasoning of earlier turns out, which training "
    "keeps (data.reasoning: keep)",
    "generation prompt": "in use the template opens the answer with other text than the row has",
    "answer": "the template changes the answer's text",
    "end token": "the answer ends with another token than the one at which serving stops",
    "rendering": "the server's renderer gives other text for the same turns",
    "refused": "the template refuses the turns before the answer when nothing follows them",
}
_BEFORE, _AFTER = 24, 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which the two texts are not the same."""

    where: str
    turn: int
    """Of the answer, from 1."""
    offset: int
    """In characters of the text in training."""
    training: str
    serving: str
    cause: Cause

    @property
    def meaning(self) -> str:
        """The cause in a sentence."""
        return _MEANING[self.cause]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "where": self.where,
            "turn": self.turn,
            "offset": self.offset,
            "training": self.training,
            "serving": self.serving,
            "cause": self.cause,
            "meaning": self.meaning,
        }


@dataclass(slots=True)
class Comparison:
    """What came of a sample of rows: rows by cause, and the first difference of each cause."""

    rows: int = 0
    answers: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    """Rows with a difference of this cause."""
    first: dict[Cause, Difference] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "rows": self.rows,
            "answers": self.answers,
            "rows_by_cause": dict(self.causes.most_common()),
            "first": [difference.as_json() for difference in self.first.values()],
        }


def compare(
    samples: Iterable[Sample],
    parts: TokenizerParts,
    rules: TokenRules,
    serve: Serve,
    stops: Iterable[str] = (),
) -> Comparison:
    """Compare chat rows. `stops`: further tokens at which serving stops, besides the
    tokenizer's end token."""
    comparison = Comparison()
    if parts.chat_template is None:
        return comparison
    comparer = _Comparer(parts, rules, serve, frozenset([parts.eos_token, *stops]))
    for sample in samples:
        if not sample.row.templated:
            continue
        comparison.rows += 1
        found: set[Cause] = set()
        for difference in comparer.differences(sample, comparison):
            comparison.first.setdefault(difference.cause, difference)
            found.add(difference.cause)
        comparison.causes.update(found)
    return comparison


class _Comparer:
    def __init__(self, parts: TokenizerParts, rules: TokenRules, serve: Serve, stops: frozenset[str]) -> None:
        self._renderer, self._rules = Renderer(parts, rules), rules
        self._has_date = "strftime_now" in str(parts.chat_template)
        self._serve, self._stops, self._specials = serve, stops, parts.specials

    def differences(self, sample: Sample, comparison: Comparison) -> Iterator[Difference]:
        """One for each answer and cause."""
        rendered = self._renderer.as_printed(sample.row, sample.image_root)
        if not isinstance(rendered, Rendered):
            return  # a bad row, which is reported as such
        row, _ = with_wanted_reasoning(sample.row, self._rules)
        renderer, row = self._renderer.for_row(row)
        template, form = renderer.template, renderer.template.call_form
        keys, knows_thoughts = template.reasoning_keys, template.knows_thoughts
        turns = [
            turn_of(message, in_parts=renderer.in_parts, keys=keys, knows_thoughts=knows_thoughts, call_form=form)
            for message in row.messages
        ]
        where = f"{sample.path}:{row.line}"
        for index, (message, weight) in enumerate(zip(row.messages, turn_weights(row, self._rules), strict=True)):
            if message.role == "assistant" and weight and index:
                comparison.answers += 1
                yield from self._of_answer(where, index, turns, row, rendered, renderer)

    def _of_answer(
        self,
        where: str,
        index: int,
        turns: list[dict[str, Any]],
        row: Conversation,
        rendered: Rendered,
        renderer: Renderer,
    ) -> Iterator[Difference]:
        text = rendered.text
        try:
            prompt = renderer.template.render(turns[:index], tools=row.tools, opening=True)
            served = self._serve(turns[:index], row.tools, renderer.template_kwargs)
        except Exception as error:  # the server's renderer is foreign code, and so is the template
            reason = str(error) or type(error).__name__
            yield Difference(where, index + 1, 0, text[:_AFTER], reason.splitlines()[0][:120], "refused")
            return
        if served != prompt:
            at = _first_difference(prompt, served)
            yield self._difference(where, index, at, prompt, served, self._rendering_cause(prompt, served, at))
        if not text.startswith(prompt):
            at = _first_difference(text, prompt)
            thinks = "think" in prompt[max(0, at - _BEFORE) :]
            cause: Cause = "think block in serving" if thinks else "generation prompt"
            if any(message.thought for message in row.messages[:index]):
                cause = "earlier reasoning"
            yield self._difference(where, index, at, text, prompt, cause)
            return
        message = row.messages[index]
        content = message.answer.strip()
        answer = text[len(prompt) :].lstrip()
        begins = len(text) - len(answer)
        # Before its text, a template may open an answer with tokens of its own, which the model learns to write.
        at = text.find(content, begins)
        if at < 0:
            at = begins + _first_difference(answer, content)
            yield self._difference(where, index, at, text, text[:begins] + content, "answer")
        elif "think>" in text[begins:at] and not message.thought and not content.startswith("<think>"):
            yield self._difference(where, index, begins, text, text[:begins] + content, "think block in training")
        elif index == len(turns) - 1 and not message.tool_calls:
            yield from self._end(where, index, rendered, at + len(content))

    def _rendering_cause(self, prompt: str, served: str, at: int) -> Cause:
        """The two renderers run the same template; what they do not share is the date."""
        around = slice(max(0, at - _BEFORE), at + _BEFORE)
        dated = all(re.search(r"\d", text[around]) for text in (prompt, served))
        return "date" if self._has_date and dated else "rendering"

    def _end(self, where: str, index: int, rendered: Rendered, at: int) -> Iterator[Difference]:
        """What the model learns to stop with."""
        if rendered.add_eos:
            return
        rest = learnt = rendered.text[at : rendered.spans[-1][1]].lstrip()
        tokens: list[str] = []
        while token := next((special for special in self._specials if rest.startswith(special)), ""):
            tokens.append(token)
            rest = rest.removeprefix(token)
        if not self._stops.intersection(tokens):
            wanted = " or ".join(sorted(self._stops))
            yield Difference(where, index + 1, at, "".join(tokens) or learnt[:_AFTER], wanted, "end token")

    @staticmethod
    def _difference(where: str, index: int, at: int, training: str, serving: str, cause: Cause) -> Difference:
        start = max(0, at - _BEFORE)
        return Difference(where, index + 1, at, training[start : at + _AFTER], serving[start : at + _AFTER], cause)


def _first_difference(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
