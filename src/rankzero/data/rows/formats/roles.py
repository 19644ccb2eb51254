"""Words for who speaks, of all tools whose rows are read. Knows nothing else of turns."""

from __future__ import annotations

from rankzero.data.rows.conversation import CHAT_ROLES, Role

_WORDS: dict[Role, tuple[str, ...]] = {
    "user": ("human", "prompter"),
    "assistant": ("gpt", "chatgpt", "model", "bot", "ai", "bing", "bard"),
    "tool": ("function", "function_response", "tool_response", "tool_result", "observation", "ipython"),
}
_ROLES: dict[str, Role] = {role: role for role in CHAT_ROLES} | {
    word: role for role, words in _WORDS.items() for word in words
}
CALLING = ("tool_call", "function_call")
"""Of turns of the assistant whose content is a call, as JSON."""
_ROLES |= dict.fromkeys(CALLING, "assistant")

ROLE_WORDS: tuple[str, ...] = tuple(_ROLES)


def role_of(word: object) -> Role | None:
    """The role that a word stands for; None where it stands for none."""
    return _ROLES.get(word) or _ROLES.get(word.strip().lower()) if isinstance(word, str) else None


def is_calling(word: object) -> bool:
    """Whether a turn of this word is a call."""
    return isinstance(word, str) and word.strip().lower() in CALLING
