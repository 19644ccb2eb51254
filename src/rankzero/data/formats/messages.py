"""Rows with `messages`: chat turns, as OpenAI, TRL and others write them. Knows nothing of templates or tokens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast

from rankzero.data.conversation import CHAT_ROLES, Conversation, Message, Role
from rankzero.data.problems import RowProblem, kind

KEYS = frozenset({"messages"})
SHAPE = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'

_ROLES = frozenset(CHAT_ROLES)
_OTHER_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
# Text that the model would have to see or to write, so it is never left out in silence.
_UNREAD = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "refusal", "images", "audio")


def to_conversation(row: Mapping[str, Any], line: int) -> Conversation | list[RowProblem]:
    """The row's turns; what they train on is decided by the rules of the spec and by each turn's loss or weight."""
    turns, problems = read_messages(row["messages"], line, "messages")
    if problems:
        return problems
    if any(turn.role == "assistant" for turn in turns):
        return Conversation(turns, templated=True, line=line)
    roles = ", ".join(dict.fromkeys(turn.role for turn in turns))
    hint = "a row needs an assistant turn to learn; remove the row"
    return [RowProblem(line, "no assistant turn", f"nothing to train on: there are only {roles} turns", hint)]


def read_messages(value: object, line: int, key: str) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """A list of turns, and everything that is wrong with any of them."""
    if not isinstance(value, list):
        hint = "it is JSON inside a string: decode it once" if isinstance(value, str) else f"expected: {SHAPE}"
        return (), [RowProblem(line, f"`{key}` is not a list", f"`{key}` is {kind(value)}, not a list", hint)]
    if not value:
        return (), [RowProblem(line, f"empty `{key}`", f"`{key}` is empty", "remove the row")]
    turns: list[Message] = []
    problems: list[RowProblem] = []
    for index, item in enumerate(value):
        turn = _read_message(item, line, f"{key}[{index}]")
        if isinstance(turn, Message):
            turns.append(turn)
        else:
            problems += turn
    return tuple(turns), problems


def _read_message(item: object, line: int, where: str) -> Message | list[RowProblem]:
    if not isinstance(item, dict):
        return [RowProblem(line, "turn is not an object", f"{where} is {kind(item)}, not an object")]
    problems: list[RowProblem] = []
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        problems.append(_bad_role(item, line, where))
    if not isinstance(content, str):
        content = _joined_parts(content) if isinstance(content, list) else None
        if content is None:
            problems.append(_bad_content(item, line, where))
    problems += [
        RowProblem(
            line,
            f"`{key}` is not read",
            f"{where} has `{key}`, which is not read yet",
            "write it into content as the model is to produce it, or remove the key",
        )
        for key in _UNREAD
        if item.get(key) and not (content is None and key == "tool_calls")
    ]
    train = _train_flag(item, line, where) if "loss" in item or "weight" in item else None
    if isinstance(train, RowProblem):
        problems.append(train)
        train = False
    if role == "assistant" and content is not None and train is not False and not content.strip():
        what = f"{where} is an assistant turn without text, and it would be trained"
        problems.append(RowProblem(line, "empty assistant turn", what, 'remove the row, or set "loss": false on it'))
    if problems:
        return problems
    return Message(cast(Role, role), cast(str, content), train)


def _bad_role(item: Mapping[str, Any], line: int, where: str) -> RowProblem:
    role = item.get("role")
    if "role" not in item:
        hint = "rename from to role and value to content" if "from" in item else f"expected: {SHAPE}"
        return RowProblem(line, "turn without role", f"{where} has no `role`", hint)
    if not isinstance(role, str):
        return RowProblem(line, "role is not a string", f"{where}.role is {kind(role)}, not a string")
    name = role.strip().lower()
    near = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, CHAT_ROLES, n=1)), None)
    hint = f"did you mean {near}?" if near else f"roles are {', '.join(CHAT_ROLES)}"
    return RowProblem(line, "unknown role", f"{where}.role is {role[:40]!r}", hint)


def _bad_content(item: Mapping[str, Any], line: int, where: str) -> RowProblem:
    content = item.get("content")
    if content is None and (item.get("tool_calls") or item.get("function_call")):
        hint = "write the call into content as the model is to produce it"
        return RowProblem(line, "tool calls are not read", f"{where} calls a tool, which is not read yet", hint)
    if "content" not in item:
        near = next((key for key in ("value", "text", "message") if key in item), None)
        hint = f"rename {near} to content" if near else ""
        return RowProblem(line, "turn without content", f"{where} has no `content`", hint)
    if isinstance(content, list):
        kinds = [str(part.get("type")) if isinstance(part, dict) else kind(part) for part in content]
        odd = next((kind for kind in kinds if kind != "text"), "text without a string")
        what = f"{where}.content has a part that is not text ({odd[:40]})"
        return RowProblem(line, "content part is not text", what, "only text is read yet")
    reason = "content is null" if content is None else "content is not a string"
    hint = "remove the turn or give it text" if content is None else "write it as a JSON string"
    return RowProblem(line, reason, f"{where}.content is {kind(content)}, not a string", hint)


def _joined_parts(parts: list[Any]) -> str | None:
    """The text of [{"type": "text", "text": …}, …]; None where any part is something else."""
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts) if texts else None


def _train_flag(item: Mapping[str, Any], line: int, where: str) -> bool | None | RowProblem:
    """What `loss` (bool) or `weight` (0 or 1) says about this turn."""
    loss, weight = item.get("loss"), item.get("weight")
    if loss is not None and not isinstance(loss, bool):
        what = f"{where}.loss is {kind(loss)}, not true or false"
        return RowProblem(line, "bad loss flag", what, "a turn is trained or it is not")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        what = f"{where}.weight is {kind(weight)}, neither 0 nor 1"
        return RowProblem(
            line, "bad weight", what, "a turn is trained (1) or it is not (0); other weights are not read"
        )
    flags = {flag for flag in (loss, None if weight is None else bool(weight)) if flag is not None}
    if len(flags) == 2:
        return RowProblem(line, "bad loss flag", f"{where} has loss and weight that contradict each other")
    train = flags.pop() if flags else None
    if train and item.get("role") != "assistant":
        what = f"{where} asks to train a {str(item.get('role'))[:40]} turn"
        return RowProblem(line, "training another role", what, "only assistant turns can be asked for; remove the key")
    return train
