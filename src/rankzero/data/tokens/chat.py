"""A conversation as text, with the characters that are trained. Knows templates and rules; nothing of token ids."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from rankzero.data.rows.conversation import ANSWERING, Conversation
from rankzero.data.rows.formats.judged import LEARN_CHOSEN, PREFERENCES
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.built_in_templates import TrainingTemplate, plain_template, training_template
from rankzero.data.tokens.call_form import IDS_REWRITTEN, with_ids
from rankzero.data.tokens.chat_text import (
    OTHER_TEMPLATE,
    ChatText,
    LeftOutError,
    Rendered,
    RewrittenError,
    WordsLostError,
)
from rankzero.data.tokens.image_tokens import DEEP_GREY, Picture, Pictures, in_place, misplaced
from rankzero.data.tokens.own_words import excerpt
from rankzero.data.tokens.places import Places
from rankzero.data.tokens.template import ChatTemplate, Span, TemplateRefusedError
from rankzero.data.tokens.token_rules import TokenRules, turn_weights, with_wanted_reasoning
from rankzero.data.tokens.tokenizer import TokenizerParts
from rankzero.data.tokens.turns import first_left_out, reads_parts_only
from rankzero.spec.names import PLAIN_NOTE

__all__ = ["AS_TEXT", "Rendered", "Renderer", "TokenRules"]

AS_TEXT = "reasoning written before the answer as <think>…</think>, which the chat template does not know"

_MOST_GIVEN = 64
"""Renderers kept for values that rows give: few in most data, and as many as rows where each lists tools of its own."""


class Renderer:
    """Conversations to text with spans, for one tokenizer and one set of rules."""

    def __init__(self, parts: TokenizerParts, rules: TokenRules) -> None:
        self._parts, self._rules = parts, rules
        self._pictures = None if rules.vision is None else Pictures(rules.vision)
        self._left_out: dict[tuple[object, ...], int | None] = {}
        of_tools = parts.tool_template
        alone = of_tools and replace(parts, chat_template=of_tools, tool_template=None)
        self._with_tools = Renderer(alone, rules) if alone else None
        """For rows with tools, of a model that has a template of its own for them."""
        self._given: dict[str, Renderer] = {}
        """For rows that give the template values of their own, by those."""

    @property
    def template_kwargs(self) -> Mapping[str, Any]:
        """What its template is given besides turns and tools."""
        return self._rules.template_kwargs

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's own, or the plain one where it has none. Compiled when the first chat row asks for it: raw text
        needs none, not even one that is valid. Raises ConfigError."""
        source = self._parts.chat_template
        if source is None:
            source = plain_template(opens_with_bos=self._parts.opens_with_bos)
        return ChatTemplate(source, {**self._parts.variables, **self._rules.template_kwargs})

    @cached_property
    def _keeps_reasoning(self) -> TrainingTemplate | None:
        """What renders as the model's own template does, and keeps the reasoning that this one leaves out."""
        return training_template(self.template, {**self._parts.variables, **self._rules.template_kwargs})

    @cached_property
    def _places(self) -> Places:
        return Places(self.template, self._parts)

    @cached_property
    def _places_keeping(self) -> Places | None:
        keeping = self._keeps_reasoning
        return None if keeping is None else Places(keeping.template, self._parts)

    @cached_property
    def in_parts(self) -> bool:
        """Whether the template reads contents as lists of parts alone."""
        return self._rules.vision is not None and reads_parts_only(self.template)

    def render(self, conversation: Conversation, image_root: str = ".") -> Rendered | RowProblem:
        """The row as text, or why there is none; its images are below `image_root`. Raises ConfigError where a chat
        row finds no valid template."""
        row, vision = self.as_printed(conversation, image_root), self._rules.vision
        if isinstance(row, RowProblem) or vision is None or not row.pictures:
            return row
        return _with_pictures(row, vision.placeholder, vision.around)

    def as_printed(self, conversation: Conversation, image_root: str = ".") -> Rendered | RowProblem:
        """The same as the template prints it: with one placeholder for each image."""
        if self._rules.trains == "label":
            return _render_labelled(conversation)
        if self._rules.trains == "preferences":
            return self._pair(conversation, image_root)
        return _other_task(conversation) or self._answers(conversation, image_root)

    def _pair(self, conversation: Conversation, image_root: str) -> Rendered | RowProblem:
        """The row with the better answer, and beside it that with the worse one."""
        if problem := _no_preference(conversation):
            return problem
        chosen, rejected = (
            self._answers(row, image_root) for row in (conversation.with_chosen, conversation.with_rejected)
        )
        if isinstance(chosen, RowProblem):
            return chosen
        if isinstance(rejected, RowProblem):
            return rejected
        return _other_prompt(chosen, rejected, conversation) or replace(chosen, rejected=rejected)

    def _answers(self, conversation: Conversation, image_root: str) -> Rendered | RowProblem:
        pictures = self._pictured(conversation, image_root)
        if isinstance(pictures, RowProblem):
            return pictures
        conversation, notes = with_wanted_reasoning(conversation, self._rules)
        if notes and (speechless := _without_answer(conversation)):
            return speechless
        row = self._templated(conversation) if conversation.templated else _render_raw(conversation)
        if isinstance(row, RowProblem):
            return row
        row = replace(row, notes=(*notes, *row.notes)) if notes else row
        vision = self._rules.vision
        if vision is None:
            return row
        notes = (*row.notes, DEEP_GREY) if any(picture.is_deep_grey for picture in pictures) else row.notes
        problem = misplaced(row.text, len(conversation.images), vision, conversation.line)
        return problem or replace(row, pictures=pictures, notes=notes)

    def _pictured(self, conversation: Conversation, image_root: str) -> tuple[Picture, ...] | RowProblem:
        if not conversation.images:
            return ()
        if self._pictures is not None:
            return self._pictures.of(conversation, image_root)
        what = f"the row has {len(conversation.images)} image(s), and a language model sees none"
        hint = "train a vision-language model, or remove the images"
        return RowProblem(conversation.line, "needs a vision model", what, hint)

    def _templated(self, conversation: Conversation) -> Rendered | RowProblem:
        renderer, given = self.for_row(conversation)
        if given is not conversation:
            row = renderer._with_either_template(given)
            note = IDS_REWRITTEN[renderer.template.call_form.ids]
            return row if isinstance(row, RowProblem) else replace(row, notes=(*row.notes, note))
        return renderer._with_either_template(conversation)

    def for_row(self, conversation: Conversation) -> tuple[Renderer, Conversation]:
        """The renderer of the template that is for such a row, where the model has one for tools, which is given what
        the row has for it; and the row with its ids of calls in the form that this template wants."""
        calls = any(message.tool_calls for message in conversation.messages)
        renderer = self._with_tools if self._with_tools is not None and (calls or conversation.tools) else self
        if conversation.template_kwargs:
            renderer = renderer._with_given(conversation.template_kwargs)
        if not calls:
            return renderer, conversation
        renamed = with_ids(conversation.messages, renderer.template.call_form.ids)
        same = renamed == conversation.messages
        return renderer, conversation if same else replace(conversation, messages=renamed)

    def _with_given(self, kwargs: Mapping[str, Any]) -> Renderer:
        """A row's own values stand before those of the spec."""
        name = json.dumps(kwargs, sort_keys=True, default=str)
        if name not in self._given:
            if len(self._given) >= _MOST_GIVEN:
                self._given.clear()
            rules = replace(self._rules, template_kwargs={**self._rules.template_kwargs, **kwargs})
            self._given[name] = Renderer(self._parts, rules)
        return self._given[name]

    def _with_either_template(self, conversation: Conversation) -> Rendered | RowProblem:
        weights = turn_weights(conversation, self._rules)
        try:
            try:
                return self._with_own_template(conversation, weights)
            except (WordsLostError, RewrittenError):
                # Templates that leave reasoning out may do so only once another turn follows.
                thoughts = any(w and m.thought for m, w in zip(conversation.messages, weights, strict=True))
                if thoughts and (kept := self._with_reasoning_kept(conversation, weights)):
                    return kept
                raise
        except WordsLostError as error:
            return _lost(conversation.line, error)
        except TemplateRefusedError as error:
            what, hint = f"the chat template says: {error}", refusal_hint(str(error))
            return RowProblem(conversation.line, "refused by the chat template", what, hint)
        except LeftOutError as error:
            return RowProblem(conversation.line, error.reason, str(error), error.hint)
        except RewrittenError as error:
            return RowProblem(
                conversation.line,
                "chat template rewrites earlier turns",
                f"the chat template rewrites what stands before turn {error.turn + 1} once that turn is there: "
                f"{error.before!r} becomes {error.after!r}",
                "what is trained would not be what the model sees in use: set data.chat_template to a template that "
                'only ever appends, or mark this turn "loss": false',
            )

    def _with_own_template(self, conversation: Conversation, weights: tuple[float, ...]) -> Rendered:
        places = None if self.in_parts else self._places
        text = ChatText(conversation, weights, self.template, self._parts, in_parts=self.in_parts, places=places)
        row = self._trained(text)
        if not text.all_shown:
            self._require_context(text)
        notes = [PLAIN_NOTE] if self._parts.chat_template is None else []
        if not self.template.reasoning_keys and any(message.reasoning for message in conversation.messages):
            notes.append(AS_TEXT)
        return replace(row, notes=tuple(notes)) if notes else row

    def _require_context(self, text: ChatText) -> None:
        """Raise LeftOutError where a turn that answers are given to is not in the text at all. Which are follows from
        who speaks when, so each order of roles is looked at once."""
        order = (bool(text.tools), *[(turn["role"], bool(turn["content"])) for turn in text.turns])
        if order not in self._left_out:
            self._left_out[order] = first_left_out(self.template, text.turns, text.tools)
        i = self._left_out[order]
        if i is not None:
            message = text.messages[i]
            what = f"the chat template leaves turn {i + 1} out ({message.role}): {excerpt(message.content)!r}"
            hint = "name its role system, or " if message.role == "developer" else ""
            raise LeftOutError("turn left out by the chat template", what, f"{hint}{OTHER_TEMPLATE}")

    def _with_reasoning_kept(self, conversation: Conversation, weights: tuple[float, ...]) -> Rendered | None:
        """The row by a template for training; None where there is none for this model, or not for such a row. Turns
        that are not trained lose their reasoning, as they do in use."""
        keeping = self._keeps_reasoning
        if keeping is None or conversation.images or not keeping.agrees(conversation):
            return None
        apart = tuple(
            message.with_thought_apart() if weight else replace(message, reasoning="")
            for message, weight in zip(conversation.messages, weights, strict=True)
        )
        try:
            whole = replace(conversation, messages=apart)
            text = ChatText(whole, weights, keeping.template, self._parts, places=self._places_keeping)
            row = self._trained(text)
        except (WordsLostError, TemplateRefusedError, LeftOutError):
            return None
        return replace(row, notes=(keeping.note,))

    def _trained(self, text: ChatText) -> Rendered:
        only_answers = self._rules.assistant_only_loss or text.completion_only
        return text.answers() if only_answers else text.everything()


