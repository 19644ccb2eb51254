"""A conversation as text, with the characters that are trained. Knows templates and rules; nothing of token ids.

Which characters an assistant turn is made of follows from the template alone:

1. `{% generation %}` blocks, where the template has them;
2. else a turn begins where the conversation before it ends, once the head of an assistant turn has been opened
   (`add_generation_prompt`), and ends where the conversation up to and with it ends;
3. where a template writes a turn differently once others follow (Qwen 3 drops its thinking), the turn's end is found
   by putting other content in its place and looking at what stays the same behind it.

A turn's last trained token is its end token (`<|im_end|>`, `<|eot_id|>`, `</s>` …), not what stands behind that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rankzero.data.conversation import Conversation
from rankzero.data.problems import RowProblem
from rankzero.data.template import ChatTemplate, Span, TemplateRefusedError
from rankzero.data.tokenizer import TokenizerParts
from rankzero.errors import ConfigError

if TYPE_CHECKING:  # workers need not load pydantic
    from rankzero.spec.run_spec import OverLength

# Stands in for a turn's content to see where it comes to stand. A noncharacter at either end, so that what the text
# and its stand-in have in common ends exactly where the content does.
_STAND_IN = "\ufdd2content\ufdd3"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens of a row are kept, and which of those are trained; the fields are those of the spec's data."""

    max_length: int = 2048
    over_length: OverLength = "truncate"
    assistant_only_loss: bool = True


@dataclass(frozen=True, slots=True)
class Rendered:
    """A row as text. `spans` are the trained characters, ascending and apart.

    `raw` rows get the tokenizer's own special tokens around them (a BOS, mostly), as the model saw in pre-training;
    rows from a template bring theirs. `add_eos`: nothing in the text says where the model is to stop. `unopened`: what
    the template opens an answer with in use, but leaves out of the row (an empty thought, mostly).
    """

    text: str
    spans: list[Span]
    raw: bool
    add_eos: bool
    unopened: str = ""


class Renderer:
    """Conversations to text with spans, for one tokenizer and one set of rules."""

    def __init__(self, parts: TokenizerParts, rules: TokenRules) -> None:
        self._parts, self._rules = parts, rules

    @cached_property
    def _template(self) -> ChatTemplate:
        """Compiled when the first chat row asks for it: raw text needs none, not even one that is valid."""
        if self._parts.chat_template is None:
            raise ConfigError(
                "the data has chat rows, but the tokenizer has no chat template",
                where="data.chat_template",
                hint="set data.chat_template to a Jinja file, take the tokenizer of the model's instruct version, or "
                "write rows as prompt and completion",
            )
        return ChatTemplate(self._parts.chat_template, self._parts.variables)

    def render(self, conversation: Conversation) -> Rendered | RowProblem:
        """The row as text, or why the template cannot. Raises ConfigError where a chat row finds no valid template."""
        if not conversation.templated:
            return _render_raw(conversation)
        try:
            return _Chat(conversation, self._template, self._parts.specials).render(self._rules)
        except TemplateRefusedError as error:
            return RowProblem(
                conversation.line, "refused by the chat template", f"the chat template says: {error}", _hint(str(error))
            )
        except _RewrittenError as error:
            return RowProblem(
                conversation.line,
                "chat template rewrites earlier turns",
                f"the chat template rewrites what stands before turn {error.turn + 1} once that turn is there: "
                f"{error.before!r} becomes {error.after!r}",
                "what is trained would not be what the model sees in use: set data.chat_template to a template that "
                'only ever appends, or mark this turn "loss": false',
            )


def _render_raw(conversation: Conversation) -> Rendered:
    prompt = "".join(segment.content for segment in conversation.messages if segment.role == "prompt")
    text = prompt + "".join(segment.content for segment in conversation.messages if segment.role != "prompt")
    return Rendered(text, [(len(prompt), len(text))], raw=True, add_eos=True)


def _hint(reason: str) -> str:
    lowered = reason.lower()
    if "system" in lowered:
        return "put the system text at the beginning of the first user turn, or set data.chat_template"
    if "alternat" in lowered:
        return "this template wants user and assistant in turn: join turns of the same role, or set data.chat_template"
    return "change the row to what the template expects, or set data.chat_template to another template"


class _RewrittenError(Exception):
    """What stands before a turn differs from how the conversation up to it is rendered."""

    def __init__(self, turn: int, head: str, text: str) -> None:
        at = _common_prefix(head, text)
        start = max(0, at - 10)
        self.turn, self.before, self.after = turn, head[start : at + 15], text[start : at + 15]


class _Chat:
    """One conversation on its way through a template."""

    def __init__(self, conversation: Conversation, template: ChatTemplate, specials: tuple[str, ...]) -> None:
        self.messages = conversation.messages
        self.completion_only = conversation.completion_only
        self.template = template
        self.specials = specials
        self.turns = [{"role": message.role, "content": message.content} for message in self.messages]
        self.text, self.blocks = template.render_marked(self.turns)
        self.unopened = ""

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
        head = self.template.render(self.turns[:i], opening=True)
        if self.text.startswith(head):
            return len(head)
        before = self.template.render(self.turns[:i])
        shared = min(_common_prefix(head, self.text), self._content(i)[0])
        if self.text.startswith(before) and shared > len(before):
            self.unopened = head[shared:]
            return shared
        raise _RewrittenError(i, head, self.text)

    def _turn_end(self, i: int, start: int) -> int:
        last_end, closing = self._last_end
        # Nearly always the content stands right there, behind a space at most, and behind it what ends the last turn.
        at = start + 1 if self.text.startswith(" ", start) else start
        for content in (self.turns[i]["content"], self.turns[i]["content"].strip()):
            for end in (start + len(content), at + len(content)):
                if closing and self.text.endswith(content, 0, end) and self.text.startswith(closing, end):
                    return end + len(closing)
        if i == len(self.turns) - 1:
            return last_end + len(closing) if closing else len(self.text)
        part = self.template.render(self.turns[: i + 1])
        if self.text.startswith(part) and len(part) >= start:
            return len(part)
        end = self._content(i)[1]
        return end + len(closing) if closing and self.text.startswith(closing, end) else end

    def _content(self, i: int) -> Span:
        """Where the content of turn `i` stands in the text."""
        changed = [*self.turns]
        changed[i] = {**changed[i], "content": _STAND_IN}
        other = self.template.render(changed)
        start = _common_prefix(self.text, other)
        behind = _common_prefix(self.text[start:][::-1], other[start:][::-1])
        return start, len(self.text) - behind

    @cached_property
    def _last_end(self) -> tuple[int, str]:
        """Where the content of the last turn ends, and what closes it: an end token, "" where there is none.

        In most templates every turn closes like the last one, which is the cheapest to look at.
        """
        written = self.turns[-1]["content"]
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
