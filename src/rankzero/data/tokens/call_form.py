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
from typing import Any, Literal, NamedTuple

from rankzero.data.rows.conversation import Message

Ids = Literal["own", "short", "named"]
"""Of calls: as the row has them; nine letters and digits, as Mistral's are; or `functions.NAME:0`, as Kimi's are, with
how many calls came before, where a template writes the function's name nowhere else."""

IDS_REWRITTEN: dict[Ids, str] = {
    "short": "ids of tool calls written in nine letters and digits, as the chat template wants them",
    "named": "ids of tool calls written as functions.NAME:0, by which alone the chat template names the function",
}

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT = 9
_NAME, _VALUE = "function-stand-in", "argument-stand-in"


class CallForm(NamedTuple):
    """How calls are handed to a template."""

    text_arguments: bool = False
    """Arguments are JSON in a string, not an object."""
    null_content: bool = False
    """The content of a turn that only calls is null, not empty."""
    ids: Ids = "own"

    @property
    def unusual(self) -> int:
        """In how much it differs from the usual one."""
        return self.text_arguments + self.null_content + ("own", "short", "named").index(self.ids)


def find_call_form(render: Callable[[Sequence[Mapping[str, Any]]], str]) -> CallForm:
    """The form that differs least from the usual one among those in which the template shows a call. `render` fails as
    it likes where the template refuses; where it shows none in any form, the usual one."""
    ids: tuple[Ids, ...] = ("own", "short", "named")
    forms = sorted((CallForm(*form) for form in product((False, True), (False, True), ids)), key=lambda f: f.unusual)
    return next((form for form in forms if _shows(render, form)), CallForm())


def _shows(render: Callable[[Sequence[Mapping[str, Any]]], str], form: CallForm) -> bool:
    name = _id_of(form.ids, _NAME, 0, "c" * 12)
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


def with_ids(messages: Sequence[Message], ids: Ids) -> tuple[Message, ...]:
    """The turns with every id of their calls in this form: those that are such stay, others are derived from what the
    row has, or from the call's number. Answers go with their calls, in order where they do not say which."""
    if ids == "own" or (ids == "named" and _all_named(messages)):
        return tuple(messages)
    names: dict[str, str] = {}
    waiting: list[tuple[str, str]] = []  # ids of the last calls, with their functions
    turns: list[Message] = []
    number = 0
    for message in messages:
        calls = []
        if message.tool_calls:
            waiting = []
        for call in message.tool_calls:
            given = call.get("id")
            function = call["function"]["name"]
            name = _id_of(ids, function, number, given)
            number += 1
            if given:
                names[given] = name
            waiting.append((name, function))
            calls.append({**call, "id": name})
        if message.role == "tool":
            answered = names.get(message.tool_call_id or "")
            if answered is None and waiting:
                answered = next((one for one, function in waiting if function == message.name), waiting[0][0])
            waiting = [one for one in waiting if one[0] != answered]
            message = replace(message, tool_call_id=answered)
        turns.append(replace(message, tool_calls=tuple(calls)) if calls else message)
    return tuple(turns)


def _id_of(ids: Ids, function: str, number: int, given: str | None) -> str:
    """The id of a call before which there are `number` others."""
    if ids == "named":
        return f"functions.{function}:{number}"
    given = given or f"call {number + 1}"
    return _short(given) if ids == "short" else given


def _all_named(messages: Sequence[Message]) -> bool:
    """Whether all ids say which function is called, and all answers which call: then they may have numbers that go on
    from what is not in the row."""
    calls = [call for message in messages for call in message.tool_calls]
    forms = (rf"functions\.{re.escape(call['function']['name'])}:\d+" for call in calls)
    named = all(re.fullmatch(form, call.get("id", "")) for call, form in zip(calls, forms, strict=True))
    return named and all(message.tool_call_id for message in messages if message.role == "tool")


def _short(name: str) -> str:
    if len(name) == _SHORT and re.fullmatch("[a-zA-Z0-9]+", name):
        return name
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    letters = []
    for _ in range(_SHORT):
        number, at = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[at])
    return "".join(letters)