def _without_answer(conversation: Conversation) -> RowProblem | None:
    """Why a row cannot be trained that has nothing left to say without its reasoning."""
    for i, message in enumerate(conversation.messages):
        silent = not (message.content.strip() or message.reasoning or message.tool_calls or message.image_offsets)
        if message.role in ANSWERING and message.train is not False and silent:
            what = f"turn {i + 1} is reasoning without an answer, and data.reasoning leaves reasoning out"
            return RowProblem(conversation.line, "nothing but reasoning", what, "remove the row")
    return None


def _lost(line: int, error: WordsLostError) -> RowProblem:
    """Words of the row that would not be trained."""
    where = f"turn {error.turn + 1}"
    if error.thought:
        what = f"the chat template leaves the reasoning of {where} out, which is to be trained: {error.words!r}"
        hint = "data.reasoning: last or drop trains without it; data.chat_template: FILE can be one that keeps it"
        return RowProblem(line, "reasoning left out by the chat template", what, hint)
    what = f"the chat template leaves words of {where} out, which are to be trained: {error.words!r}"
    hint = 'set data.chat_template to one that keeps what turns say, or mark the turn "loss": false'
    return RowProblem(line, "words left out by the chat template", what, hint)


def _other_task(conversation: Conversation) -> RowProblem | None:
    """Why a row that is well-formed is nothing for fine-tuning on text."""
    if conversation.rejected:
        what = f"the row has a chosen and a rejected answer: {PREFERENCES}"
        return RowProblem(conversation.line, PREFERENCES, what, LEARN_CHOSEN)
    if conversation.label is not None:
        what = "the row is a text with a label: labels are for task classify"
        hint = "to train on the text alone, say so: data.train: [{path: …, format: text}]"
        return RowProblem(conversation.line, "labels are for task classify", what, hint)
    return None


