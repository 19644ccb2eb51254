"""Conversation: the one row type that every format becomes. Knows nothing of files, tokenizers or templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "developer", "user", "assistant", "tool", "prompt", "completion"]
"""Chat roles, and the two of raw text: `prompt` is read, `completion` is trained."""

CHAT_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, or one segment of raw text.

    `train` is the row's own wish for this turn (`loss` or `weight` in the data): None where it says nothing, and the
    rules of the spec decide.
    """

    role: Role
    content: str
    train: bool | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One training row.

    `templated` rows are rendered by a chat template; the others are raw text, their segments joined as they stand
    (`prompt`+`completion`, or a lone `completion` for plain text). `line` is the 1-based line in its source file.
    `completion_only` rows train on their assistant turns alone, even where the spec trains on every token: their
    format says which part is the prompt.
    """

    messages: tuple[Message, ...]
    templated: bool
    line: int
    completion_only: bool = False
