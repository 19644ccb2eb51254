"""One conversation through a chat template, and which characters of the text are trained. Knows nothing of token ids.

Which characters an assistant turn is made of follows from the template alone:

1. `{% generation %}` blocks, where the template has them;
2. else a turn begins where the conversation before it ends, once the head of an assistant turn has been opened
   (`add_generation_prompt`), and ends where the conversation up to and with it ends;
3. where a template writes a turn differently once others follow (Qwen 3 drops its thinking), the turn's end is found
   by putting other content in its place and looking at what stays the same behind it.

A turn's last trained token is its end token (`<|im_end|>`, `<|eot_id|>`, `</s>` …), not what stands behind that.
Whichever way it was found: every word of a trained turn is in what is trained of it, or the row is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from rankzero.data.rows.conversation import Conversation
from rankzero.data.tokens.image_tokens import Picture
from rankzero.data.tokens.own_words import excerpt, first_lost, words_of
from rankzero.data.tokens.template import ChatTemplate, Span, TemplateRefusedError
from rankzero.data.tokens.tokenizer import TokenizerParts
from rankzero.data.tokens.turns import STAND_IN, turn_of, with_text

OTHER_TEMPLATE = "set data.chat_template to one that has a place for it"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A row as text. `spans` are the trained characters, ascending and apart, and `weights` what their losses are
    multiplied by: one for each span, or none where all are 1.

    `raw` rows get the tokenizer's own special tokens around them (a BOS, mostly), as the model saw in pre-training;
    rows from a template bring theirs. `add_eos`: nothing in the text says where the model is to stop. `unopened`: what
    the template opens an answer with in use, but leaves out of the row (an empty thought, mostly). `label`: the class
    of the text, whose tokens are then only read. `rejected`: the same row with its worse answer, where it has two.
    `pictures`: the row's images in the order of the text, and
    `picture_spans` where they stand in it.
    `notes`: what was done to the row by a rule, each the same for all rows to which it was done.
    """

    text: str
    spans: list[Span]
    raw: bool
    add_eos: bool
    unopened: str = ""
    label: str | None = None
    pictures: tuple[Picture, ...] = ()
    picture_spans: tuple[Span, ...] = ()
    weights: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    rejected: Rendered | None = None


class RewrittenError(Exception):
    """What stands before a turn differs from how the conversation up to it is rendered."""

    def __init__(self, turn: int, head: str, text: str) -> None:
        at = _common_prefix(head, text)
        start = max(0, at - 10)
        self.turn, self.before, self.after = turn, head[start : at + 15], text[start : at + 15]


class LeftOutError(Exception):
    """The template leaves something of the row out without a word."""

    def __init__(self, reason: str, what: str, hint: str = OTHER_TEMPLATE) -> None:
        super().__init__(what)
        self.reason, self.hint = reason, hint


class WordsLostError(Exception):
    """Words of a trained turn are not in what would be trained of it. `turn` counts from 0; `thought`: they are its
    reasoning."""

    def __init__(self, turn: int, words: str, *, thought: bool) -> None:
        super().__init__(words)
        self.turn, self.words, self.thought = turn, words, thought


class KnownTurn(NamedTuple):
    """What an assistant turn is made of; `unopened` as of Rendered."""

    span: Span
    unopened: str


class KnownPlaces(Protocol):
    """What is known of a template from other conversations."""

    def turns(self, text: ChatText) -> Mapping[int, KnownTurn] | None:
        """The assistant turns, where all that the row says is known to be shown; None: look for them."""
        ...