def _no_preference(conversation: Conversation) -> RowProblem | None:
    """Why a row that is well-formed is nothing to learn a preference from."""
    line = conversation.line
    if not conversation.rejected:
        hint = 'write rows as {"prompt": "…", "chosen": "…", "rejected": "…"}, or set task: sft'
        return RowProblem(line, "no rejected answer", "the row has one answer: task dpo prefers one to another", hint)
    if conversation.images:
        what = f"the row has {len(conversation.images)} image(s), and task dpo trains on text alone"
        return RowProblem(line, "images in a preference", what, "remove the row, or its images")
    if any(turn.weight != 1 and turn.train is not False for turn in (*conversation.messages, *conversation.rejected)):
        hint = "leave the weights out; a turn that does not count has weight 0"
        return RowProblem(line, "weights in a preference", "the row's turns have weights: an answer counts whole", hint)
    return None


def _other_prompt(chosen: Rendered, rejected: Rendered, conversation: Conversation) -> RowProblem | None:
    """Why two answers, as they are rendered, do not follow the same text: a model would learn to tell them apart by
    that. One may have more before its first trained character, such as the empty thought that a template opens with."""
    asked = [row.text[: row.spans[0][0]] if row.spans else row.text for row in (chosen, rejected)]
    shorter, longer = sorted(asked, key=len)
    if longer.startswith(shorter):
        return None
    if any(turn.train is False for turn in (conversation.messages[-conversation.preferred], conversation.rejected[0])):
        what = "its answers begin with turns that do not count, and those are not the same"
        hint = "an answer counts from its first turn on: leave the marks out"
        return RowProblem(conversation.line, "two prompts", what, hint)
    at = next(i for i, (one, other) in enumerate(zip(shorter, longer, strict=False)) if one != other)
    chosen_has, rejected_has = (text[max(0, at - 10) : at + 15] for text in asked)
    what = (
        f"the chat template renders what was asked as {chosen_has!r}, and before the rejected answer {rejected_has!r}"
    )
    hint = "set data.reasoning: drop, or data.chat_template to one that leaves earlier turns alone"
    return RowProblem(conversation.line, "two prompts", what, hint)


