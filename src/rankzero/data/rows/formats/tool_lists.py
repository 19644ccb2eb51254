"""System prompts that list tools as text: what they say besides. Knows the sentences that such lists are written with.

A chat template lists a row's tools itself, so a list in the text would be a second one; what else stands round it is
the row's own and stays. The sentences are those of Hermes and Qwen, which most data sets copied.
"""

from __future__ import annotations

import re

_BRACES = r"\{[^{}]*\}"
for _ in range(3):
    _BRACES = rf"\{{(?:[^{{}}]|{_BRACES})*\}}"

_SENTENCES = (
    "# Tools",
    "You are a function calling AI model",
    "You are provided with function signatures within <tools> </tools> XML tags",
    "You may call one or more functions to assist with the user query",
    "If available tools are not relevant in assisting with user query, just respond in natural conversational language",
    "Don't make assumptions about what values to plug into functions",
    "After calling & executing the functions, you will be provided with function results within <tool_response> "
    "</tool_response> XML tags",
    "Here are the available tools",
    "Use the following pydantic model json schema for each tool call you will make: {}",
    "For each function call, return a json object with function name and arguments within <tool_call> </tool_call> XML "
    "tags",
    "For each function call, return a json object with function name and arguments within <tool_call> </tool_call> XML "
    "tags as follows",
    "For each function call, return a json object, with the following pydantic model json schema for each: {}",
    "Each function call should be enclosed within <tool_call> </tool_call> XML tags",
    "Example",
)
"""`{}`: a schema of a call, in braces."""


def _pattern(sentence: str) -> str:
    words = re.escape(sentence).replace(r"\ ", r"\s*").replace(",", ",?").replace(r"\{\}", _BRACES)
    return words if sentence.endswith("{}") else rf"{words}\s*(?:[.:]|(?=[\n<]|$))"


_KNOWN = re.compile(rf"(?<!\w)(?:{'|'.join(map(_pattern, _SENTENCES))})", re.IGNORECASE)
_BEGINS = ("# Tools", "You are a function calling AI model", "You are provided with function signatures")
_LIST = re.compile(r"<tools>(?!\s*</tools>).*?</tools>", re.DOTALL)
_EXAMPLE = "<tool_call>"


def without_list(prompt: str) -> str | None:
    """What a system prompt says besides the list of tools, and how they are called, that it ends with; None where it
    does not end as such lists do."""
    begins = min((place for words in _BEGINS if (place := prompt.find(words)) >= 0), default=-1)
    if not 0 <= begins < prompt.find("<tools>") or not prompt.rstrip(" \n.").endswith("</tool_call>"):
        return None
    before, listing = prompt[:begins].rstrip(), prompt[begins : prompt.rfind(_EXAMPLE)]
    own = _KNOWN.sub("", _LIST.sub("", listing))
    own = re.sub(r"[ \t]*\n\s*\n", "\n\n", own).strip()
    return "\n\n".join(text for text in (before, own if re.search(r"\w", own) else "") if text)