class ChatText:
    """One conversation on its way through a template.

    `weights` has one number for each turn: what the losses of its tokens are multiplied by, 0 where it is not trained.
    """

    def __init__(
        self,
        conversation: Conversation,
        weights: Sequence[float],
        template: ChatTemplate,
        parts: TokenizerParts,
        *,
        in_parts: bool = False,
        places: KnownPlaces | None = None,
    ) -> None:
        """`in_parts`: the template reads every turn's content as a list of parts, not only where there are images."""
        self.messages = conversation.messages
        self.completion_only = conversation.completion_only
        self.weights = weights
        self.template = template
        self.specials, self.eos = parts.specials, parts.eos_token
        self.tools = conversation.tools
        keys, knows_thoughts = template.reasoning_keys, template.knows_thoughts
        form = template.call_form if any(message.tool_calls for message in self.messages) else None
        self.turns = [
            turn_of(message, in_parts=in_parts, keys=keys, knows_thoughts=knows_thoughts, call_form=form)
            for message in self.messages
        ]
        self.text, self.blocks = template.render_marked(self.turns, tools=self.tools)
        self.unopened = ""
        self._closings: dict[str, bool] = {}
        known = None if places is None else places.turns(self)
        self.all_shown = known is not None
        """Whether nothing of the row can be left out, as is known without another look."""
        self._known = known or {}
        if self.all_shown:
            return
        if self.tools or any(message.tool_calls for message in self.messages):
            self._require_tools_shown()

    def answers(self) -> Rendered:
        """The row with its trained assistant turns, and nothing else of it, trained.

        Raises WordsLostError, RewrittenError, LeftOutError or TemplateRefusedError.
        """
        spans = {i: self._spans(i) for i in self._trained}
        for i, pieces in spans.items():
            # Nearly always the words stand there as they are: looked for in place, which costs next to nothing.
            message, (start, end) = self.messages[i], pieces[0]
            there = message.plain and self.text.find(message.content.strip(), start, end) >= 0
            if there and not message.tool_calls:
                continue
            trained = "".join([self.text[start:end] for start, end in pieces])
            if not there:
                self._require_words([i], trained)
            if not names_shown(message.tool_calls, trained):
                raise self._nameless(i)
        weighted = [(*span, self.weights[i]) for i, pieces in spans.items() for span in pieces]
        return self._rendered(weighted, unopened=self.unopened)

    def everything(self) -> Rendered:
        """The row with every character trained but those of turns that are not. Raises as `answers` does."""
        self._require_words([i for i in self._trained if self.messages[i].role == "assistant"], self.text)
        for i in (i for i in self._trained if self.messages[i].tool_calls):
            if self._same_with(i, {"tool_calls": _renamed(self.turns[i]["tool_calls"])}):
                raise self._nameless(i)
        marked = [
            (*(self._turn(i) if message.role == "assistant" else self._content(i)), weight)
            for i, (message, weight) in enumerate(zip(self.messages, self.weights, strict=True))
            if weight != 1
        ]
        return self._rendered(_filled(marked, len(self.text)))

    def _rendered(self, weighted: Sequence[tuple[int, int, float]], *, unopened: str = "") -> Rendered:
        final, weight = self.messages[-1], self.weights[-1]
        add_eos = final.role == "assistant" and weight > 0 and not self._ends_with_token()
        # Without what the template puts behind the turn (a newline, say): the end token is to come right after it.
        text = self.text.rstrip() if add_eos else self.text
        spans = [(start, min(end, len(text))) for start, end, _ in weighted if start < len(text)]
        weights = tuple([weight for start, _, weight in weighted if start < len(text)])
        plain = weights.count(1) == len(weights)
        return Rendered(text, spans, raw=False, add_eos=add_eos, unopened=unopened, weights=() if plain else weights)

    @property
    def _trained(self) -> list[int]:
        return [i for i, weight in enumerate(self.weights) if weight]

    def _require_words(self, turns: Sequence[int], text: str) -> None:
        """Raise where words of these turns are not in the text, in their order."""
        pieces = [(i, piece) for i in turns for piece in words_of(self.messages[i])]
        lost = first_lost([piece for _, piece in pieces], text)
        if lost is not None:
            i, words = pieces[lost]
            raise WordsLostError(i, excerpt(words), thought=words == self.messages[i].thought)

    def _render(self, turns: list[dict[str, Any]], *, opening: bool = False) -> str:
        return self.template.render(turns, tools=self.tools, opening=opening)

    def _require_tools_shown(self) -> None:
        """Raise where the row's text would be the same without its tools, a call, or the text beside a call."""
        if self.tools and self._same(self.turns, with_tools=False):
            what = "the chat template leaves the row's tools out: it renders the same text without them"
            raise LeftOutError("tools left out by the chat template", what)
        for i, message in enumerate(self.messages):
            if not message.tool_calls:
                continue
            fewer = {key: value for key, value in self.turns[i].items() if key != "tool_calls"}
            if len(message.tool_calls) > 1:
                fewer["tool_calls"] = self.turns[i]["tool_calls"][:-1]
            if self._same([*self.turns[:i], fewer, *self.turns[i + 1 :]]):
                what = f"the chat template leaves the tool calls of turn {i + 1} out, or all but the first of them"
                raise LeftOutError("tool calls left out by the chat template", what)
            given = any(call["function"]["arguments"] for call in message.tool_calls)
            if given and self._same_with(i, {"tool_calls": _without_arguments(self.turns[i]["tool_calls"])}):
                what = f"the chat template leaves the arguments of the tool calls of turn {i + 1} out"
                raise LeftOutError("arguments left out by the chat template", what)
            other = {"content": with_text(self.turns[i]["content"], STAND_IN)}
            if message.content.strip() and self._same_with(i, other):
                what = f"the chat template leaves the text of turn {i + 1} out, because the turn calls a tool"
                raise LeftOutError("text left out by the chat template", what)

    def _nameless(self, i: int) -> LeftOutError:
        what = f"the chat template leaves the name of a function out that turn {i + 1} calls, which is to be trained"
        return LeftOutError("names of functions left out by the chat template", what)

    def _same_with(self, i: int, other: Mapping[str, Any]) -> bool:
        """Whether turn `i` with something else in it comes to the same text."""
        return self._same([*self.turns[:i], {**self.turns[i], **other}, *self.turns[i + 1 :]])

    def _same(self, turns: list[dict[str, Any]], *, with_tools: bool = True) -> bool:
        """Whether other turns come to the same text. Where the template refuses them, they are not the same to it."""
        try:
            return self.template.render(turns, tools=self.tools if with_tools else ()) == self.text
        except TemplateRefusedError:
            return False

    def _spans(self, i: int) -> list[Span]:
        """What is trained of assistant turn `i`: one piece, or as many as the template marks."""
        return self._marked[i] if self.template.marks_turns else [self._turn(i)]

    @cached_property
    def _marked(self) -> dict[int, list[Span]]:
        """The template's own marks by turn, with the end token if it stands right behind the last of a turn's, and
        without what opens answers in use, which some templates mark too."""
        _, closing = self._last_end
        opening = self.template.opening
        marked: dict[int, list[Span]] = {}
        for i, blocks in self._blocks().items():
            (start, _), (last, end) = blocks[0], blocks[-1]
            if opening.strip() and self.text.startswith(opening, start):
                blocks[0] = start + len(opening), blocks[0][1]
                last = blocks[-1][0]
            end += len(closing) if closing and self.text.startswith(closing, end) else 0
            blocks[-1] = last, self._trimmed(last, end)
            marked[i] = blocks
        return marked

    def _blocks(self) -> dict[int, list[Span]]:
        """The blocks of each assistant turn. Where there are not as many as turns, the conversation up to and with a
        turn says how many are in it."""
        turns = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        if len(self.blocks) == len(turns):
            return {i: [block] for i, block in zip(turns, self.blocks, strict=True)}
        blocks: dict[int, list[Span]] = {}
        seen = 0
        for i in turns:
            last = i == len(self.turns) - 1
            count = len(self.blocks if last else self.template.render_marked(self.turns[: i + 1], tools=self.tools)[1])
            blocks[i], seen = self.blocks[seen:count], count
        if seen != len(self.blocks) or not all(blocks.values()):
            counts = f"{len(self.blocks)} {{% generation %}} blocks for {len(turns)} assistant turns"
            raise TemplateRefusedError(f"it has {counts}")
        return blocks

    def begins_as(self, i: int, end: int) -> bool:
        """Whether the text up to `end` is what is written before an answer as turn `i`."""
        try:
            return self._render(self.turns[:i], opening=True) == self.text[:end]
        except TemplateRefusedError:
            return False

    def _turn(self, i: int) -> Span:
        if i not in self._known:
            return self.turn_span(i)
        span, unopened = self._known[i]
        self.unopened = unopened or self.unopened
        return span

    def turn_span(self, i: int) -> Span:
        """What the assistant is to produce as turn `i`, found by rendering. Raises as `answers` does."""
        start = self._turn_start(i)
        return start, self._trimmed(start, self._turn_end(i, start))

    def _turn_start(self, i: int) -> int:
        if i == 0:  # nothing before it, and templates fail on an empty conversation
            start, opening = self._content(0)[0], self.template.opening
            at = self.text.rfind(opening, 0, start) if opening.strip() else -1
            return at + len(opening) if at >= 0 else start
        head = self._render(self.turns[:i], opening=True)
        if self.text.startswith(head):
            return len(head)
        before = self._render(self.turns[:i])
        shared = min(_common_prefix(head, self.text), self._content(i)[0])
        if self.text.startswith(before) and shared > len(before):
            # In use an empty thought stands there; the row's own, where it has one, is the model's to write.
            thought = self.text.find("<think>", len(before), shared)
            shared = thought if thought >= 0 and "</think>" in head[shared:] else shared
            self.unopened = head[shared:]
            return shared
        raise RewrittenError(i, head, self.text)

    def _turn_end(self, i: int, start: int) -> int:
        if self.messages[i].tool_calls:
            return self._call_end(i)
        last = i == len(self.turns) - 1
        last_end, closing = self._last_end
        # Nearly always the content stands right there, behind a space at most, and behind it what ends the last turn.
        at = start + 1 if self.text.startswith(" ", start) else start
        for content in (self.messages[i].content, self.messages[i].content.strip()):
            for end in (start + len(content), at + len(content)):
                if closing and self.text.endswith(content, 0, end) and self.text.startswith(closing, end):
                    return end + len(closing)
        if last:
            return last_end + len(closing) if closing else len(self.text)
        part = self._render(self.turns[: i + 1])
        if self.text.startswith(part) and len(part) >= start:
            return len(part)
        end = self._content(i)[1]
        if not closing or not self.text.startswith(closing, end):
            closing = self._other_closing(i, end)
        return end + len(closing)

    def _other_closing(self, i: int, end: int) -> str:
        """What closes turn `i` where that is not what closes the last one (gpt-oss: `<|end|>` and `<|return|>`); ""
        where no end token stands there but what opens the next turn."""
        closing = self._closing_at(end)
        return closing if closing and any(self._ends_with(until, closing) for until in (i + 2, i + 1, 1)) else ""

    def _ends_with(self, until: int, closing: str) -> bool:
        """Whether the conversation's first turns end with this; not where the template refuses them alone."""
        try:
            return self._render(self.turns[:until]).rstrip().endswith(closing.strip())
        except TemplateRefusedError:
            return False

    def _call_end(self, i: int) -> int:
        """The end of a turn that calls tools. What is written last in it differs between templates, so the turn is
        looked at as a whole: where a turn of text alone would end, or where the conversation up to it ends."""
        try:
            end = self._content(i)[1]
            if (closing := self._closing_at(end)) and self._closes(i, closing):
                return end + len(closing)
        except TemplateRefusedError:
            pass  # it wants a call here: tool answers follow
        part = self.text if i == len(self.turns) - 1 else self._render(self.turns[: i + 1])
        if self.text.startswith(part):
            return len(part)
        raise TemplateRefusedError(f"where the tool calls of turn {i + 1} end cannot be told")

    def _closes(self, i: int, closing: str) -> bool:
        """Whether turn `i` ends with this, rather than the next one beginning with it (GLM: `<|observation|>`)."""
        if closing not in self._closings:
            up_to = self.text if i == len(self.turns) - 1 else self._render(self.turns[: i + 1])
            self._closings[closing] = up_to.rstrip().endswith(closing.strip())
        return self._closings[closing]

    def _content(self, i: int) -> Span:
        """Where the content of turn `i` stands in the text, its tool calls and its reasoning included."""
        changed = [*self.turns]
        left_out = {"tool_calls", *self.template.reasoning_keys}
        changed[i] = {key: value for key, value in changed[i].items() if key not in left_out}
        changed[i]["content"] = with_text(changed[i]["content"], STAND_IN)
        other = self._render(changed)
        start = _common_prefix(self.text, other)
        behind = _common_prefix(self.text[start:][::-1], other[start:][::-1])
        return start, len(self.text) - behind

    @cached_property
    def _last_end(self) -> tuple[int, str]:
        """Where the content of the last turn ends, and what closes it: an end token, "" where there is none.

        In most templates every turn closes like the last one, which is the cheapest to look at.
        """
        if self.messages[-1].tool_calls:
            end = self._content(len(self.turns) - 1)[1]
            return end, self._closing_at(end)
        written = self.messages[-1].content
        content = written.strip()
        found = self.text.rfind(content)
        # Space at the content's end must not pass for space that the template puts before every end token.
        if written == written.rstrip() and found >= 0 and (closing := self._closing_at(found + len(content))):
            return found + len(content), closing
        end = self._content(len(self.turns) - 1)[1]
        return end, self._closing_at(end)

    def _closing_at(self, at: int) -> str:
        """What ends a turn there, with the space before it: a special token, and those behind it up to the end token
        where one follows at once (Cohere: `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`); "" where something else stands."""
        rest = self.text[at:]
        end = len(rest) - len(rest.lstrip())
        ends: list[int] = []
        while rest.startswith(self.specials, end):
            token = next(token for token in self.specials if rest.startswith(token, end))
            end += len(token)
            ends.append(end)
            if token == self.eos:
                return rest[:end]
        return rest[: ends[0]] if ends else ""

    def _trimmed(self, start: int, end: int) -> int:
        """`end` without the space behind the last thing that is written."""
        return start + len(self.text[start:end].rstrip())

    def _ends_with_token(self) -> bool:
        """Whether the template closes the last turn; what its own words end with does not count."""
        text = self.text.rstrip()
        if not text.endswith(self.specials) or self.messages[-1].tool_calls:
            return text.endswith(self.specials)
        return text[self._last_end[0] :].endswith(self.specials)