def _with_pictures(row: Rendered, placeholder: str, around: tuple[str, str]) -> Rendered:
    """The row with its images where the placeholders are, tags `around` them included. What is trained moves along;
    that no image is trained, its tokens see to."""
    text, places = in_place(row.text, placeholder, [picture.layout for picture in row.pictures])
    more = [0, *accumulate(len(picture.layout.text) - len(placeholder) for picture in row.pictures)]
    before = [start - shift for (start, _), shift in zip(places, more, strict=False)]

    def moved(at: int) -> int:
        return at + more[bisect_left(before, at)]

    spans = [(moved(start), moved(end)) for start, end in row.spans]
    whole = tuple(_with_tags(text, place, around) for place in places)
    return replace(row, text=text, spans=spans, picture_spans=whole)


def _with_tags(text: str, place: Span, around: tuple[str, str]) -> Span:
    (start, end), (before, behind) = place, around
    return (
        start - len(before) if text.endswith(before, 0, start) else start,
        end + len(behind) if text.startswith(behind, end) else end,
    )


def _render_labelled(conversation: Conversation) -> Rendered | RowProblem:
    if conversation.label is None:
        what = "the row has no label: task classify puts texts into classes"
        hint = 'write rows as {"text": "…", "label": "…"}, or set task: sft'
        return RowProblem(conversation.line, "no label for task classify", what, hint)
    text = "".join(segment.content for segment in conversation.messages)
    return Rendered(text, [], raw=True, add_eos=False, label=str(conversation.label))


def _render_raw(conversation: Conversation) -> Rendered:
    if conversation.verbatim:
        return _render_verbatim(conversation)
    prompt = "".join(segment.content for segment in conversation.messages if segment.role == "prompt")
    text = prompt + "".join(segment.content for segment in conversation.messages if segment.role != "prompt")
    return Rendered(text, [(len(prompt), len(text))], raw=True, add_eos=True)


def _render_verbatim(conversation: Conversation) -> Rendered:
    spans, text = [], ""
    for segment in conversation.messages:
        text += segment.content
        if segment.role == "completion" and segment.content:
            spans.append((len(text) - len(segment.content), len(text)))
    return Rendered(text, spans, raw=False, add_eos=False)


def refusal_hint(reason: str) -> str:
    """What to do where a template says this of a conversation."""
    lowered = reason.lower()
    if "system" in lowered:
        return "put the system text at the beginning of the first user turn, or set data.chat_template"
    if "alternat" in lowered:
        return "this template wants user and assistant in turn: join turns of the same role, or set data.chat_template"
    return "change the row to what the template expects, or set data.chat_template to another template"
