"""Chat turns of role and content, as OpenAI, TRL and others write them. Knows nothing of templates or tokens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast

from rankzero.data.rows.conversation import CHAT_ROLES, Message, Role
from rankzero.data.rows.formats.images import Slots, part_source
from rankzero.data.rows.formats.reasoning import REASONING_KEYS, read_reasoning, thinking_part
from rankzero.data.rows.formats.tools import read_calls
from rankzero.data.rows.formats.turn_loss import LOSS_KEYS, TurnLoss, read_loss
from rankzero.data.rows.problems import RowProblem, kind

SHAPE = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'

_ROLES = frozenset(CHAT_ROLES)
_OTHER_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
# Text that the model would have to see or to write, so it is never left out in silence.
_UNREAD = ("refusal", "images", "audio")


def read_messages(value: object, line: int, key: str, slots: Slots) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """A list of turns, and everything that is wrong with any of them."""
    if not isinstance(value, list):
        hint = "it is JSON inside a string: decode it once" if isinstance(value, str) else f"expected: {SHAPE}"
        return (), [RowProblem(line, f"`{key}` is not a list", f"`{key}` is {kind(value)}, not a list", hint)]
    if not value:
        return (), [RowProblem(line, f"empty `{key}`", f"`{key}` is empty", "remove the row")]
    turns: list[Message] = []
    problems: list[RowProblem] = []
    linked = False
    for index, item in enumerate(value):
        turn = _read_message(item, line, key, index, slots)
        if isinstance(turn, Message):
            turns.append(turn)
            linked = linked or turn.tool_call_id is not None
        else:
            problems += turn
    if linked and not problems:
        problems = _unlinked(turns, line, key)
    return tuple(turns), problems


def _read_message(item: object, line: int, key: str, index: int, slots: Slots) -> Message | list[RowProblem]:
    if not isinstance(item, dict):
        return [RowProblem(line, "turn is not an object", f"{key}[{index}] is {kind(item)}, not an object")]
    role, content = item.get("role"), item.get("content")
    # Nearly every turn: a role, a text and nothing else.
    plain = len(item) == 2 and isinstance(content, str) and isinstance(role, str) and role in _ROLES
    if plain and (role != "assistant" or (content and not content.isspace())):
        text, speaker = cast(str, content), cast(Role, role)
        return slots.message(speaker, text) if slots.tagged else Message(speaker, text)
    return _read_rich(item, line, f"{key}[{index}]", slots)


def _read_rich(item: Mapping[str, Any], line: int, where: str, slots: Slots) -> Message | list[RowProblem]:
    """A turn with more to it, or with something wrong."""
    problems: list[RowProblem] = []
    role = "tool" if item.get("role") == "function" else item.get("role")  # as OpenAI called it before tools
    if not isinstance(role, str) or role not in _ROLES:
        problems.append(_bad_role(item, line, where))
    calls, more = read_turn_calls(item, role, line, where)
    problems += more
    found = _content(item, bool(item.get("tool_calls") or item.get("function_call")), slots)
    if found is None:
        problems.append(_bad_content(item, line, where))
    content, offsets, part_thought = found or ("", (), "")
    problems += [
        RowProblem(
            line,
            f"`{key}` is not read",
            f"{where} has `{key}`, which is not read yet",
            "write it into content as the model is to produce it, or remove the key",
        )
        for key in _UNREAD
        if item.get(key)
    ]
    loss = read_loss(item, role, line, where)
    if isinstance(loss, RowProblem):
        problems.append(loss)
        loss = TurnLoss(train=False)
    thought = read_reasoning(item, part_thought, content, role, line, where)
    if isinstance(thought, RowProblem):
        problems.append(thought)
    empty = found is not None and not content.strip() and not offsets and not calls
    if role == "assistant" and empty and not more and loss.train is not False:
        problems.append(empty_reply(line, where))
    if problems or isinstance(thought, RowProblem):
        return problems
    name, answers = (item.get("name"), item.get("tool_call_id")) if role == "tool" else (None, None)
    if not isinstance(name or "", str) or not isinstance(answers or "", str):
        what = f"{where} has a `name` or `tool_call_id` that is not a string"
        return [RowProblem(line, "bad tool answer", what)]
    spoken = cast(Role, role)
    return Message(spoken, content, loss.train, offsets, calls, answers or None, name or None, loss.weight, thought)


def empty_reply(line: int, where: str) -> RowProblem:
    """An assistant turn that would teach the model to say nothing."""
    what = f"{where} is an assistant turn without text, and it would be trained"
    return RowProblem(line, "empty assistant turn", what, 'remove the row, or set "loss": false on it')


def read_turn_calls(
    item: Mapping[str, Any], role: object, line: int, where: str
) -> tuple[tuple[Mapping[str, Any], ...], list[RowProblem]]:
    """The calls of a turn: `tool_calls`, or `function_call` as OpenAI called it before."""
    calls, call = item.get("tool_calls"), item.get("function_call")
    if not calls and not call:
        return (), []
    if role != "assistant":
        return (), [RowProblem(line, "tool call of another role", f"{where} calls a tool, and is not the assistant's")]
    if calls and call:
        what = f"{where} has `tool_calls` and `function_call`"
        return (), [RowProblem(line, "tool calls in two places", what, "keep `tool_calls`")]
    return read_calls(calls or call, line, f"{where}.tool_calls" if calls else f"{where}.function_call")


def _content(item: Mapping[str, Any], calling: bool, slots: Slots) -> tuple[str, tuple[int, ...], str] | None:
    """The turn's text, where its images stand, and the reasoning of its parts; None where it has no text."""
    content = item.get("content")
    if isinstance(content, str):
        return *slots.take(content), ""
    if content is None:
        return ("", (), "") if calling else None
    if not isinstance(content, list) or not content:
        return None
    texts: list[str] = []
    offsets: list[int] = []
    thoughts: list[str] = []
    at = 0
    for part in content:
        if not isinstance(part, dict):
            return None
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            text, places = slots.take(part["text"], at)
            texts.append(text)
            offsets += places
            at += len(text)
        elif not at and (thought := thinking_part(part)) is not None:
            thoughts.append(thought)
        elif (source := part_source(part)) is not False:
            slots.add(cast("str | None", source))
            offsets.append(at)
        else:
            return None
    return "".join(texts), tuple(offsets), "\n".join(thoughts)


