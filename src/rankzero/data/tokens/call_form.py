"""The form in which a chat template takes tool calls: found by trying it out, never by a model's name.

OpenAI has arguments as JSON in a string, no content beside calls, and ids of its own; templates were written for one or
another of these. Knows how templates are asked; nothing of what is trained.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from rankzero.data.rows.conversation import Conversation, Message

IDS_REWRITTEN = "ids of tool calls written in nine letters and digits, as the chat template wants them"

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT = 9
_NAME, _VALUE = "function-stand-in", "argument-stand-in"


class CallForm(NamedTuple):
    """How calls are handed to a template."""

    text_arguments: bool = False
    """Arguments are JSON in a string, not an object."""
    null_content: bool = False
    """The content of a turn that only calls is null, not empty."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits, as Mistral's are."""


def find_call_form(render: Callable[[Sequence[Mapping[str, Any]]], str]) -> CallForm:
    """The form that differs least from the usual one among those in which the template shows a call. `render` fails as
    it likes where the template refuses; where it shows none in any form, the usual one."""
    forms = sorted((CallForm(*flags) for flags in product((False, True), repeat=3)), key=sum)
    return next((form for form in forms if _shows(render, form)), CallForm())


def _shows(render: Callable[[Sequence[Mapping[str, Any]]], str], form: CallForm) -> bool:
    name = "c" * (_SHORT if form.short_ids else 12)
    function = {"name": _NAME, "arguments": {"key": _VALUE}}
    call = {"id": name, "type": "function", "function": function}
    turns = [
        {"role": "user", "content": "question"},
        in_form({"role": "assistant", "content": "", "tool_calls": [call]}, form),
        {"role": "tool", "tool_call_id": name, "content": "result"},
        {"role": "assistant", "content": "answer"},
    ]
    try:
        text = render(turns)
    except Exception:  # a template is foreign code: it may fail in any way
        return False
    return _NAME in text and _VALUE in text


def in_form(turn: dict[str, Any], form: CallForm) -> dict[str, Any]:
    """A turn that calls, as this form has it."""
    if form.text_arguments:
        turn = {**turn, "tool_calls": [_with_text(call) for call in turn["tool_calls"]]}
    return {**turn, "content": None} if form.null_content and turn["content"] == "" else turn


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def with_short_ids(conversation: Conversation) -> Conversation:
    """The row with every id of its calls in nine letters and digits: those that are such stay, others are derived from
    what the row has, or from the call's number. Answers go with their calls, in order where they do not say which."""
    names: dict[str, str] = {}
    waiting: list[str] = []
    turns: list[Message] = []
    number = 0
    for message in conversation.messages:
        calls = []
        for call in message.tool_calls:
            number += 1
            given = call.get("id")
            short = _short(given or f"call {number}")
            if given:
                names[given] = short
            waiting.append(short)
            calls.append({**call, "id": short})
        if message.role == "tool":
            answered = names.get(message.tool_call_id or "")
            if answered is None and waiting:
                answered = waiting[0]
            if answered in waiting:
                waiting.remove(answered)
            message = replace(message, tool_call_id=answered)
        turns.append(replace(message, tool_calls=tuple(calls)) if calls else message)
    return replace(conversation, messages=tuple(turns))


def _short(name: str) -> str:
    if len(name) == _SHORT and re.fullmatch("[a-zA-Z0-9]+", name):
        return name
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    letters = []
    for _ in range(_SHORT):
        number, at = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[at])
    return "".join(letters)
