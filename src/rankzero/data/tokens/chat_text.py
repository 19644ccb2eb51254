"""One conversation through a chat template, and which characters of the text are trained. Knows nothing of token ids.

Which characters an assistant turn is made of follows from the template alone:

1. `{% generation %}` blocks, where the template has them;
2. else a turn begins where the conversation before it ends, once the head of an assistant turn has been opened
   (`add_generation_prompt`), and ends where the conversation up to and with it ends;
3. where a template writes a turn differently once others follow (Qwen 3 drops its thinking), the turn's end is found
   by putting other content in its place and looking at what stays the same behind it.

A turn's last trained token is its end token (`<|im_end|>`, `<|eot_id|>`, `</s>` …), not what stands behind that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rankzero.data.rows.conversation import Conversation
from rankzero.data.tokens.image_tokens import ImageRules, Picture
from rankzero.data.tokens.template import ChatTemplate, Span, TemplateRefusedError
from rankzero.data.tokens.turns import STAND_IN, turn_of, with_text

if TYPE_CHECKING:  # workers need not load pydantic
    from rankzero.spec.run_spec import OverLength, Task


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens of a row are kept, and which of those are trained; most fields are those of the spec."""

    max_length: int = 2048
    over_length: OverLength = "truncate"
    assistant_only_loss: bool = True
    task: Task = "sft"
    vision: ImageRules | None = None
    """Of a model that sees images."""

    def as_json(self) -> dict[str, Any]:
        """For fingerprints and manifests."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "vision": None if self.vision is None else self.vision.fingerprint}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A row as text. `spans` are the trained characters, ascending and apart.

    `raw` rows get the tokenizer's own special tokens around them (a BOS, mostly), as the model saw in pre-training;
    rows from a template bring theirs. `add_eos`: nothing in the text says where the model is to stop. `unopened`: what
    the template opens an answer with in use, but leaves out of the row (an empty thought, mostly). `label`: the class
    of the text, whose tokens are then only read. `pictures`: one for each placeholder in the text, in their order.
    """

    text: str
    spans: list[Span]
    raw: bool
    add_eos: bool
    unopened: str = ""
    label: str | None = None
    pictures: tuple[Picture, ...] = ()


class RewrittenError(Exception):
    """What stands before a turn differs from how the conversation up to it is rendered."""

    def __init__(self, turn: int, head: str, text: str) -> None:
        at = _common_prefix(head, text)
        start = max(0, at - 10)
        self.turn, self.before, self.after = turn, head[start : at + 15], text[start : at + 15]


