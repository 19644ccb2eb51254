"""Chat turns of role and content, or of from and value, as OpenAI, TRL and others write them. Knows no templates."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rankzero.data.rows.conversation import CHAT_ROLES, Message, Role
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.parts import Content, read_content
from rankzero.data.rows.formats.reasoning import REASONING_KEYS, read_reasoning
from rankzero.data.rows.formats.roles import is_calling, role_of
from rankzero.data.rows.formats.tools import TOOL_KEYS, Call, decoded, read_calls
from rankzero.data.rows.formats.turn_loss import LOSS_KEYS, TurnLoss, read_loss
from rankzero.data.rows.formats.unread import unread_inside
from rankzero.data.rows.problems import RowProblem, kind

SHAPE = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'

_ROLES = frozenset(CHAT_ROLES)
# Text that the model would have to see or to write, so it is never left out in silence.
_UNREAD = (
    *("refusal", "tools", "functions", "train_detail"),
    *("image", "images", "image_url", "video", "videos", "audio", "audios"),
)


@dataclass(slots=True)
class _Read:
    """What one item of a list of turns is: a turn, the answers of tools before it, or what is wrong with it."""

    turns: list[Message] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    is_call: bool = False
    """The turn is a call alone, by its role."""


def read_messages(value: object, line: int, key: str, slots: Slots) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """A list of turns, and everything that is wrong with any of them."""
    value = decoded(value)  # columns that can hold only text have JSON in a string
    if not isinstance(value, list):
        what = f"`{key}` is {kind(value)}, not a list"
        return (), [RowProblem(line, f"`{key}` is not a list", what, f"expected: {SHAPE}")]
    if not value:
        return (), [RowProblem(line, f"empty `{key}`", f"`{key}` is empty", "remove the row")]
    turns: list[Message] = []
    problems: list[RowProblem] = []
    for index, item in enumerate(value):
        turn = _read_message(item, line, f"{key}[{index}]", slots)
        if isinstance(turn, Message):
            turns.append(turn)
            continue
        problems += turn.problems
        turns[:] = _with_call(turns, turn.turns[0]) if turn.is_call else [*turns, *turn.turns]
    return tuple(turns), problems


def _with_call(turns: list[Message], call: Message) -> list[Message]:
    """A turn that is a call by its role goes on with the assistant's before it: the model writes both in one go."""
    before = turns[-1] if turns else None
    if before is None or before.role != "assistant" or (before.train, before.weight) != (call.train, call.weight):
        return [*turns, call]
    return [*turns[:-1], replace(before, tool_calls=(*before.tool_calls, *call.tool_calls))]


def _read_message(item: object, line: int, where: str, slots: Slots) -> Message | _Read:
    if not isinstance(item, dict):
        what = f"{where} is {kind(item)}, not an object"
        return _Read(problems=[RowProblem(line, "turn is not an object", what, f"expected: {SHAPE}")])
    role, content = item.get("role"), item.get("content")
    # Nearly every turn: a role, a text and nothing else.
    plain = len(item) == 2 and isinstance(content, str) and isinstance(role, str) and role in _ROLES
    if plain and (role != "assistant" or (content and not content.isspace())):
        text, speaker = cast(str, content), cast(Role, role)
        return slots.message(speaker, text) if slots.tagged else Message(speaker, text)
    return _TurnReader(item, line, where, slots).read()


