"""Values that several formats share: texts, ids, system prompts, earlier rounds. Knows no format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.format import SYSTEM_KEYS, Noted, Row, with_rules
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.tools import TOOL_KEYS, decoded, read_tools
from rankzero.data.rows.formats.written_calls import answers_without_calls, with_calls_read
from rankzero.data.rows.problems import RowProblem, kind
from rankzero.spec.names import GIVEN_BY_US

UNWANTED = ("rejected_response", "rejected_messages")
"""Where rows of any format have an answer that is not wanted, beside the one that is (ms-swift)."""

NAMES = ("id", "conversation_id")
"""Of the row itself, and of the group that it is in."""

TEMPLATE_KWARGS = "chat_template_kwargs"
"""What the chat template of such a row is to know besides turns and tools (TRL)."""

CHAT_FIELDS = frozenset({*NAMES, "images", "image", TEMPLATE_KWARGS, *SYSTEM_KEYS, *TOOL_KEYS, *UNWANTED})
"""Read beside the turns by every format that has turns."""

_SYSTEM = frozenset(SYSTEM_KEYS)

EMPTY_SYSTEM = "an empty system prompt is left out"


def read_text(row: Row, key: str, line: int) -> str | RowProblem:
    """The string under `key`, which has to have text."""
    value = row.get(key)
    if not isinstance(value, str):
        hint = "write it as a JSON string, or remove the row"
        return RowProblem(line, f"{key} is not a string", f"`{key}` is {kind(value)}, not a string", hint)
    if not value.strip():
        return RowProblem(line, f"empty {key}", f"`{key}` has no text", "remove the row, or give it text")
    return value


def read_id(row: Row) -> str | None:
    """The row's own name."""
    return as_name(row.get("id")) if "id" in row else None


def read_group(row: Row) -> str | None:
    """The name of the conversation that the row is of."""
    return as_name(row.get("conversation_id")) if "conversation_id" in row else None


def as_name(value: Any) -> str | None:
    """A string or a number as a name; an object (MongoDB's ids) or a list as its JSON, in one order of its keys. None
    for what says nothing, and for true and false, which would be the name of half the rows."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as tables have numbers beside a missing one
    if isinstance(value, bool) or not isinstance(value, (int, float, dict, list)):
        return None
    try:
        return (
            None if _is_nothing(value) else json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        )
    except RecursionError:  # a thousand objects in each other name nothing
        return None


def _is_nothing(value: object) -> bool:
    """Whether it is null or empty, or has nothing but that in it."""
    if isinstance(value, (dict, list)):
        return all(map(_is_nothing, value.values() if isinstance(value, dict) else value))
    return value is None or value == ""


def read_system(row: Row, key: str, line: int) -> tuple[list[Message], list[RowProblem], tuple[str, ...]]:
    """The system turn that the row's `key` stands for, if it says anything."""
    value = _of_parts(row.get(key))
    if value is None:
        return [], [], ()
    if not isinstance(value, str):
        what = f"`{key}` is {kind(value)}, not a string"
        return [], [RowProblem(line, f"{key} is not a string", what, "write it as a JSON string")], ()
    if not value.strip():
        return [], [], (EMPTY_SYSTEM,)
    return [Message("system", value)], [], ()


def _of_parts(value: object) -> object:
    """A system prompt that is given in parts of text, as Anthropic, Gemini and Bedrock do, as one text."""
    parts = value.get("parts") if isinstance(value, Mapping) else value
    if not isinstance(parts, list) or not parts:
        return value
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else value


CONTEXT_KEYS = ("context", "passage")
"""What a question is about, beside it."""

CONTEXT_BELOW = "the context is put below the question"


def with_context(row: Row, question: str, line: int) -> tuple[str, list[RowProblem], tuple[str, ...]]:
    """The question with the row's context on the lines below it, as Alpaca's `input` is."""
    if not any(row.get(key) for key in CONTEXT_KEYS):
        return question, [], ()
    key, *more = [key for key in CONTEXT_KEYS if row.get(key)]
    context = row[key]
    if more or row.get("input"):
        both = f"`{key}` and `{more[0] if more else 'input'}`"
        hint = "write into the question what is meant, and remove the keys"
        return question, [RowProblem(line, "context in two places", f"the row has {both}", hint)], ()
    if not isinstance(context, str):
        what = f"`{key}` is {kind(context)}, not a string"
        return question, [RowProblem(line, f"{key} is not a string", what, "join it to one text")], ()
    return (f"{question}\n{context}", [], (CONTEXT_BELOW,)) if context.strip() else (question, [], ())