class LeftOutError(Exception):
    """The template leaves something of the row out without a word."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class ChatText:
    """One conversation on its way through a template."""

    def __init__(
        self, conversation: Conversation, template: ChatTemplate, specials: tuple[str, ...], *, in_parts: bool = False
    ) -> None:
        """`in_parts`: the template reads every turn's content as a list of parts, not only where there are images."""
        self.messages = conversation.messages
        self.completion_only = conversation.completion_only
        self.template = template
        self.specials = specials
        self.tools = conversation.tools
        self.turns = [turn_of(message, in_parts=in_parts) for message in self.messages]
        self.text, self.blocks = template.render_marked(self.turns, tools=self.tools)
        self.unopened = ""
        if self.tools or any(message.tool_calls for message in self.messages):
            self._require_tools_shown()

    def render(self, rules: TokenRules) -> Rendered:
        final = self.messages[-1]
        add_eos = final.role == "assistant" and final.train is not False and not self._ends_with_token()
        # Without what the template puts behind the turn (a newline, say): the end token is to come right after it.
        text = self.text.rstrip() if add_eos else self.text
        if rules.assistant_only_loss or self.completion_only:
            return Rendered(text, self._wanted_turns(), raw=False, add_eos=add_eos, unopened=self.unopened)
        excluded = [
            self._turn(i) if message.role == "assistant" else self._content(i)
            for i, message in enumerate(self.messages)
            if message.train is False
        ]
        return Rendered(text, _complement(excluded, len(text)), raw=False, add_eos=add_eos)

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
            other = {**self.turns[i], "content": with_text(self.turns[i]["content"], STAND_IN)}
            if message.content.strip() and self._same([*self.turns[:i], other, *self.turns[i + 1 :]]):
                what = f"the chat template leaves the text of turn {i + 1} out, because the turn calls a tool"
                raise LeftOutError("text left out by the chat template", what)

    def _same(self, turns: list[dict[str, Any]], *, with_tools: bool = True) -> bool:
        """Whether other turns come to the same text. Where the template refuses them, they are not the same to it."""
        try:
            return self.template.render(turns, tools=self.tools if with_tools else ()) == self.text
        except TemplateRefusedError:
            return False

    def _wanted_turns(self) -> list[Span]:
        assistants = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        if self.template.marks_turns:
            turns = dict(zip(assistants, self._blocks(len(assistants)), strict=True))
            return [turns[i] for i in assistants if self.messages[i].train is not False]
        return [self._turn(i) for i in assistants if self.messages[i].train is not False]

    def _blocks(self, expected: int) -> list[Span]:
        """The template's own marks, one for each assistant turn, with the end token if it stands right behind."""
        if len(self.blocks) != expected:
            counts = f"{len(self.blocks)} {{% generation %}} blocks for {expected} assistant turns"
            raise TemplateRefusedError(f"it has {counts}")
        _, closing = self._last_end
        spans = []
        for start, end in self.blocks:
            end += len(closing) if closing and self.text.startswith(closing, end) else 0
            spans.append((start, self._trimmed(start, end)))
        return spans

    def _turn(self, i: int) -> Span:
        """What the assistant is to produce as turn `i`."""
        start = self._turn_start(i)
        return start, self._trimmed(start, self._turn_end(i, start))

    def _turn_start(self, i: int) -> int:
        if i == 0:  # nothing before it, and templates fail on an empty conversation
            return self._content(0)[0]
        head = self._render(self.turns[:i], opening=True)
        if self.text.startswith(head):
            return len(head)
        before = self._render(self.turns[:i])
        shared = min(_common_prefix(head, self.text), self._content(i)[0])
        if self.text.startswith(before) and shared > len(before):
            self.unopened = head[shared:]
            return shared
        raise RewrittenError(i, head, self.text)

    def _turn_end(self, i: int, start: int) -> int:
        if self.messages[i].tool_calls:
            return self._call_end(i)
        last_end, closing = self._last_end
        # Nearly always the content stands right there, behind a space at most, and behind it what ends the last turn.
        at = start + 1 if self.text.startswith(" ", start) else start
        for content in (self.messages[i].content, self.messages[i].content.strip()):
            for end in (start + len(content), at + len(content)):
                if closing and self.text.endswith(content, 0, end) and self.text.startswith(closing, end):
                    return end + len(closing)
        if i == len(self.turns) - 1:
            return last_end + len(closing) if closing else len(self.text)
        part = self._render(self.turns[: i + 1])
        if self.text.startswith(part) and len(part) >= start:
            return len(part)
        end = self._content(i)[1]
        return end + len(closing) if closing and self.text.startswith(closing, end) else end

    def _call_end(self, i: int) -> int:
        """The end of a turn that calls tools. What is written last in it differs between templates, so the turn is
        looked at as a whole: where a turn of text alone would end, or where the conversation up to it ends."""
        try:
            end = self._content(i)[1]
            if closing := self._token_at(end):
                return end + len(closing)
        except TemplateRefusedError:
            pass  # it wants a call here: tool answers follow
        part = self.text if i == len(self.turns) - 1 else self._render(self.turns[: i + 1])
        if self.text.startswith(part):
            return len(part)
        raise TemplateRefusedError(f"where the tool calls of turn {i + 1} end cannot be told")

    def _content(self, i: int) -> Span:
        """Where the content of turn `i` stands in the text, its tool calls included."""
        changed = [*self.turns]
        changed[i] = {key: value for key, value in changed[i].items() if key != "tool_calls"}
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
            return end, self._token_at(end)
        written = self.messages[-1].content
        content = written.strip()
        found = self.text.rfind(content)
        # Space at the content's end must not pass for space that the template puts before every end token.
        if written == written.rstrip() and found >= 0 and (closing := self._token_at(found + len(content))):
            return found + len(content), closing
        end = self._content(len(self.turns) - 1)[1]
        return end, self._token_at(end)

    def _token_at(self, at: int) -> str:
        """The special token that stands there, with the space before it; "" where something else does."""
        rest = self.text[at:]
        after_space = rest.lstrip()
        if not after_space.startswith(self.specials):
            return ""
        token = next(token for token in self.specials if after_space.startswith(token))
        return rest[: len(rest) - len(after_space) + len(token)]

    def _trimmed(self, start: int, end: int) -> int:
        """`end` without the space behind the last thing that is written."""
        return start + len(self.text[start:end].rstrip())

    def _ends_with_token(self) -> bool:
        return self.text.rstrip().endswith(self.specials)


def _complement(spans: list[Span], length: int) -> list[Span]:
    """What of 0…length is in none of the spans."""
    inverse: list[Span] = []
    at = 0
    for start, end in sorted(spans):
        if start > at:
            inverse.append((at, start))
        at = max(at, end)
    return [*inverse, (at, length)] if at < length else inverse


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