def _bad_role(item: Mapping[str, Any], line: int, where: str) -> RowProblem:
    role = item.get("role")
    if "role" not in item:
        hint = "rename from to role and value to content" if "from" in item else f"expected: {SHAPE}"
        return RowProblem(line, "turn without role", f"{where} has no `role`", hint)
    if not isinstance(role, str):
        return RowProblem(line, "role is not a string", f"{where}.role is {kind(role)}, not a string")
    name = role.strip().lower()
    near = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name[:40], CHAT_ROLES, n=1)), None)
    hint = f"did you mean {near}?" if near else f"roles are {', '.join(CHAT_ROLES)}"
    return RowProblem(line, "unknown role", f"{where}.role is {role[:40]!r}", hint)


def _bad_content(item: Mapping[str, Any], line: int, where: str) -> RowProblem:
    content = item.get("content")
    if "content" not in item:
        near = next((key for key in ("value", "text", "message") if key in item), None)
        hint = f"rename {near} to content" if near else ""
        return RowProblem(line, "turn without content", f"{where} has no `content`", hint)
    if isinstance(content, list):
        kinds = [str(part.get("type")) if isinstance(part, dict) else kind(part) for part in content]
        if "thinking" in kinds:
            hint = 'reasoning is {"type": "thinking", "thinking": "…"} before the text of the same turn'
            return RowProblem(line, "reasoning after the text", f"{where}.content has reasoning behind text", hint)
        odd = next((kind for kind in kinds if kind not in ("text", "image")), "text without a string")
        what = f"{where}.content has a part that is neither text nor an image ({odd[:40]})"
        return RowProblem(line, "unknown content part", what, 'parts are {"type": "text", …} and {"type": "image", …}')
    reason = "content is null" if content is None else "content is not a string"
    hint = "remove the turn or give it text" if content is None else "write it as a JSON string"
    return RowProblem(line, reason, f"{where}.content is {kind(content)}, not a string", hint)


def unread_keys(item: Mapping[str, Any]) -> set[str]:
    """Keys of a turn of role and content that say something and that nothing reads."""
    return unread_beside(item, _READ_OF_TOOL if item.get("role") in ("tool", "function") else _READ)


def unread_beside(item: Mapping[str, Any], reads: frozenset[str]) -> set[str]:
    """Keys of a turn that say something, beside those that are read."""
    return {key for key, value in item.items() if key not in reads and value is not None and value not in ("", [], {})}


TURN_KEYS = frozenset({"role", "content", "tool_calls", *LOSS_KEYS, *REASONING_KEYS})
"""What decides how a turn of role and content is trained."""

_READ = TURN_KEYS | {"function_call"}
_READ_OF_TOOL = _READ | {"name", "tool_call_id"}


def _unlinked(turns: list[Message], line: int, key: str) -> list[RowProblem]:
    """Tool turns that answer no call before them."""
    made: set[Any] = set()
    for index, turn in enumerate(turns):
        made.update(call.get("id") for call in turn.tool_calls)
        if turn.tool_call_id is not None and turn.tool_call_id not in made:
            what = f"{key}[{index}].tool_call_id is that of no call before it"
            return [RowProblem(line, "tool answer without its call", what, "the ids of call and answer are the same")]
    return []