def _renamed(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls under another function's name, where their ids say it, too."""
    return [
        {
            **call,
            **({"id": call["id"].replace(call["function"]["name"], STAND_IN)} if "id" in call else {}),
            "function": {**call["function"], "name": STAND_IN},
        }
        for call in calls
    ]


def _without_arguments(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls with no arguments, in the form that theirs have."""
    return [
        {**call, "function": {**call["function"], "arguments": type(call["function"]["arguments"])()}} for call in calls
    ]


def names_shown(functions: Sequence[Mapping[str, Any]], text: str) -> bool:
    """Whether the names of all of these are in the text, in their order."""
    return not functions or first_lost([one["function"]["name"] for one in functions], text) is None


def _filled(marked: Sequence[tuple[int, int, float]], length: int) -> list[tuple[int, int, float]]:
    """All of 0…length with its weight: those that are marked theirs, 1 everywhere else. What weighs 0 is left out."""
    filled: list[tuple[int, int, float]] = []
    at = 0
    for start, end, weight in sorted(marked):
        if start > at:
            filled.append((at, start, 1.0))
        if weight and end > max(at, start):
            filled.append((max(at, start), end, weight))
        at = max(at, end)
    return [*filled, (at, length, 1.0)] if at < length else filled


def _common_prefix(a: str, b: str) -> int:
    """How many characters both begin with. Halving: comparing strings is fast, comparing characters is not."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