def read_history(row: Row, line: int, slots: Slots) -> tuple[list[Message], list[RowProblem]]:
    """Earlier rounds: [["question", "answer"], …]."""
    value = row.get("history")
    if not value:
        return [], []
    shape = '[["question", "answer"], …]'
    if not isinstance(value, list):
        return [], [RowProblem(line, "bad history", f"`history` is {kind(value)}", f"expected: {shape}")]
    turns: list[Message] = []
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            what = f"history[{index}] is not a question and an answer"
            return [], [RowProblem(line, "bad history", what, f"expected: {shape}")]
        if not pair[1].strip():
            what = f"history[{index}] has no answer, and it would be trained"
            return [], [RowProblem(line, "empty assistant turn", what, "remove the row")]
        turns += (slots.message("user", pair[0]), slots.message("assistant", pair[1]))
    return turns, []


def chat(
    row: Row,
    line: int,
    turns: Iterable[Message],
    problems: list[RowProblem],
    slots: Slots,
    rules: tuple[str, ...] = (),
    *,
    completion_only: bool = False,
) -> Conversation | Noted | list[RowProblem]:
    """A chat row made of its turns and of what stands beside them: system prompt, tools, images, id and group."""
    messages = tuple(turns)
    tools: tuple[Any, ...] = ()
    images: tuple[str, ...] = ()
    kwargs: dict[str, Any] = {}
    if len(row) > 1:
        if not _SYSTEM.isdisjoint(row):
            messages, more, empty = _with_system(row, line, messages)
            problems, rules = problems + more, (*rules, *empty)
        if any(row.get(key) for key in TOOL_KEYS):
            tools, more = read_tools(row, line)
            problems = problems + more
        if row.get(TEMPLATE_KWARGS):
            kwargs, more = _read_template_kwargs(row, line)
            problems = problems + more
    if slots.used:
        placed = slots.place(messages, line)
        problems = problems + placed.problems
        messages, images, rules = placed.turns, placed.images, (*rules, *placed.rules)
    if tools and not problems:
        messages, problems, more_rules = with_calls_read(messages, tools, line)
        rules = (*rules, *more_rules)
    problems = problems or answers_without_calls(messages, line)
    if problems:
        return problems
    name = group = None
    if len(row) > 1:
        name, group = read_id(row), read_group(row)
    conversation = Conversation(
        messages, True, line, completion_only, images, tools, name, group, template_kwargs=kwargs
    )
    return with_rules(conversation, rules)


def _read_template_kwargs(row: Row, line: int) -> tuple[dict[str, Any], list[RowProblem]]:
    """Without what is null: a column of objects has that in place of what is not there."""
    value = decoded(row[TEMPLATE_KWARGS])
    if not isinstance(value, Mapping):
        what, hint = f"`{TEMPLATE_KWARGS}` is {kind(value)}, not an object", 'write it as {"enable_thinking": false}'
        return {}, [RowProblem(line, f"bad {TEMPLATE_KWARGS}", what, hint)]
    found = {str(name): inner for name, inner in value.items() if inner is not None}
    if taken := sorted(found.keys() & set(GIVEN_BY_US)):
        what, hint = f"`{TEMPLATE_KWARGS}` has `{taken[0]}`", "the row's turns and tools give it: remove it there"
        return {}, [RowProblem(line, f"bad {TEMPLATE_KWARGS}", what, hint)]
    return found, []


def _with_system(
    row: Row, line: int, turns: tuple[Message, ...]
) -> tuple[tuple[Message, ...], list[RowProblem], tuple[str, ...]]:
    """The turns under the system prompt beside them; one that only says again what another says is one with it."""
    prompts: dict[str, str] = {}
    problems: list[RowProblem] = []
    rules: tuple[str, ...] = ()
    for key in SYSTEM_KEYS:
        found, bad, rules_of_key = read_system(row, key, line)
        prompts |= {message.content: f"`{key}`" for message in found if message.content not in prompts}
        problems, rules = problems + bad, rules or rules_of_key
    own = {turn.content for turn in turns if turn.role in ("system", "developer")}
    places = [*prompts.values(), *(["a system turn"] if own else [])]
    if len(prompts) > 1 or (prompts and own and own.isdisjoint(prompts)):
        what = f"the row has {' and '.join(places)} of different texts"
        return turns, [RowProblem(line, "two system prompts", what, "which of the two is meant? keep one")], ()
    return (turns if own else (*(Message("system", text) for text in prompts), *turns)), problems, rules


def untrained(turns: Iterable[Message]) -> list[Message]:
    """The turns as context."""
    return [replace(turn, train=False) for turn in turns]
