"""Conversation: the one row type that every format becomes. Knows nothing of files, tokenizers or templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant", "tool", "prompt", "completion"]
"""Chat roles, and the two of raw text: `prompt` is read, `completion` is trained."""

CHAT_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")

ANSWERING: frozenset[Role] = frozenset({"assistant", "completion"})
"""Roles of what the model writes."""

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\n*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, or one segment of raw text.

    `train` is the row's own wish for this turn (`loss`, `train` or a weight in the data): None where it says nothing,
    and the rules of the spec decide. `weight` is what the losses of its tokens are multiplied by where it is trained.
    """

    role: Role
    content: str
    """The text, without any placeholder for images. Empty where an assistant turn only calls tools."""
    train: bool | None = None
    image_offsets: tuple[int, ...] = ()
    """Character offsets in `content` before which an image stands, ascending; the row's images in their order."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Calls as OpenAI writes them: {"type": "function", "function": {"name": …, "arguments": {…}}}, decoded."""
    tool_call_id: str | None = None
    """Of a tool turn: which call it answers."""
    name: str | None = None
    """Of a tool turn: the function's name."""
    weight: float = 1.0
    reasoning: str = ""
    """The reasoning before the answer, where the row gives it apart from the text (`reasoning_content`)."""

    @property
    def plain(self) -> bool:
        """Whether the text as it stands is all that the turn says: no reasoning in it or beside it, and no images."""
        return not self.reasoning and not self.image_offsets and "</think>" not in self.content

    @property
    def thought(self) -> str:
        """The reasoning before the answer, given apart or as `<think>…</think>` at the beginning of the text."""
        if self.reasoning or self.role not in ANSWERING:
            return self.reasoning
        found = _thought(self.content)
        return "" if found is None else found[1].strip("\n")

    @property
    def answer(self) -> str:
        """The text without the reasoning at its beginning."""
        found = None if self.reasoning or self.role not in ANSWERING else _thought(self.content)
        return self.content if found is None else self.content[found.end() :]

    def without_thought(self) -> Message:
        """The same turn with its answer alone."""
        cut = len(self.content) - len(self.answer)
        offsets = tuple(max(0, offset - cut) for offset in self.image_offsets)
        return replace(self, content=self.answer, image_offsets=offsets, reasoning="")

    def with_thought_apart(self) -> Message:
        """The same turn with its reasoning in `reasoning`, wherever the row has it."""
        return replace(self.without_thought(), reasoning=self.thought)

    def with_thought_in_text(self) -> Message:
        """The same turn with its reasoning where those have it who know only text: in tags before the answer."""
        if not self.reasoning:
            return self
        opening = f"<think>\n{self.reasoning}\n</think>\n\n"
        offsets = tuple(offset + len(opening) for offset in self.image_offsets)
        return replace(self, content=opening + self.content, image_offsets=offsets, reasoning="")


def _thought(content: str) -> re.Match[str] | None:
    return _THOUGHT.match(content) if "</think>" in content else None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One training row.

    `templated` rows are rendered by a chat template; the others are raw text, their segments joined as they stand
    (`prompt`+`completion`, or a lone `completion` for plain text). `line` is the 1-based line in its source file, or
    the number of the row where the file has no lines. `completion_only` rows train on their assistant turns alone, even
    where the spec trains on every token: their format says which part is the prompt.
    """

    messages: tuple[Message, ...]
    templated: bool
    line: int
    completion_only: bool = False
    images: tuple[str, ...] = ()
    """Paths or URLs, as the row has them; as many as its messages have image offsets."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the functions that the model may call."""
    id: str | None = None
    group: str | None = None
    """Rows of one group (a tree, a conversation) are never split between train and eval, and neither are rows that have
    an image in common. None: the row is in no group."""
    rejected: tuple[Message, ...] = ()
    """Preference rows: the worse answer; `messages` ends with the better one."""
    preferred: int = 0
    """Of how many of the last messages the better answer is."""

    @property
    def with_rejected(self) -> Conversation:
        """What was asked, with the worse answer."""
        asked = self.messages[: len(self.messages) - self.preferred]
        return replace(self, messages=(*asked, *self.rejected), rejected=(), preferred=0)

    @property
    def with_chosen(self) -> Conversation:
        """What was asked, with the better answer."""
        return replace(self, rejected=(), preferred=0)

    verbatim: bool = False
    """Raw text with its special tokens in it: nothing is put around it."""
    label: str | int | None = None
    """Classification rows: the class of the text, which is the only message."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given for this row, before data.chat_template_kwargs."""