class _TurnReader:
    """A turn with more to it, or with something wrong."""

    def __init__(self, item: Mapping[str, Any], line: int, where: str, slots: Slots) -> None:
        self._item, self._line, self._where, self._slots = item, line, where, slots
        self._who = "from" if "from" in item and "role" not in item else "role"
        self._what = "value" if "value" in item and "content" not in item else "content"
        self._role = role_of(item.get(self._who))
        self._problems: list[RowProblem] = []

    def read(self) -> _Read:
        """The turn, and the answers of tools that it begins with."""
        item, line, where, role = self._item, self._line, self._where, self._role
        if role is None:
            self._problems.append(self._bad_role())
        is_call = is_calling(item.get(self._who))
        content = self._content(is_call)
        calls, more = read_turn_calls(item, role, line, where)
        self._problems += more
        loss = read_loss(item, role, line, where)
        if isinstance(loss, RowProblem):
            self._problems.append(loss)
            loss = TurnLoss(train=False)
        thought = read_reasoning(item, content.thought, content.text, role, line, where)
        if isinstance(thought, RowProblem):
            self._problems.append(thought)
            thought = ""
        calls = self._calls(content, calls)
        said = bool(content.text.strip() or content.offsets)
        unreadable = any(problem.reason != "unknown role" for problem in self._problems)
        if role == "assistant" and not (said or calls or unreadable) and loss.train is not False:
            self._problems.append(empty_reply(line, where))
        name, answers = (item.get("name"), item.get("tool_call_id")) if role == "tool" else (None, None)
        if not isinstance(name or "", str) or not isinstance(answers or "", str):
            what = f"{where} has a `name` or `tool_call_id` that is not a string"
            self._problems.append(RowProblem(line, "bad tool answer", what, "write it as a JSON string"))
        if self._problems or role is None:
            return _Read(problems=self._problems)
        turn = Message(
            role,
            content.text,
            loss.train,
            content.offsets,
            calls,
            tool_call_id=answers or None,
            name=name or None,
            weight=loss.weight,
            reasoning=thought,
        )
        alone = bool(content.answers) and not said
        return _Read([*content.answers, *([] if alone else [turn])], is_call=is_call)

    def _content(self, is_call: bool) -> Content:
        """What the turn says; problems where it says nothing that can be read."""
        item, value = self._item, self._item.get(self._what)
        unread = unread_beside_content(item, self._line, self._where)
        self._problems += unread
        if is_call:
            calls, bad = read_calls(value, self._line, f"{self._where}.{self._what}")
            self._problems += bad
            return Content(calls=calls)
        if isinstance(value, str) or (isinstance(value, list) and value and self._what == "content"):
            found = read_content(value, self._slots, self._line, f"{self._where}.{self._what}")
            if isinstance(found, Content):
                return found
            self._problems.append(found)
        elif not (value is None and (item.get("tool_calls") or item.get("function_call") or unread)):
            self._problems.append(self._bad_content())
        return Content()

    def _calls(self, content: Content, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        """The turn's calls, whether its parts have them or keys of its own."""
        line, where, role = self._line, self._where, self._role
        if content.calls and role != "assistant":
            what = f"{where} calls a tool, and is not the assistant's"
            hint = "name its role assistant, or remove the call"
            self._problems.append(RowProblem(line, "tool call of another role", what, hint))
        if content.calls and calls:
            what = f"{where} has calls in its content and beside it"
            self._problems.append(RowProblem(line, "tool calls in two places", what, "keep `tool_calls`"))
        if content.answers and role not in ("user", "tool"):
            what = f"{where} has a tool's answer, and is the {role}'s"
            self._problems.append(RowProblem(line, "tool answer of another role", what, "tools answer in user turns"))
        return calls or content.calls

    def _bad_role(self) -> RowProblem:
        item, line, where = self._item, self._line, self._where
        role = item.get(self._who)
        if self._who not in item:
            return RowProblem(line, "turn without role", f"{where} has no `role`", f"expected: {SHAPE}")
        if not isinstance(role, str):
            what = f"{where}.{self._who} is {kind(role)}, not a string"
            return RowProblem(line, "role is not a string", what, f"roles are {', '.join(CHAT_ROLES)}")
        near = difflib.get_close_matches(role.strip().lower()[:40], CHAT_ROLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"roles are {', '.join(CHAT_ROLES)}"
        return RowProblem(line, "unknown role", f"{where}.{self._who} is {role[:40]!r}", hint)

    def _bad_content(self) -> RowProblem:
        item, line, where = self._item, self._line, self._where
        value = item.get(self._what)
        if self._what not in item:
            near = next((key for key in ("value", "text", "message") if key in item), None)
            hint = f"rename {near} to content" if near else f"expected: {SHAPE}"
            return RowProblem(line, "turn without content", f"{where} has no `content`", hint)
        if value == []:
            what = f"{where}.{self._what} is an empty list"
            return RowProblem(line, "unknown content part", what, "remove the turn or give it text")
        reason = "content is null" if value is None else "content is not a string"
        hint = "remove the turn or give it text" if value is None else "write it as a JSON string"
        return RowProblem(line, reason, f"{where}.{self._what} is {kind(value)}, not a string", hint)


def unread_beside_content(item: Mapping[str, Any], line: int, where: str) -> list[RowProblem]:
    """Keys of a turn that say what the model would have to see or to write, and that nothing reads there."""
    problems = []
    for key in _UNREAD:
        if item.get(key):
            what = f"{where} has `{key}`, which is not read yet"
            problems.append(RowProblem(line, f"`{key}` is not read", what, _unread_hint(key)))
    return problems


def _unread_hint(key: str) -> str:
    if key in TOOL_KEYS:
        return f"tools stand beside the turns of a row: move `{key}` out of the turn"
    if key.startswith("image"):
        return 'images stand in `images` beside the turns, or in content as parts ({"type": "image", "image": "…"})'
    if key == "train_detail":
        return "a turn is trained as a whole, by `train`; parts of a text are segments (rows with `segments`)"
    return "write it into content as the model is to produce it, or remove the key"


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
        what, hint = f"{where} calls a tool, and is not the assistant's", "name its role assistant, or remove the call"
        return (), [RowProblem(line, "tool call of another role", what, hint)]
    if calls and call:
        what = f"{where} has `tool_calls` and `function_call`"
        return (), [RowProblem(line, "tool calls in two places", what, "keep `tool_calls`")]
    return read_calls(calls or call, line, f"{where}.tool_calls" if calls else f"{where}.function_call")


def unread_keys(item: Mapping[str, Any]) -> set[str]:
    """Keys of a turn of role and content that say something and that nothing reads."""
    reads = _READ_OF_TOOL if role_of(item.get("role")) == "tool" else _READ
    return unread_beside(item, reads | {"from", "value"} if "from" in item and "role" not in item else reads)


def unread_beside(item: Mapping[str, Any], reads: frozenset[str]) -> set[str]:
    """Keys of a turn that say something, beside those that are read; those of its parts and calls by their paths."""
    unread = {
        key for key, value in item.items() if key not in reads and value is not None and value not in ("", [], {})
    }
    return unread | unread_inside(item)


TURN_KEYS = frozenset({"role", "content", "from", "value", "tool_calls", *LOSS_KEYS, *REASONING_KEYS})
"""What decides how a turn is trained."""

_READ = (TURN_KEYS - {"from", "value"}) | {"function_call"}
_READ_OF_TOOL = _READ | {"name", "tool_call_id"}
